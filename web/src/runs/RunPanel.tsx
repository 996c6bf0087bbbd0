// The runs with their filter, columns, groups, and the button that compares them.
import { useEffect, useState } from "preact/hooks";
import { count } from "../data/format";
import { loadSettings } from "../data/loading";
import { show } from "../data/selection";
import { get, setView, useStore } from "../data/store";
import { byBest, matches } from "./arrange";
import { RunTable } from "./RunTable";

const MOST = 20; // runs shown by one click

export function RunPanel() {
  const view = useStore((state) => state.view);
  const number = useStore((state) => state.runs.size);
  const settings = useStore((state) => state.settings);
  const [isOpen, setOpen] = useState(false);
  const names = [...new Set([...settings.values()].flatMap(Object.keys))].sort();

  useEffect(() => {
    if (isOpen || view.columns.length || view.group) void loadSettings();
  }, [number]);

  const showBest = () => {
    const rows = [...get().runs.values()].filter((row) => matches(row, view.filter, (key) => settings.get(key)));
    const keys = byBest(rows.filter((row) => row.best)).slice(0, 5).map((row) => row.key);
    show(keys);
  };
  const showMatching = () => {
    const rows = [...get().runs.values()].filter((row) => matches(row, view.filter, (key) => settings.get(key)));
    show(rows.slice(0, MOST).map((row) => row.key));
  };
  const toggleColumn = (name: string) =>
    setView({ columns: view.columns.includes(name) ? view.columns.filter((one) => one !== name) : [...view.columns, name] });

  return (
    <>
      <div class="run-tools">
        <input
          type="search"
          id="find-run"
          placeholder="Filter: name, status, lr=0.1"
          aria-label="Filter runs by name, status or setting=value"
          value={view.filter}
          onInput={(event) => setView({ filter: event.currentTarget.value })}
        />
        <div class="run-buttons">
          <button type="button" id="compare" aria-pressed={view.compare} disabled={view.shown.length < 2} title={view.shown.length < 2 ? "Show two or more runs to compare them" : "What differs between the shown runs"} onClick={() => setView({ compare: !view.compare, screen: "curves" })}>
            Differences
          </button>
          <button type="button" onClick={showBest} title="Show the curves of the five best runs">Best 5</button>
          {view.filter && <button type="button" onClick={showMatching} title={`Show the curves of the matching runs, at most ${MOST}`}>Matching</button>}
          <button type="button" onClick={() => show([])} disabled={!view.shown.length}>None</button>
          <button
            type="button"
            id="columns"
            aria-expanded={isOpen}
            onClick={() => {
              void loadSettings();
              setOpen(!isOpen);
            }}
          >
            Columns
          </button>
        </div>
        {isOpen && (
          <div class="columns">
            <label>
              Group by{" "}
              <select id="group" value={view.group} onChange={(event) => setView({ group: event.currentTarget.value })}>
                <option value="">nothing</option>
                {names.map((name) => <option key={name} value={name}>{name}</option>)}
              </select>
            </label>
            <fieldset>
              <legend>Settings to show</legend>
              {names.map((name) => (
                <label class="check" key={name}>
                  <input type="checkbox" checked={view.columns.includes(name)} onChange={() => toggleColumn(name)} /> {name}
                </label>
              ))}
              {!names.length && <p class="hint">These runs have stored no settings. Pass config={"{…}"} to Runner or Loop.</p>}
            </fieldset>
          </div>
        )}
      </div>
      <RunTable />
      <p class="run-count" id="count">{count(number, "run")}, {view.shown.length} shown</p>
    </>
  );
}
