// The view: everything that the link restores.

export type AxisName = "step" | "epoch" | "time";
export type Tab = "controls" | "events" | "checkpoints" | "callbacks" | "settings" | "system" | "media";
export type Screen = "runs" | "curves" | "run";

export interface View {
  shown: readonly string[];
  focus: string | null;
  axis: AxisName;
  log: boolean;
  smooth: number;
  marks: boolean;
  range: readonly [number, number] | null;
  metrics: string;
  filter: string;
  sort: string;
  descending: boolean;
  group: string;
  columns: readonly string[];
  pinned: readonly string[];
  compare: boolean;
  tab: Tab | null; // null: that which the run has most use for
  screen: Screen;
}

export const TABS: readonly Tab[] = ["controls", "events", "checkpoints", "callbacks", "settings", "system", "media"];
const SCREENS: readonly Screen[] = ["runs", "curves", "run"];
const AXES: readonly AxisName[] = ["step", "epoch", "time"];

export const firstView: View = {
  shown: [],
  focus: null,
  axis: "step",
  log: false,
  smooth: 0,
  marks: true,
  range: null,
  metrics: "",
  filter: "",
  sort: "",
  descending: false,
  group: "",
  columns: [],
  pinned: [],
  compare: false,
  tab: null,
  screen: "curves",
};

// Only what differs from the first view is in the link.
export function encoded(view: View): string {
  const query = new URLSearchParams();
  const put = (name: string, value: string, usual = "") => {
    if (value !== usual) query.set(name, value);
  };
  put("runs", view.shown.join(","));
  put("run", view.focus ?? "");
  put("x", view.axis, "step");
  put("log", view.log ? "1" : "");
  put("smooth", String(view.smooth), "0");
  put("marks", view.marks ? "" : "0");
  put("zoom", view.range ? view.range.map((one) => Number(one.toPrecision(9))).join("~") : "");
  put("metrics", view.metrics);
  put("filter", view.filter);
  put("sort", view.sort === "" ? "" : `${view.descending ? "-" : ""}${view.sort}`);
  put("group", view.group);
  for (const name of view.columns) query.append("column", name);
  for (const name of view.pinned) query.append("pin", name);
  put("compare", view.compare ? "1" : "");
  put("tab", view.tab ?? "");
  put("screen", view.screen, "curves");
  return query.toString();
}

export function decoded(text: string): View {
  const query = new URLSearchParams(text);
  const word = (name: string) => query.get(name) ?? "";
  const one = <T extends string>(name: string, known: readonly T[], usual: T) =>
    known.find((value) => value === word(name)) ?? usual;
  const smooth = Number(word("smooth"));
  const [from, to] = word("zoom").split("~").map(Number);
  const hasRange = from !== undefined && to !== undefined && Number.isFinite(from) && Number.isFinite(to) && from < to;
  return {
    shown: [...new Set(word("runs").split(",").filter(Boolean))],
    focus: word("run") || null,
    axis: one("x", AXES, "step"),
    log: word("log") === "1",
    smooth: smooth > 0 && smooth < 1 ? smooth : 0,
    marks: word("marks") !== "0",
    range: hasRange ? [from, to] : null,
    metrics: word("metrics"),
    filter: word("filter"),
    sort: word("sort").replace(/^-/, ""),
    descending: word("sort").startsWith("-"),
    group: word("group"),
    columns: query.getAll("column"),
    pinned: query.getAll("pin"),
    compare: word("compare") === "1",
    tab: TABS.find((tab) => tab === word("tab")) ?? null,
    screen: one("screen", SCREENS, "curves"),
  };
}
