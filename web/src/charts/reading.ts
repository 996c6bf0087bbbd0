// The values at a position of a chart, as text for the tip and for screen readers.
import { nearest } from "../curves/points";
import { compact, count, duration, grouped, short } from "../data/format";
import type { AxisName } from "../data/view";
import type { Content, Line, PlacedMark } from "./content";

export interface Reading {
  title: string;
  where: string;
  rows: { key: string; colour: number; label: string; value: string; more: string }[];
  marks: string[]; // the first of them names the run
}

const MAX_ROWS = 12;
const MAX_MARKS = 4;
const ORDER: readonly PlacedMark["kind"][] = ["problem", "command", "other", "best"];

// `reach` is how far a mark may be away.
export function reading(content: Content, position: number, reach: number): Reading {
  const rows: (Reading["rows"][number] & { number: number })[] = [];
  const means = new Map<string, string>(); // of epochs, by run
  let step: number | null = null;
  for (const line of content.lines) {
    const { points } = line;
    const i = nearest(points.x, position);
    if (i < 0 || !isNear(points.x, position, reach)) continue;
    if (line.areMeans) {
      if (Math.abs(points.x[i]! - position) <= reach) means.set(line.key, meanText(line, i));
      continue;
    }
    step ??= points.curve.x[i]!;
    const number = (points.smooth ?? points.mean)[i]!;
    const [lo, hi] = [points.lo[i]!, points.hi[i]!];
    const range = lo < hi ? `${short(lo, 4)} to ${short(hi, 4)}` : "";
    const raw = points.smooth ? `raw ${short(points.mean[i]!, 4)}` : "";
    const bad = points.bad[i] ? `${points.bad[i]} not finite` : "";
    const more = [raw, range, bad].filter(Boolean).join(", ");
    rows.push({ key: line.key, colour: line.colour, label: line.label, value: Number.isNaN(number) ? "NaN" : short(number), more, number });
  }
  for (const row of rows) row.more = [row.more, means.get(row.key)].filter(Boolean).join(", ");
  rows.sort((a, b) => b.number - a.number);
  const marks = content.marks.filter((mark) => Math.abs(mark.x - position) <= reach);
  const texts = marks.length ? [`Events of ${content.marked}`, ...markTexts(marks, position)] : [];
  return { title: content.title, where: whereText(content.axis, position, step), rows: rows.slice(0, MAX_ROWS), marks: texts };
}

// An epoch's mean is a point at its end: next to a value from the next epoch, only the epoch number distinguishes them.
function meanText(line: Line, i: number): string {
  const { curve, mean } = line.points;
  const step = curve.x1[i]!;
  const which = line.axis.epochs.length > 1 ? `epoch ${Math.round(line.axis.position("epoch", step, curve.t[i]!))}` : `the epoch until step ${grouped(step)}`;
  return `mean of ${which}: ${short(mean[i]!, 4)}`;
}

// Whether a curve reaches a position.
function isNear(x: Float64Array, position: number, reach: number): boolean {
  return x.length === 1 || (position >= x[0]! - reach && position <= x.at(-1)! + reach);
}

function whereText(axis: AxisName, position: number, step: number | null): string {
  const at = step === null ? "" : `step ${grouped(step)}`;
  if (axis === "step") return at || `step ${compact(Math.round(position))}`;
  const here = axis === "epoch" ? `epoch ${short(position, 4)}` : duration(position);
  return at ? `${here} (${at})` : here;
}

// Saves are routine: they are one line, the last.
function markTexts(marks: PlacedMark[], position: number): string[] {
  const saves = marks.filter((mark) => mark.kind === "save");
  const others = marks.filter((mark) => mark.kind !== "save");
  others.sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind) || Math.abs(a.x - position) - Math.abs(b.x - position));
  const texts = others.slice(0, MAX_MARKS).map((mark) => `step ${grouped(mark.step)}: ${mark.text}`);
  if (others.length > MAX_MARKS) texts.push(`and ${count(others.length - MAX_MARKS, "more event")}`);
  const [first, last] = [saves[0], saves.at(-1)];
  if (first && last) texts.push(first === last ? `step ${grouped(first.step)}: ${first.text}` : `${count(saves.length, "save")}, steps ${grouped(first.step)} to ${grouped(last.step)}`);
  return texts;
}
