// Positions along the x axis: steps, epochs or seconds since the start of the run, and back to steps.
import type { AxisName } from "../data/view";

type Pairs = readonly (readonly [number, number])[];

export class RunAxis {
  constructor(
    readonly epochs: Pairs,
    readonly times: Pairs,
    readonly started: number,
  ) {}

  // Whether positions along the epoch axis are epochs: without two pairs, they are steps.
  get hasEpochs(): boolean {
    return this.epochs.length > 1;
  }

  position(axis: AxisName, step: number, time: number): number {
    if (axis === "time") return time - this.started;
    return axis === "epoch" ? interpolated(this.epochs, step, 0, 1) : step;
  }

  step(axis: AxisName, position: number): number {
    if (axis === "step") return position;
    return axis === "epoch" ? interpolated(this.epochs, position, 1, 0) : interpolated(this.times, position + this.started, 1, 0);
  }
}

// The ends of epochs as pairs of step and epoch. An epoch in progress is as long as the one before.
export function epochPairs(ends: Pairs): Pairs {
  const pairs: [number, number][] = [];
  for (const [step, epoch] of ends) {
    const before = pairs.at(-1);
    if (!before) {
      if (epoch === 1) pairs.push([0, 0]);
    } else if (step <= before[0]) continue;
    pairs.push([step, epoch]);
  }
  const [earlier, before, last] = pairs.slice(-3);
  if (earlier && before && last) {
    const usual = (before[0] - earlier[0]) / (before[1] - earlier[1]);
    const length = (last[0] - before[0]) / (last[1] - before[1]);
    if (length < usual * 0.99) pairs[pairs.length - 1] = [before[0] + usual * (last[1] - before[1]), last[1]];
  }
  return pairs;
}

// Linear between neighbours, and beyond the ends. Without two pairs, nothing is known: the value itself.
function interpolated(pairs: Pairs, value: number, from: 0 | 1, to: 0 | 1): number {
  if (pairs.length < 2) return value;
  let low = 0;
  let high = pairs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (pairs[middle]![from] <= value) low = middle;
    else high = middle;
  }
  const [a, b] = [pairs[low]!, pairs[high]!];
  const width = b[from] - a[from];
  return width === 0 ? a[to] : a[to] + ((value - a[from]) / width) * (b[to] - a[to]);
}
