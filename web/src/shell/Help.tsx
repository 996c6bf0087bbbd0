// Mouse and keys.
import type { RefObject } from "preact";

const ROWS: readonly [string, string][] = [
  ["Drag across a chart", "zoom all charts to a range"],
  ["Shift + drag, or sideways wheel", "pan"],
  ["Ctrl + wheel, or pinch", "zoom"],
  ["Double-click", "show everything again"],
  ["Click a run", "show its details; its events are marked in the charts"],
  ["Click its dot", "show or hide its curves"],
  ["↑ ↓ in the table", "go through the runs"],
  ["← → on a chart", "read values; Shift pans, + and − zoom, 0 resets"],
  ["Enter on a run, twice", "go to its details"],
  ["r, c, d", "go to the runs, the curves, the details of the run"],
  ["/", "filter runs"],
  ["?", "open this help"],
];

const SIGNS: readonly [string, string][] = [
  ["line and band", "mean, and lowest to highest value"],
  ["pale and bold line", "raw and smoothed values"],
  ["dot in a line of values", "the mean of an epoch"],
  ["tick at the bottom", "a save, or several"],
  ["★ at the bottom", "a best value"],
  ["dashed line", "a command, a changed setting, or another event"],
  ["red line", "a problem"],
  ["× at the bottom", "a value that is NaN or infinite"],
];

export function Help({ dialog }: { dialog: RefObject<HTMLDialogElement | null> }) {
  return (
    <dialog ref={dialog} aria-labelledby="help-title" class="help">
      <h2 id="help-title">Mouse and keys</h2>
      <List rows={ROWS} />
      <h2>In the charts</h2>
      <List rows={SIGNS} />
      <button type="button" onClick={() => dialog.current?.close()}>Close</button>
    </dialog>
  );
}

function List({ rows }: { rows: readonly [string, string][] }) {
  return <dl>{rows.map(([what, does]) => <div key={what}><dt>{what}</dt><dd>{does}</dd></div>)}</dl>;
}
