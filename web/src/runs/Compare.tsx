// The differences between the shown runs: the best first, and the settings in which they differ.
import { useEffect } from "preact/hooks";
import { count, duration, grouped, plainText, short } from "../data/format";
import { loadSettings } from "../data/loading";
import { focus, show } from "../data/selection";
import { setView, useStore } from "../data/store";
import type { Row } from "../data/types";
import { bestOf, byBest, secondsOf } from "./arrange";
import { changeText } from "./changes";
import { commonMetric, fallen, statusOf } from "./standing";

interface Cell {
  text: string;
  change: string;
}

export function Compare() {
  useStore((state) => state.curves); // curves tell which settings have changed
  const shown = useStore((state) => state.view.shown);
  const runs = useStore((state) => state.runs);
  const settings = useStore((state) => state.settings);
  const colours = useStore((state) => state.colours);
  useEffect(() => void loadSettings(), [runs]);

  const rows = byBest(shown.flatMap((key) => runs.get(key) ?? []));
  const metric = commonMetric(rows);
  const names = [...new Set(rows.flatMap((row) => Object.keys(settings.get(row.key) ?? {})))];
  const cells = (name: string) => rows.map((row) => cellOf(row, name, settings.get(row.key)?.[name]));
  const { differing, equal } = grouping(names, cells);
  const best = bestOf([...runs.values()]);
  const hidden = runs.size - rows.length;
  return (
    <section class="compare" aria-label="Differences" id="differences">
      <header>
        <h2>Differences between {rows.length} runs</h2>
        <button type="button" class="quiet" onClick={() => setView({ compare: false })}>Close</button>
      </header>
      {hidden > 0 && (
        <p class="hint" id="not-shown">
          {count(hidden, "run")} not shown{best && !rows.includes(best) ? `, among them the best, ${best.label} (${best.best?.metric} ${short(best.best?.value)})` : ""}.{" "}
          {best && !rows.includes(best) && <button type="button" class="link" onClick={() => show([best.key, ...shown])}>Show it</button>}
        </p>
      )}
      <div class="wide">
        <table>
          <thead>
            <tr>
              <th scope="col">Best first</th>
              {rows.map((row) => (
                <th scope="col" key={row.key}>
                  <button type="button" class="link" onClick={() => focus(row.key)}>
                    <span class={`swatch run-${colours.get(row.key) ?? 0}`} /> {row.label}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            <tr>
              <th scope="row">{metric ? `best ${metric}` : "best"}</th>
              {rows.map((row) => (
                <td key={row.key} class={row === best ? "best" : ""}>
                  {row === best && "★ "}
                  {row.best ? `${metric ? "" : `${row.best.metric} `}${short(row.best.value)}` : "–"}
                  {row.best && row.best.step !== null && <small> at step {grouped(row.best.step)}</small>}
                </td>
              ))}
            </tr>
            <tr>
              <th scope="row">{metric ? `last ${metric}` : "last"}</th>
              {rows.map((row) => (
                <td key={row.key} class={fallen(row) ? "worse" : ""} title={fallen(row) || undefined}>
                  {row.last ? `${metric ? "" : `${row.last[0]} `}${short(row.last[1])}` : "–"}
                  {fallen(row) && <small> far worse</small>}
                </td>
              ))}
            </tr>
            <tr>
              <th scope="row">status</th>
              {rows.map((row) => <td key={row.key}>{statusOf(row)}</td>)}
            </tr>
            <tr>
              <th scope="row">time</th>
              {rows.map((row) => <td key={row.key}>{duration(secondsOf(row))}</td>)}
            </tr>
            {differing.length > 0 && <tr class="part"><th scope="rowgroup" colSpan={rows.length + 1}>Settings at the start</th></tr>}
            {differing.map(({ names: own, cells: ours }) => (
              <tr key={own[0]} data-setting={own[0]}>
                <th scope="row">{own.join(", ")}</th>
                {ours.map(({ text, change }, index) => (
                  <td key={rows[index]!.key} class={text === ours[0]!.text ? "" : "differs"} title={change ? "Changed during the run: its chart shows when" : undefined}>
                    {text}
                    {change && <small> {change}</small>}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="hint">
        {differing.length ? "Highlighted: different from the best of these runs." : "These runs have the same settings."} {count(equal, "setting")} {equal === 1 ? "is" : "are"} equal.{!metric && rows.some((row) => row.best) && " Runs with another metric come last."}
      </p>
    </section>
  );
}

function cellOf(row: Row, name: string, value: Parameters<typeof plainText>[0]): Cell {
  return { text: plainText(value), change: changeText(row.key, name, value) };
}

// The settings that differ; those with the same values in all runs are one row.
function grouping(names: readonly string[], cells: (name: string) => Cell[]): { differing: { names: string[]; cells: Cell[] }[]; equal: number } {
  const found = new Map<string, { names: string[]; cells: Cell[] }>();
  let equal = 0;
  for (const name of names) {
    const own = cells(name);
    const texts = own.map((cell) => JSON.stringify([cell.text, cell.change]));
    const same = found.get(texts.join());
    if (new Set(texts).size < 2) equal++;
    else if (same) same.names.push(name);
    else found.set(texts.join(), { names: [name], cells: own });
  }
  return { differing: [...found.values()], equal };
}
