// The page's state: one object that is replaced as a whole. Components read parts of it with `useStore`.
import { useEffect, useReducer, useRef } from "preact/hooks";
import type { RunDetails, RunEvent, Row, Settings } from "./types";
import { type View, firstView } from "./view";

// live: messages arrive. lost: the server does not answer. denied: it was restarted with another token.
export type Connection = "loading" | "live" | "lost" | "denied";

export interface State {
  view: View;
  runs: ReadonlyMap<string, Row>;
  colours: ReadonlyMap<string, number>;
  settings: ReadonlyMap<string, Settings>;
  details: RunDetails | null;
  detailsError: string;
  events: ReadonlyMap<string, readonly RunEvent[]>;
  curves: number;
  connection: Connection;
  heard: number;
  table: number | null;
  readOnly: boolean;
  error: string;
  notice: string;
}

let state: State = {
  view: firstView,
  runs: new Map(),
  colours: new Map(),
  settings: new Map(),
  details: null,
  detailsError: "",
  events: new Map(),
  curves: 0,
  connection: "loading",
  heard: 0,
  table: null,
  readOnly: false,
  error: "",
  notice: "",
};

type Listener = () => void;
const listeners = new Set<Listener>();
let isDue = false;

export const get = (): State => state;

export function update(changes: Partial<State>): void {
  state = { ...state, ...changes };
  if (isDue) return;
  isDue = true;
  queueMicrotask(() => {
    isDue = false;
    for (const listener of [...listeners]) listener();
  });
}

export function setView(changes: Partial<View>): void {
  update({ view: { ...state.view, ...changes } });
}

export function listen(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// Render again when the selected part changes. A part that is created anew each time must be compared by `isSame`.
export function useStore<T>(select: (state: State) => T, isSame: (a: T, b: T) => boolean = Object.is): T {
  const [, render] = useReducer((count: number) => count + 1, 0);
  const latest = useRef<{ select: typeof select; value: T }>({ select, value: select(state) });
  const value = select(state);
  latest.current = { select, value: isSame(latest.current.value, value) ? latest.current.value : value };
  useEffect(
    () =>
      listen(() => {
        const known = latest.current;
        if (!isSame(known.value, known.select(state))) render(0);
      }),
    [],
  );
  return latest.current.value;
}

export function sameItems<T>(a: readonly T[], b: readonly T[]): boolean {
  return a.length === b.length && a.every((one, index) => one === b[index]);
}
