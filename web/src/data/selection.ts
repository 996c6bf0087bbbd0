// Which runs are shown, and the colour of each. A run keeps its colour while it is shown.
import { get, setView } from "./store";

export const COLOURS = 10;
const MAX_SHOWN = 100; // the server sends messages about so many

export function assigned(before: ReadonlyMap<string, number>, shown: readonly string[]): Map<string, number> {
  const colours = new Map(shown.flatMap((key) => (before.has(key) ? [[key, before.get(key)!] as const] : [])));
  for (const key of shown) {
    if (colours.has(key)) continue;
    const uses = Array.from({ length: COLOURS }, (_, colour) => [...colours.values()].filter((one) => one === colour).length);
    colours.set(key, uses.indexOf(Math.min(...uses)));
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
