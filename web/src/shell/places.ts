// The three parts of the page, and how the keyboard gets to each of them without passing everything between.
import { setView } from "../data/store";
import type { Screen } from "../data/view";

const TARGETS: Record<Screen, string> = {
  runs: "#runs button.name[aria-current=true], #runs button.name",
  curves: ".curves .plot",
  run: ".run-panel [role=tab][aria-selected=true]",
};

export function goTo(place: Screen): void {
  setView({ screen: place });
  requestAnimationFrame(() => document.querySelector<HTMLElement>(TARGETS[place])?.focus());
}
