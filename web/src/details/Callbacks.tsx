// The callbacks in the order in which they run, when each of them runs, and what it costs.
import { useState } from "preact/hooks";
import { short, span } from "../data/format";
import { useStore } from "../data/store";
import type { CallbackRow, Plain, RunDetails } from "../data/types";

let isByCost = false; // for the next run too

export function Callbacks() {
  const details = useStore((state) => state.details);
  const [byCost, setByCost] = useState(isByCost);
  if (!details) return null;
  const rows = details.callbacks;
  if (!rows.length) return <p class="hint">This run has stored no callbacks.</p>;
  const choose = (value: boolean) => setByCost((isByCost = value));
  const total = rows.reduce((sum, row) => sum + (row.seconds ?? 0), 0);
  const whole = runSeconds(details, total);
  const estimated = estimatedNames(details);
  const numbered = rows.map((row, index) => ({ row, number: index + 1 }));
  if (byCost) numbered.sort((a, b) => (b.row.seconds ?? 0) - (a.row.seconds ?? 0));
  const dearest = Math.max(...rows.map((row) => row.seconds ?? 0));
  return (
    <>
      <div class="segments" role="radiogroup" aria-label="Order of callbacks">
        {([[false, "In order"], [true, "By cost"]] as const).map(([value, text]) => (
          <label key={text}>
            <input type="radio" name="callback-order" checked={byCost === value} onChange={() => choose(value)} /> <span>{text}</span>
          </label>
        ))}
      </div>
      {total === 0 ? (
        <p class="hint">Costs are measured from the first epoch's end on.</p>
      ) : (
        <p class="hint">
          Time since the start of the process{whole ? ", and its share of the run's time" : ""}. (est.): estimated, because one training step in 64 is measured. Points without a time were not called, or are called within a batch.
        </p>
      )}
      <ol class="callbacks" id="callbacks">
        {numbered.map(({ row, number }) => (
          <li key={row.name} class={row.seconds !== null && row.seconds === dearest && dearest > 0 ? "dearest" : ""}>
            <div class="callback-head">
              <span class="place">{number}</span>
              <b>{row.name}</b>
              <span class="number">{row.seconds === null ? (total > 0 ? <small>not measured</small> : "") : cost(row.seconds, whole, estimated.has(row.name))}</span>
            </div>
            {row.seconds !== null && total > 0 && (
              <meter min={0} max={whole ?? total} value={row.seconds} title={`Share of the time of ${whole ? "the run" : "all callbacks"}`} aria-label={`Share of ${row.name} in the time of ${whole ? "the run" : "all callbacks"}`} />
            )}
            <Points row={row} />
          </li>
        ))}
      </ol>
    </>
  );
}

function cost(seconds: number, whole: number | null, isEstimated: boolean): string {
  const share = whole === null ? "" : seconds < whole / 1000 ? ", < 0.1 %" : `, ${short((100 * seconds) / whole, 2)} % of the run`;
  return `${span(seconds)}${isEstimated ? " (est.)" : ""}${share}`;
}

// The time that the costs are a part of. A run that was resumed has the costs of its last process only: then it is not known.
function runSeconds({ run, seconds }: RunDetails, total: number): number | null {
  const wasResumed = Array.isArray(run.resumed) && run.resumed.length > 0;
  return wasResumed || seconds === null || seconds < total ? null : seconds;
}

function estimatedNames({ run }: RunDetails): Set<string> {
  const costs = Array.isArray(run.costs) ? run.costs : [];
  const isEstimate = (one: Plain) => one !== null && typeof one === "object" && !Array.isArray(one) && Number(one.estimated_seconds) > Number(one.seconds);
  return new Set(costs.filter(isEstimate).map((one) => String((one as { callback?: Plain }).callback)));
}

function Points({ row }: { row: CallbackRow }) {
  if (!row.points.length) return <small>no points recorded</small>;
  return (
    <ul>
      {row.points.map((one) => (
        <li key={one.point}>
          <code>{one.point}</code> {one.when} <span class="number">{one.seconds === null ? "" : span(one.seconds)}</span>
        </li>
      ))}
    </ul>
  );
}
