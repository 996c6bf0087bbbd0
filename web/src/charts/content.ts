// What a chart draws: a line for each run, and the marks of the focused one.
import type { RunAxis } from "../curves/axis";
import type { Mark } from "../curves/marks";
import type { Points } from "../curves/points";
import type { AxisName } from "../data/view";
import type { Range } from "./viewport";

export interface Line {
  key: string;
  label: string;
  colour: number;
  points: Points;
  axis: RunAxis;
  areMeans: boolean; // of epochs, in a chart that has all values too: dots without a line
}

export interface PlacedMark extends Mark {
  x: number;
}

export interface Content {
  title: string;
  lines: readonly Line[];
  marks: readonly PlacedMark[];
  marked: string; // the name of the run that the marks belong to
  axis: AxisName;
  isLog: boolean;
  extent: Range; // of all charts, without a zoom
}

// The lowest and highest values in a range of x, with a margin. On a log scale, only positive ones count.
export function yRange(content: Content, range: Range): Range {
  let [low, high] = [Infinity, -Infinity];
  const take = (value: number) => {
    if (!Number.isFinite(value) || (content.isLog && value <= 0)) return;
    if (value < low) low = value;
    if (value > high) high = value;
  };
  for (const { points } of content.lines) {
    const { x, lo, hi } = points;
    for (let i = 0; i < x.length; i++) {
      const isInside = x[i]! >= range[0] && x[i]! <= range[1];
      const isBeside = (i + 1 < x.length && x[i]! < range[0] && x[i + 1]! > range[0]) || (i > 0 && x[i]! > range[1] && x[i - 1]! < range[1]);
      if (!isInside && !isBeside) continue;
      take(lo[i]!);
      take(hi[i]!);
    }
  }
  if (low > high) return content.isLog ? [0.1, 1] : [0, 1];
  if (content.isLog) {
    const margin = Math.max(1.05, (high / low) ** 0.06);
    return [low / margin, high * margin];
  }
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}

// The highest value that a chart shows: spikes are never averaged away.
export function highest(content: Content): number {
  let high = -Infinity;
  for (const { points } of content.lines) for (const value of points.hi) if (value > high) high = value;
  return high;
}

// Whether two contents look the same. Points are the same object as long as their values are.
export function isSameContent(a: Content, b: Content): boolean {
  return (
    a.isLog === b.isLog &&
    a.axis === b.axis &&
    a.marks === b.marks &&
    a.extent[0] === b.extent[0] &&
    a.extent[1] === b.extent[1] &&
    a.lines.length === b.lines.length &&
    a.lines.every((line, i) => line.points === b.lines[i]!.points && line.colour === b.lines[i]!.colour && line.label === b.lines[i]!.label)
  );
}
