// Which runs are shown, and the colour of each.
import { get, setView } from "./store";
import type { Row } from "./types";

export const COLOURS = 10;
const MAX_SHOWN = 100; // the server sends messages about so many

// A run has the colour of its place among all runs, the oldest first, and keeps it: up to ten runs never share one. With more
// runs, one that is shown takes another colour if its own is in use.
export function assigned(before: ReadonlyMap<string, number>, shown: readonly string[], runs: ReadonlyMap<string, Row>): Map<string, number> {
  const oldest = [...runs.values()].sort((a, b) => (a.started ?? "").localeCompare(b.started ?? "") || a.label.localeCompare(b.label));
  const places = new Map(oldest.map((row, index) => [row.key, index % COLOURS]));
  const colours = new Map(before);
  const uses = new Array<number>(COLOURS).fill(0);
  for (const key of shown) {
    const own = colours.get(key) ?? places.get(key) ?? 0;
    const colour = uses[own] === Math.min(...uses) ? own : uses.indexOf(Math.min(...uses));
    uses[colour]!++;
    colours.set(key, colour);
  }
  return colours;
}

export function show(keys: readonly string[]): void {
  setView({ shown: [...new Set(keys)].slice(0, MAX_SHOWN) });
}

export function toggle(key: string): void {
  const { shown } = get().view;
  show(shown.includes(key) ? shown.filter((one) => one !== key) : [...shown, key]);
}

// Show a run's details, and its curves.
export function focus(key: string): void {
  const { shown } = get().view;
  if (!shown.includes(key)) show([...shown, key]);
  setView({ focus: key });
}
