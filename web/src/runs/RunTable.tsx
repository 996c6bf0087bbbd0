// The table of runs. Only the rows on the screen are in the page, so a thousand runs are as quick as ten.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { count } from "../data/format";
import { show } from "../data/selection";
import { get, setView, useStore } from "../data/store";
import type { Row } from "../data/types";
import { type Item, SETTING, arranged, bestOf } from "./arrange";
import { RunRow } from "./RunRow";
import { commonMetric } from "./standing";

const ROW = 30; // pixels, as in the style sheet
const BESIDE = 10;

const COLUMNS: readonly [string, string, string][] = [
  ["name", "Run", ""],
  ["status", "Status", ""],
  ["epoch", "Epoch", "number"],
  ["best", "Best", "number"],
  ["last", "Last", "number"],
  ["duration", "Time", "number"],
];

export function RunTable() {
  const view = useStore((state) => state.view);
  const runs = useStore((state) => state.runs);
  const settings = useStore((state) => state.settings);
  const colours = useStore((state) => state.colours);
  const scroller = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState({ top: 0, height: 800 });
  useTick([...runs.values()].some((row) => row.status === "running"));

  useLayoutEffect(() => {
    const box = scroller.current!;
    const look = () => setPlace({ top: box.scrollTop, height: box.clientHeight });
    const observer = new ResizeObserver(look);
    observer.observe(box);
    box.addEventListener("scroll", look, { passive: true });
    return () => observer.disconnect();
  }, []);

  const items = arranged(runs.values(), view, (key) => settings.get(key));
  const best = runs.size > 1 ? bestOf([...runs.values()]) : null;
  const first = Math.max(0, Math.floor(place.top / ROW) - BESIDE);
  const last = Math.min(items.length, Math.ceil((place.top + place.height) / ROW) + BESIDE);
  const width = COLUMNS.length + 1 + view.columns.length;
  const metric = commonMetric(runs.values());
  const about: Record<string, string> = {
    best: metric ? `Best ${metric} of the run` : "Best value of the metric that the run watches",
    last: metric ? `Last ${metric}. ▲ marks a value that is far worse than the run's best` : "Last value of this metric",
  };

  return (
    <div class="table-scroller" ref={scroller}>
      <table aria-rowcount={items.length + 1} aria-label="Runs">
        <thead>
          <tr>
            <th class="dot-cell"><span class="sr">Shown</span></th>
            {COLUMNS.map(([name, text, kind]) => <Head key={name} name={name} text={text} kind={kind} about={about[name] ?? ""} metric={name === "best" || name === "last" ? metric : ""} />)}
            {view.columns.map((name) => <Head key={name} name={SETTING + name} text={name} kind="" about={`Setting ${name}`} metric="" />)}
          </tr>
        </thead>
        <tbody id="runs">
          {first > 0 && <tr class="spacer" aria-hidden="true"><td colSpan={width} style={{ height: `${first * ROW}px` }} /></tr>}
          {items.slice(first, last).map((item, index) =>
            "row" in item ? (
              <RunRow
                key={item.row.key}
                row={item.row}
                colour={view.shown.includes(item.row.key) ? (colours.get(item.row.key) ?? 0) : undefined}
                isFocused={item.row.key === view.focus}
                isBest={item.row === best}
                columns={view.columns}
                settings={settings.get(item.row.key)}
                index={first + index}
              />
            ) : (
              <Group key={`group ${item.group}`} item={item} width={width} />
            ),
          )}
          {last < items.length && <tr class="spacer" aria-hidden="true"><td colSpan={width} style={{ height: `${(items.length - last) * ROW}px` }} /></tr>}
        </tbody>
      </table>
      {!items.length && runs.size > 0 && <p class="hint">No run matches “{view.filter}”.</p>}
    </div>
  );
}

function Head({ name, text, kind, about, metric }: { name: string; text: string; kind: string; about: string; metric: string }) {
  const { sort, descending } = get().view;
  const isSorted = sort === name;
  const next = () => setView(isSorted && descending ? { sort: "", descending: false } : { sort: name, descending: isSorted });
  return (
    <th class={kind} aria-sort={isSorted ? (descending ? "descending" : "ascending") : "none"}>
      <button type="button" class="sort" title={about || undefined} onClick={next}>
        {text}
        {isSorted ? (descending ? " ↓" : " ↑") : ""}
        {metric && <small>{metric}</small>}
      </button>
    </th>
  );
}

function Group({ item, width }: { item: Extract<Item, { group: string }>; width: number }) {
  const { group } = get().view;
  const keys = item.rows.map((row: Row) => row.key);
  return (
    <tr class="group">
      <td colSpan={width}>
        <b>{group} = {item.group}</b> <small>{count(item.rows.length, "run")}</small>
        <button type="button" class="quiet" onClick={() => show(keys)}>Show only these</button>
      </td>
    </tr>
  );
}

// Durations of runs in progress grow.
function useTick(isOn: boolean): void {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!isOn) return undefined;
    const timer = setInterval(() => tick((number) => number + 1), 1000);
    return () => clearInterval(timer);
  }, [isOn]);
}
