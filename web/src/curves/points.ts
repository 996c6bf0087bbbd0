// A curve along an axis, ready to be drawn: positions, extremes, means and the smoothed means.
import type { Curve } from "../data/types";
import type { AxisName } from "../data/view";
import type { RunAxis } from "./axis";

export interface Points {
  x: Float64Array;
  lo: Float64Array;
  hi: Float64Array;
  mean: Float64Array;
  smooth: Float64Array | null;
  bad: readonly number[];
  curve: Curve;
  hasBand: boolean;
}

interface Cached {
  axis: RunAxis;
  name: AxisName;
  weight: number;
  points: Points;
}

const cache = new WeakMap<Curve, Cached>();

// `weight` is that of the past: 0 does not smooth. NaN stands for a missing value.
export function pointsOf(curve: Curve, axis: RunAxis, name: AxisName, weight: number): Points {
  const known = cache.get(curve);
  if (known && known.axis === axis && known.name === name && known.weight === weight) return known.points;
  const mean = numbers(curve.mean);
  const x = new Float64Array(curve.x.length);
  for (let i = 0; i < x.length; i++) x[i] = axis.position(name, (curve.x[i]! + curve.x1[i]!) / 2, curve.t[i]!);
  const [lo, hi] = [numbers(curve.lo), numbers(curve.hi)];
  const hasBand = lo.some((low, i) => low < hi[i]!);
  const smooth = weight > 0 ? smoothed(mean, weight) : null;
  const points: Points = { x, lo, hi, mean, smooth, bad: curve.bad, curve, hasBand };
  cache.set(curve, { axis, name, weight, points });
  return points;
}

function numbers(values: readonly (number | null)[]): Float64Array {
  const array = new Float64Array(values.length);
  for (let i = 0; i < array.length; i++) array[i] = values[i] ?? NaN;
  return array;
}

// An exponential moving average without a bias towards the first value.
export function smoothed(values: Float64Array, weight: number): Float64Array {
  const result = new Float64Array(values.length);
  let [sum, total] = [0, 0];
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (!Number.isFinite(value)) {
      result[i] = NaN;
      continue;
    }
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    result[i] = sum / total;
  }
  return result;
}

// The index of the point nearest to a position, or -1.
export function nearest(x: Float64Array, position: number): number {
  if (!x.length) return -1;
  let low = 0;
  let high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle]! <= position) low = middle;
    else high = middle;
  }
  return Math.abs(x[low]! - position) <= Math.abs(x[high]! - position) ? low : high;
}
