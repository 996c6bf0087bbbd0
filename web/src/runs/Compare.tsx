// The differences between the shown runs: the best first, and the settings in which they differ.
import { useEffect } from "preact/hooks";
import { duration, plainText, short } from "../data/format";
import { loadSettings } from "../data/loading";
import { focus } from "../data/selection";
import { setView, useStore } from "../data/store";
import { byBest, secondsOf } from "./arrange";

export function Compare() {
  const shown = useStore((state) => state.view.shown);
  const runs = useStore((state) => state.runs);
  const settings = useStore((state) => state.settings);
  const colours = useStore((state) => state.colours);
  useEffect(() => void loadSettings(), [runs]);

  const rows = byBest(shown.flatMap((key) => runs.get(key) ?? []));
  const names = [...new Set(rows.flatMap((row) => Object.keys(settings.get(row.key) ?? {})))];
  const differing = names.filter((name) => new Set(rows.map((row) => plainText(settings.get(row.key)?.[name]))).size > 1);
  const usual = (name: string) => plainText(settings.get(rows[0]?.key ?? "")?.[name]);
  const metrics = new Set(rows.flatMap((row) => row.best?.metric ?? []));
  return (
    <section class="compare" aria-label="Differences" id="differences">
      <header>
        <h2>Differences between {rows.length} runs</h2>
        <button type="button" class="quiet" onClick={() => setView({ compare: false })}>Close</button>
      </header>
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
              <th scope="row">{metrics.size === 1 ? `best ${[...metrics][0]}` : "best"}</th>
              {rows.map((row, index) => (
                <td key={row.key} class={index === 0 && row.best ? "best" : ""}>
                  {index === 0 && row.best && "★ "}
                  {row.best ? `${metrics.size > 1 ? `${row.best.metric} ` : ""}${short(row.best.value)}` : "–"}
                </td>
              ))}
            </tr>
            <tr>
              <th scope="row">status</th>
              {rows.map((row) => <td key={row.key}>{row.status}</td>)}
            </tr>
            <tr>
              <th scope="row">time</th>
              {rows.map((row) => <td key={row.key}>{duration(secondsOf(row))}</td>)}
            </tr>
            {differing.map((name) => (
              <tr key={name} data-setting={name}>
                <th scope="row">{name}</th>
                {rows.map((row) => {
                  const text = plainText(settings.get(row.key)?.[name]);
                  return <td key={row.key} class={text === usual(name) ? "" : "differs"}>{text}</td>;
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="hint">
        {differing.length ? "Highlighted: different from the best run." : "These runs have the same settings."} {names.length - differing.length} settings are equal.{metrics.size > 1 && " Runs with another metric come last."}
      </p>
    </section>
  );
}
