// Put together what the charts show, from the view and the loaded curves.
import { marksOf } from "../curves/marks";
import { pointsOf } from "../curves/points";
import { isSetting } from "../curves/sections";
import { curvesOf, drawn } from "../data/curve_store";
import type { State } from "../data/store";
import type { Curve } from "../data/types";
import type { Content, Line, PlacedMark } from "./content";
import type { Range } from "./viewport";

const MEANS = "epoch";

export function metricNames(shown: readonly string[]): Set<string> {
  const names = new Set<string>();
  for (const key of shown) for (const name of curvesOf(key)?.names ?? []) names.add(name);
  return names;
}

// The names of the shown runs' hyper-parameters, by which their curves are recognised: these are never smoothed. A key of the
// config is not enough: config={"loss": "mse"} says nothing about the curve "loss".
export function settingNames(state: State): Set<string> {
  return new Set(state.view.shown.flatMap((key) => state.runs.get(key)?.hyper ?? []));
}

// From the first to the last position of all shown runs.
export function extentOf(state: State): Range {
  const { shown, axis } = state.view;
  let [low, high] = [Infinity, -Infinity];
  for (const key of shown) {
    const run = curvesOf(key);
    for (const { curves } of run?.whole.values() ?? []) {
      for (const curve of curves) {
        if (!curve.x.length || !run) continue;
        low = Math.min(low, run.axis.position(axis, curve.x[0]!, curve.t[0]!));
        high = Math.max(high, run.axis.position(axis, curve.x1.at(-1)!, curve.t.at(-1)!));
      }
    }
  }
  if (low > high) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

export interface Composed {
  content: Content;
  note: string; // what is not complete yet
  isExact: boolean;
  at: string;
}

export function compose(state: State, name: string, extent: Range, settings: ReadonlySet<string>): Composed {
  const { view } = state;
  const weight = isSetting(name, settings) ? 0 : view.smooth;
  const lines: Line[] = [];
  const notes = new Set<string>();
  let isExact = true;
  let at = "";
  for (const key of view.shown) {
    const run = curvesOf(key);
    if (!run || !run.names.has(name)) continue;
    const curves = drawn(run, name, view.range !== null);
    isExact &&= curves.length > 0 && curves.every((curve) => curve.exact);
    if (run.preview) notes.add(`preview, ${Math.floor(run.complete * 100)} % read`);
    else if (run.problem) notes.add(`cannot be read: ${run.problem}`);
    else if (run.complete < 1) notes.add(run.note || "reading …");
    if (view.axis === "epoch" && !run.axis.hasEpochs) notes.add("epochs are unknown: steps");
    const main = mainCurve(curves);
    at ||= main?.at ?? "";
    for (const curve of curves) {
      if (curve !== main && (curve.at !== MEANS || !curve.x.length)) continue;
      const points = pointsOf(curve, run.axis, view.axis, curve === main ? weight : 0);
      const label = state.runs.get(key)?.label ?? "";
      lines.push({ key, label, colour: state.colours.get(key) ?? 0, points, axis: run.axis, areMeans: curve !== main });
    }
  }
  lines.sort((a, b) => Number(a.key === view.focus) - Number(b.key === view.focus)); // the focused run is on top
  const content: Content = { title: name, lines, marks: placedMarks(state), marked: state.runs.get(view.focus ?? "")?.label ?? "", axis: view.axis, isLog: view.log, extent };
  return { content, note: [...notes].join(", "), isExact: isExact && lines.length > 0, at: at || "step" };
}

// A metric may have values of steps, means of epochs, and single values: the first of these is a line.
function mainCurve(curves: readonly Curve[]): Curve | undefined {
  return curves.find((curve) => curve.at === "step") ?? curves.find((curve) => curve.at !== MEANS) ?? curves[0];
}

const NO_MARKS: readonly PlacedMark[] = [];
let lastMarks: { events: unknown; axis: unknown; run: unknown; marks: PlacedMark[] } | null = null;

// The marks of the focused run, if it is shown.
function placedMarks(state: State): readonly PlacedMark[] {
  const { focus, shown, axis, marks: isOn } = state.view;
  const events = focus === null ? undefined : state.events.get(focus);
  const run = focus === null ? undefined : curvesOf(focus);
  if (!isOn || focus === null || !events || !run || !shown.includes(focus)) return NO_MARKS;
  if (lastMarks?.events !== events || lastMarks.axis !== axis || lastMarks.run !== run.axis) {
    const marks = marksOf(events).map((mark) => ({ ...mark, x: run.axis.position(axis, mark.step, mark.time) }));
    lastMarks = { events, axis, run: run.axis, marks };
  }
  return lastMarks.marks;
}
