// The curves of the shown runs: for the whole run, and for the zoomed range. Only charts on the screen are refreshed.
import { RunAxis, epochPairs } from "../curves/axis";
import { api } from "./api";
import { fail } from "./failures";
import { get, update } from "./store";
import type { Curve, SeriesAnswer } from "./types";

interface Loaded {
  curves: Curve[];
  version: number;
  from: number;
  to: number;
  end: number; // the last step of the run at that time
  generation: number;
}

export interface RunCurves {
  key: string;
  names: ReadonlySet<string>;
  whole: Map<string, Loaded>;
  zoomed: Map<string, Loaded>;
  axis: RunAxis;
  version: number;
  generation: number;
  complete: number;
  preview: boolean;
  problem: string; // why the file cannot be read
  note: string;
}

const AGAIN_MS = 250;
const held = new Map<string, RunCurves>();
const wanted = new Map<string, number>(); // names of charts on the screen
const loading = new Set<string>();
const again = new Set<string>();
let pixels = 500;
let unread = 0;

export const curvesOf = (key: string): RunCurves | undefined => held.get(key);

export function setPixels(width: number): void {
  pixels = Math.max(200, Math.ceil(width / 100) * 100);
}

export function forget(key: string): void {
  if (held.delete(key)) changed();
}

// Tell that a chart is on the screen. Returns a function that tells that it is gone.
export function want(name: string): () => void {
  wanted.set(name, (wanted.get(name) ?? 0) + 1);
  queueMicrotask(loadShown);
  return () => {
    const number = (wanted.get(name) ?? 1) - 1;
    if (number) wanted.set(name, number);
    else wanted.delete(name);
  };
}

export function loadShown(): void {
  for (const key of get().view.shown) void load(key);
}

// New values have arrived: load those that are on the screen.
export function refresh(key: string, version: number): void {
  const run = held.get(key);
  if (run && run.version !== version) {
    run.version = version;
    void load(key);
  }
}

export async function load(key: string): Promise<void> {
  if (loading.has(key)) {
    again.add(key);
    return;
  }
  loading.add(key);
  try {
    let isDone = false;
    while (!isDone) {
      again.delete(key);
      isDone = !(await loadOnce(key)) && !again.has(key);
    }
  } catch (error) {
    fail(error, "curves");
  } finally {
    loading.delete(key);
  }
}

// Return whether there may be more to load.
async function loadOnce(key: string): Promise<boolean> {
  if (!get().view.shown.includes(key)) return false;
  const run = held.get(key);
  if (!run) {
    const answer = await api.series(key, { pixels });
    if (get().view.shown.includes(key)) takeWhole(key, answer);
    return true;
  }
  const stale = [...wanted.keys()].filter((name) => run.names.has(name) && run.whole.get(name)?.version !== run.version);
  if (stale.length) takeWhole(key, await api.series(key, { names: stale, pixels }));
  const range = stepRange(run);
  if (range) {
    const [from, to] = range;
    const missing = [...wanted.keys()].filter((name) => run.names.has(name) && !covers(run, name, from, to));
    if (missing.length) {
      const margin = Math.max(1, Math.round(to - from));
      const [low, high] = [Math.floor(from - margin), Math.ceil(to + margin)];
      const query = { names: missing, pixels: Math.min(4000, 3 * pixels), from: low, to: high };
      const version = run.version;
      takeZoomed(run, await api.series(key, query), version, low, high);
    }
  }
  const known = held.get(key);
  if (known && !known.preview && !known.problem && known.complete < 1) {
    known.version = --unread; // the server reads on: everything is stale
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    return true;
  }
  return false;
}

// The zoomed range in steps of a run.
function stepRange(run: RunCurves): [number, number] | null {
  const { range, axis } = get().view;
  return range && [run.axis.step(axis, range[0]), run.axis.step(axis, range[1])];
}

// Whether a curve is loaded for a range, in the resolution that the range needs. New values come after the end of the run.
function covers(run: RunCurves, name: string, from: number, to: number): boolean {
  const zoomed = run.zoomed.get(name);
  if (!zoomed || zoomed.generation !== run.generation || zoomed.from > Math.floor(from) || zoomed.to < Math.ceil(to)) return false;
  if (zoomed.to - zoomed.from > 6 * Math.max(1, to - from)) return false;
  const isPast = zoomed.to < zoomed.end && endOf(run) >= zoomed.end && zoomed.curves.every((curve) => curve.exact);
  return isPast || zoomed.version === run.version;
}

function endOf(run: RunCurves): number {
  let end = -Infinity;
  for (const { curves } of run.whole.values()) for (const curve of curves) end = Math.max(end, curve.x1.at(-1) ?? -Infinity);
  return end;
}

function takeWhole(key: string, answer: SeriesAnswer): void {
  const run = held.get(key) ?? empty(key);
  for (const [name, curves] of byName(answer)) {
    run.whole.set(name, { curves, version: answer.version, from: -Infinity, to: Infinity, end: Infinity, generation: answer.generation });
  }
  run.names = new Set(answer.all);
  take(run, answer);
  run.version = answer.version;
  run.axis = axisOf(run, answer);
  held.set(key, run);
  changed();
}

function take(run: RunCurves, { complete, preview, generation, problem, note }: SeriesAnswer): void {
  Object.assign(run, { complete, preview, generation, problem, note });
}

function takeZoomed(run: RunCurves, answer: SeriesAnswer, version: number, from: number, to: number): void {
  const end = endOf(run);
  const { generation } = answer;
  run.generation = generation;
  for (const [name, curves] of byName(answer)) run.zoomed.set(name, { curves, version, from, to, end, generation });
  changed();
}

function byName(answer: SeriesAnswer): Map<string, Curve[]> {
  const found = new Map<string, Curve[]>();
  for (const curve of answer.curves) found.set(curve.name, [...(found.get(curve.name) ?? []), curve]);
  return found;
}

function empty(key: string): RunCurves {
  const axis = new RunAxis([], [], 0);
  const nothing = { version: 0, generation: 0, complete: 0, preview: false, problem: "", note: "" };
  return { key, names: new Set(), whole: new Map(), zoomed: new Map(), axis, ...nothing };
}

// The longest curve tells when each step was.
function axisOf(run: RunCurves, answer: SeriesAnswer): RunAxis {
  let longest: Curve | null = null;
  for (const { curves } of run.whole.values()) {
    for (const curve of curves) if (curve.x.length > (longest?.x.length ?? 0)) longest = curve;
  }
  const times = longest ? longest.x.map((step, i) => [step, longest.t[i]!] as const) : [];
  const started = get().runs.get(run.key)?.started;
  const first = Math.min(...times.slice(0, 1).map((pair) => pair[1]));
  const stated = started ? Date.parse(started) / 1000 : NaN;
  const begin = Number.isFinite(stated) && !(stated > first) ? stated : Number.isFinite(first) ? first : 0;
  return new RunAxis(epochPairs(answer.epochs), times, begin);
}

// The curves of a metric to draw: those of the zoomed range if they are there.
export function drawn(run: RunCurves, name: string, isZoomed: boolean): Curve[] {
  const { range, axis } = get().view;
  const zoomed = isZoomed && range ? run.zoomed.get(name) : undefined;
  if (zoomed && range && zoomed.generation === run.generation) {
    const [from, to] = [run.axis.step(axis, range[0]), run.axis.step(axis, range[1])];
    if (zoomed.from <= from && zoomed.to >= to) return zoomed.curves;
  }
  return run.whole.get(name)?.curves ?? [];
}

// Load the curves of a metric again, in the resolution that charts have now.
export function reload(name: string): void {
  for (const run of held.values()) {
    const loaded = run.whole.get(name);
    if (loaded) loaded.version = NaN;
  }
  loadShown();
}

function changed(): void {
  update({ curves: get().curves + 1 });
}
