// Where a run stands: its status, and its last value beside its best.
import { grouped, short } from "../data/format";
import type { Row } from "../data/types";

const FAR = 0.25; // of the best value
const LOWER_IS_BETTER = /loss|err|perplexity/i;

export const statusOf = (row: Row): string => (row.status === "running" && row.paused ? "paused" : row.status);

// The best value with its step, without its metric.
export function bestText(row: Row, digits = 5): string {
  if (!row.best) return "–";
  return short(row.best.value, digits) + (row.best.step === null ? "" : ` at step ${grouped(row.best.step)}`);
}

// Why a run's best value may mislead: its last value is far worse, or no number. Empty if it does not.
export function fallen(row: Row): string {
  const { best, last } = row;
  if (!best || !last || last[0] !== best.metric || typeof best.value !== "number") return "";
  const mode = best.mode ?? (LOWER_IS_BETTER.test(best.metric) ? "min" : null); // unknown while the run is in progress
  if (mode === null) return "";
  const worse = typeof last[1] === "number" ? (mode === "max" ? best.value - last[1] : last[1] - best.value) : Infinity;
  return worse > FAR * Math.abs(best.value) ? `The last ${best.metric} is far worse than the best, ${bestText(row)}` : "";
}

// The metric of the best values, if it is the same for all runs.
export function commonMetric(rows: Iterable<Row>): string {
  const metrics = new Set([...rows].flatMap((row) => row.best?.metric ?? []));
  return metrics.size === 1 ? [...metrics][0]! : "";
}
