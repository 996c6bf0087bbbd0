// The callbacks in the order in which they run, when each of them runs, and what it costs.
import { useState } from "preact/hooks";
import { span } from "../data/format";
import { useStore } from "../data/store";
import type { CallbackRow } from "../data/types";

export function Callbacks() {
  const rows = useStore((state) => state.details?.callbacks);
  const [byCost, setByCost] = useState(false);
  if (!rows) return null;
  if (!rows.length) return <p class="hint">This run has stored no callbacks.</p>;
  const total = rows.reduce((sum, row) => sum + (row.seconds ?? 0), 0);
  const numbered = rows.map((row, index) => ({ row, number: index + 1 }));
  if (byCost) numbered.sort((a, b) => (b.row.seconds ?? 0) - (a.row.seconds ?? 0));
  const dearest = Math.max(...rows.map((row) => row.seconds ?? 0));
  return (
    <>
      <div class="segments" role="radiogroup" aria-label="Order of callbacks">
        {([[false, "In order"], [true, "By cost"]] as const).map(([value, text]) => (
          <label key={text}>
            <input type="radio" name="callback-order" checked={byCost === value} onChange={() => setByCost(value)} /> <span>{text}</span>
          </label>
        ))}
      </div>
      {total === 0 && <p class="hint">Costs are measured from the first epoch's end on.</p>}
      <ol class="callbacks" id="callbacks">
        {numbered.map(({ row, number }) => (
          <li key={row.name} class={row.seconds !== null && row.seconds === dearest && dearest > 0 ? "dearest" : ""}>
            <div class="callback-head">
              <span class="place">{number}</span>
              <b>{row.name}</b>
              <span class="number">{row.seconds === null ? (total > 0 ? <small>not measured</small> : "") : span(row.seconds)}</span>
            </div>
            {row.seconds !== null && total > 0 && <meter min={0} max={total} value={row.seconds} aria-label={`Share of ${row.name} in the time of all callbacks`} />}
            <Points row={row} />
          </li>
        ))}
      </ol>
      <p class="hint">Total time since the start of the process. Points inside the training step are estimated: one step in 64 is measured. Points without a time have not been measured: they were not called, or are called within a batch.</p>
    </>
  );
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
