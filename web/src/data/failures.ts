// What a failed request means for the page.
import { Denied, Unreachable } from "./api";
import { get, update } from "./store";

export function fail(error: unknown, what: string): void {
  if (error instanceof Denied) update({ connection: "denied" });
  else if (error instanceof Unreachable) {
    if (get().connection !== "denied") update({ connection: "lost" });
  } else update({ error: `${what}: ${error instanceof Error ? error.message : String(error)}` });
}
