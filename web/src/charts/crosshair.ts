// The position under the pointer, shared by all charts on the screen.

type Listener = (position: number | null, source: object) => void;
const listeners = new Set<Listener>();

export function pointAt(position: number | null, source: object): void {
  for (const listener of listeners) listener(position, source);
}

export function onPoint(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}
