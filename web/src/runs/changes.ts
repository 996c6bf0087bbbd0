// Which settings have changed during a run, according to their curves.
import { curvesOf } from "../data/curve_store";
import { short } from "../data/format";
import type { Plain } from "../data/types";

const LOGGED_AS: Record<string, string> = { lr: "learning_rate" };
const SAME = 1e-6; // of the value

// The lowest and highest values of a setting if it has changed since the start; empty if it has not, or if this is unknown.
export function changeText(key: string, name: string, start: Plain | undefined): string {
  const whole = curvesOf(key)?.whole;
  const loaded = whole?.get(name) ?? whole?.get(LOGGED_AS[name] ?? "");
  if (!loaded || typeof start !== "number") return "";
  let [low, high] = [start, start];
  for (const curve of loaded.curves) {
    for (const value of curve.lo) if (value !== null && value < low) low = value;
    for (const value of curve.hi) if (value !== null && value > high) high = value;
  }
  return high - low > SAME * Math.max(Math.abs(low), Math.abs(high)) ? `changed: ${short(low, 4)} to ${short(high, 4)}` : "";
}
