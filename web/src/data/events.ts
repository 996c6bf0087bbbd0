// The events of runs. They arrive by request and as messages, so each of them may arrive twice.
import { get, update } from "./store";
import type { RunEvent } from "./types";

const MAX_EVENTS = 2000;

const identity = (event: RunEvent): string => [event.time, event.step, event.event, event.id ?? event.text].join(" ");

// Add a message to the events of its run, if these are loaded.
export function keepEvent(key: string, event: RunEvent): void {
  const known = get().events.get(key);
  if (known && !known.slice(-50).some((one) => identity(one) === identity(event))) put(key, [...known, event]);
}

// Take the events that the server has read. Messages from the stream may have arrived first.
export function takeEvents(key: string, answer: readonly RunEvent[]): void {
  const known = get().events.get(key) ?? [];
  const [last, newest] = [answer.at(-1), known.at(-1)];
  const read = new Set(answer.map(identity));
  const later = known.filter((event) => (!last || event.time >= last.time) && !read.has(identity(event)));
  const isSame = known.length === answer.length && !later.length && (!last || !newest || identity(last) === identity(newest));
  if (!isSame || !get().events.has(key)) put(key, [...answer, ...later]);
}

function put(key: string, events: readonly RunEvent[]): void {
  update({ events: new Map(get().events).set(key, events.slice(-MAX_EVENTS)) });
}
