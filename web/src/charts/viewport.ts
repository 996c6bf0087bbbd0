// The x range that all charts share. Charts follow it at once; the view, and with it the link and the data, when it rests.
import { get, setView } from "../data/store";

export type Range = readonly [number, number];

const REST_MS = 150;
const listeners = new Set<() => void>();
let range: Range | null | undefined;
let resting: ReturnType<typeof setTimeout> | undefined;
let frame = 0;

export function currentRange(): Range | null {
  return range === undefined ? get().view.range : range;
}

export const isMoving = (): boolean => range !== undefined;

export function onMove(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// Move all charts in the next frame.
export function moveTo(next: Range | null): void {
  range = next;
  clearTimeout(resting);
  resting = setTimeout(rest, REST_MS);
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    for (const listener of listeners) listener();
  });
}

function rest(): void {
  if (range === undefined) return;
  setView({ range });
  range = undefined;
  for (const listener of listeners) listener();
}

export function zoomTo(next: Range | null): void {
  range = next;
  rest();
}

export function pan(from: Range, by: number): void {
  moveTo([from[0] + by, from[1] + by]);
}

export function zoomAround(from: Range, at: number, factor: number): void {
  moveTo([at - (at - from[0]) * factor, at + (from[1] - at) * factor]);
}
