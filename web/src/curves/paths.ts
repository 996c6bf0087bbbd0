// Points as paths in pixels. A path is built once for a scale; a pan only moves it.
import type { Points } from "./points";

export interface Scale {
  perUnit: number; // pixels of a unit of x
  anchor: number; // the position at pixel 0
  y: (value: number) => number;
  height: number;
  isLog: boolean;
}

export interface Paths {
  band: Path2D | null; // of points that are apart
  columns: Int32Array | null; // of dense points: left, top and height of each column of pixels
  isDense: boolean;
  line: Path2D;
  smooth: Path2D | null;
  dots: Path2D | null;
  bad: number[]; // pixels of values that are not finite
}

const MAX_DOTS = 60;
const DENSE = 3; // pixels between points

export function pathsOf(points: Points, scale: Scale, radius: number, onlyDots: boolean): Paths {
  const px = (value: number) => (value - scale.anchor) * scale.perUnit;
  const usable = (value: number) => Number.isFinite(value) && (!scale.isLog || value > 0);
  const bad = points.bad.flatMap((count, i) => (count ? [px(points.x[i]!)] : []));
  const isSparse = points.x.length <= MAX_DOTS;
  const width = points.x.length > 1 ? px(points.x.at(-1)!) - px(points.x[0]!) : 0;
  const isDense = !isSparse && width / points.x.length < DENSE;
  const hasBand = points.hasBand && !onlyDots;
  return {
    band: hasBand && !isDense ? band(points, px, scale, usable) : null,
    columns: hasBand && isDense ? columns(points, px, scale, usable) : null,
    isDense,
    line: onlyDots ? new Path2D() : line(points.x, points.mean, px, scale.y, usable),
    smooth: points.smooth && !onlyDots ? line(points.x, points.smooth, px, scale.y, usable) : null,
    dots: isSparse || onlyDots ? dots(points, px, scale.y, usable, radius) : null,
    bad,
  };
}

type Pixel = (value: number) => number;
type Usable = (value: number) => boolean;

function line(x: Float64Array, values: Float64Array, px: Pixel, py: Pixel, usable: Usable): Path2D {
  const path = new Path2D();
  let isOpen = false;
  for (let i = 0; i < x.length; i++) {
    if (!usable(values[i]!)) {
      isOpen = false;
    } else if (isOpen) {
      path.lineTo(px(x[i]!), py(values[i]!));
    } else {
      path.moveTo(px(x[i]!), py(values[i]!));
      isOpen = true;
    }
  }
  return path;
}

// From the lowest to the highest values. Without a usable lowest value, as on a log scale, it reaches the bottom.
function band(points: Points, px: Pixel, scale: Scale, usable: Usable): Path2D {
  const path = new Path2D();
  const { x, lo, hi } = points;
  for (let begin = 0; begin < x.length; begin++) {
    if (!usable(hi[begin]!)) continue;
    let end = begin;
    while (end < x.length && usable(hi[end]!)) end++;
    const low = (i: number) => (usable(lo[i]!) ? scale.y(lo[i]!) : scale.height);
    if (end - begin === 1) {
      const top = scale.y(hi[begin]!);
      path.rect(px(x[begin]!) - 1, top, 2, Math.max(1, low(begin) - top));
    } else {
      path.moveTo(px(x[begin]!), scale.y(hi[begin]!));
      for (let i = begin + 1; i < end; i++) path.lineTo(px(x[i]!), scale.y(hi[i]!));
      for (let i = end - 1; i >= begin; i--) path.lineTo(px(x[i]!), low(i));
      path.closePath();
    }
    begin = end;
  }
  return path;
}

// A polygon with a thousand corners takes ten times as long as these rectangles.
function columns(points: Points, px: Pixel, scale: Scale, usable: Usable): Int32Array {
  const found: number[] = [];
  const { x, lo, hi } = points;
  for (let i = 0; i < x.length; i++) {
    if (!usable(hi[i]!)) continue;
    const left = Math.floor(px(x[i]!));
    const top = Math.floor(scale.y(hi[i]!));
    const bottom = Math.ceil(usable(lo[i]!) ? scale.y(lo[i]!) : scale.height);
    const last = found.length - 3;
    if (last >= 0 && found[last] === left) {
      const end = Math.max(found[last + 1]! + found[last + 2]!, bottom);
      found[last + 1] = Math.min(found[last + 1]!, top);
      found[last + 2] = end - found[last + 1]!;
    } else found.push(left, top, Math.max(1, bottom - top));
  }
  return Int32Array.from(found);
}

function dots(points: Points, px: Pixel, py: Pixel, usable: Usable, radius: number): Path2D {
  const path = new Path2D();
  for (let i = 0; i < points.x.length; i++) {
    if (!usable(points.mean[i]!)) continue;
    const [x, y] = [px(points.x[i]!), py(points.mean[i]!)];
    path.moveTo(x + radius, y);
    path.arc(x, y, radius, 0, 2 * Math.PI);
  }
  return path;
}
