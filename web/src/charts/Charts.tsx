// All charts, in sections.
import { useMemo, useState } from "preact/hooks";
import { sectionsOf } from "../curves/sections";
import { curvesOf } from "../data/curve_store";
import { count } from "../data/format";
import { sameItems, useStore } from "../data/store";
import { ChartCard } from "./ChartCard";
import { compose, extentOf, metricNames, settingNames } from "./compose";

const MOST = 200; // charts of a section, before the filter
const FEW = 2; // charts that fill the width

export function Charts() {
  const state = useStore(
    (one) => one,
    (a, b) => a === b || (sameViews(a, b) && a.curves === b.curves && a.colours === b.colours && a.events === b.events),
  );
  const { view } = state;
  const [folded, setFolded] = useState<ReadonlySet<string>>(new Set());
  const settings = useMemo(() => settingNames(state), [state.runs, view.shown]);
  const extent = extentOf(state);
  const word = view.metrics.trim().toLowerCase();
  const names = [...metricNames(view.shown)].filter((name) => name.toLowerCase().includes(word));
  const sections = sectionsOf(names, view.pinned, settings);
  const isLoading = view.shown.some((key) => !curvesOf(key));

  if (!view.shown.length) return <p class="hint">No run is selected. Select one in the table to see its curves.</p>;
  if (!sections.length && isLoading) return <div class="skeletons" aria-label="Loading curves" role="status">{[0, 1, 2, 3].map((one) => <div class="skeleton" key={one} />)}</div>;
  if (!sections.length && word) return <p class="hint">No metric contains “{view.metrics}”. Clear the filter to see all of them.</p>;
  const problem = view.shown.map((key) => curvesOf(key)?.problem).find(Boolean);
  if (!sections.length && problem) return <p class="problem" role="alert">scalars.jsonl cannot be read: {problem}</p>;
  if (!sections.length) return <p class="hint">These runs have logged no values yet. Values appear here as soon as they are written.</p>;

  const isFew = sections.reduce((sum, { names: own }) => sum + own.length, 0) <= FEW;
  const toggle = (title: string) => setFolded((before) => new Set(before.has(title) ? [...before].filter((one) => one !== title) : [...before, title]));
  return (
    <>
      {sections.map(({ title, names: own }) => (
        <section class="chart-section" key={title} aria-label={title}>
          <h2>
            <button type="button" class="fold" aria-expanded={!folded.has(title)} onClick={() => toggle(title)}>
              {title} <small>{count(own.length, "chart")}</small>
            </button>
          </h2>
          {!folded.has(title) && (
            <div class={isFew ? "charts few" : "charts"}>
              {own.slice(0, MOST).map((name) => (
                <ChartCard key={name} name={name} composed={compose(state, name, extent, settings)} isPinned={title === "Pinned"} />
              ))}
            </div>
          )}
          {own.length > MOST && !folded.has(title) && <p class="hint">{count(own.length - MOST, "more chart")}: filter by name to see them.</p>}
        </section>
      ))}
    </>
  );
}

type Viewed = { view: import("../data/view").View };

function sameViews(a: Viewed, b: Viewed): boolean {
  const [one, two] = [a.view, b.view];
  return (
    sameItems(one.shown, two.shown) &&
    sameItems(one.pinned, two.pinned) &&
    one.focus === two.focus &&
    one.axis === two.axis &&
    one.log === two.log &&
    one.smooth === two.smooth &&
    one.marks === two.marks &&
    one.range === two.range &&
    one.metrics === two.metrics
  );
}
