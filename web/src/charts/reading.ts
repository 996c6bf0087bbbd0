// The values at a position of a chart, as text for the tip and for screen readers.
import { nearest } from "../curves/points";
import { compact, duration, short } from "../data/format";
import type { AxisName } from "../data/view";
import type { Content, PlacedMark } from "./content";

export interface Reading {
  where: string;
  rows: { key: string; colour: number; label: string; value: string; more: string }[];
  marks: string[];
}

const MAX_ROWS = 12;
const MAX_MARKS = 4;

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
      if (Math.abs(points.x[i]! - position) <= reach) means.set(line.key, `epoch mean ${short(points.mean[i]!, 4)}`);
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
  return { where: whereText(content.axis, position, step), rows: rows.slice(0, MAX_ROWS), marks: markTexts(marks, position) };
}

// Whether a curve reaches a position.
function isNear(x: Float64Array, position: number, reach: number): boolean {
  return x.length === 1 || (position >= x[0]! - reach && position <= x.at(-1)! + reach);
}

function whereText(axis: AxisName, position: number, step: number | null): string {
  const at = step === null ? "" : `step ${step.toLocaleString("en-US")}`;
  if (axis === "step") return at || `step ${compact(Math.round(position))}`;
  const here = axis === "epoch" ? `epoch ${short(position, 4)}` : duration(position);
  return at ? `${here} (${at})` : here;
}

function markTexts(marks: PlacedMark[], position: number): string[] {
  const near = [...marks].sort((a, b) => Number(a.kind === "save") - Number(b.kind === "save") || Math.abs(a.x - position) - Math.abs(b.x - position));
  const texts = near.slice(0, MAX_MARKS).map((mark) => `step ${mark.step.toLocaleString("en-US")}: ${mark.text}`);
  return near.length > MAX_MARKS ? [...texts, `and ${near.length - MAX_MARKS} more events`] : texts;
}
