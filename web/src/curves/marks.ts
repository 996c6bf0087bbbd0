// Events as marks in charts, and which of them happened near a step.
import type { RunEvent } from "../data/types";

export type MarkKind = "save" | "command" | "best" | "problem" | "other";

export interface Mark {
  kind: MarkKind;
  step: number;
  time: number;
  text: string;
}

const PROBLEMS = new Set(["exception", "save_failed", "save_refused", "signal", "setting_refused"]);
const KINDS: Record<string, MarkKind> = { save: "save", control: "command", setting: "command", stop: "command", best: "best", top: "best" };

export const kindOf = (event: RunEvent): MarkKind => (PROBLEMS.has(event.event) ? "problem" : (KINDS[event.event] ?? "other"));

// An event that a command caused is in the command's own text: an applied command also writes a "setting" event.
export function marksOf(events: readonly RunEvent[]): Mark[] {
  return events
    .filter((event) => Number.isFinite(event.step) && Number.isFinite(event.time))
    .map((event) => ({ kind: kindOf(event), step: event.step, time: event.time, text: event.text }));
}
