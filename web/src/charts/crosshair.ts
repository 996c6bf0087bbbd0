// The position that is read, shared by all charts on the screen. One chart owns it: that under the pointer or with the focus.

type Listener = (position: number | null) => void;
const listeners = new Set<Listener>();
let owner: object | null = null;
let shared: number | null = null;

export const isOwner = (chart: object): boolean => owner === chart;
export const sharedPosition = (): number | null => shared;

export function pointAt(position: number, chart: object): void {
  owner = chart;
  shared = position;
  tell();
}

// Only the owner can end it: another chart may have the pointer by now.
export function release(chart: object): void {
  if (owner !== chart) return;
  owner = shared = null;
  tell();
}

function tell(): void {
  for (const listener of listeners) listener(shared);
}

export function onPoint(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
