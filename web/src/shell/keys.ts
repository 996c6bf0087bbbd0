// Keys that work everywhere, except while somebody types.
import type { Screen } from "../data/view";
import { goTo } from "./places";

const PLACES: Record<string, Screen> = { r: "runs", c: "curves", d: "run" };

export function followKeys(): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    const types = target.closest("input:not([type=checkbox], [type=radio], [type=range]), select, textarea, dialog[open]");
    if (types || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("find-run")?.focus();
    } else if (event.key in PLACES) {
      event.preventDefault();
      goTo(PLACES[event.key]!);
    } else if (event.key === "?") {
      document.getElementById("help")?.click();
    }
  });
}
