// Send commands to the focused run, and remember what was asked here and what became of it.
import { api } from "../data/api";
import { fail } from "../data/failures";
import { loadDetails, loadEvents } from "../data/loading";
import { get } from "../data/store";
import { onAnswer } from "../data/stream";
import type { Answer } from "../data/types";

export interface Request {
  number: number;
  id?: string | undefined; // of the command, once it is sent
  run: string;
  text: string;
  status: string; // "waiting", "error", or the status of the answer
  answer: string;
}

const MOST = 5;
const KEPT = 50;
const arrived = new Map<string, Answer>(); // answers from the stream, which may come before that of the request
let requests: readonly Request[] = [];
let counter = 0;
const listeners = new Set<() => void>();

export const requestsOf = (run: string | null): Request[] => requests.filter((one) => one.run === run);

export function onRequests(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function put(request: Request): void {
  const others = requests.filter((one) => one.number !== request.number);
  requests = [request, ...others].sort((a, b) => b.number - a.number).slice(0, 4 * MOST);
  for (const listener of listeners) listener();
}

function finish(request: Request, answer: Answer): void {
  put({ ...request, status: answer.status, answer: answer.text });
}

// A run that is paused or busy answers later.
onAnswer((answer) => {
  if (answer.id === undefined) return;
  arrived.set(answer.id, answer);
  if (arrived.size > KEPT) arrived.delete(arrived.keys().next().value!);
  const request = requests.find((one) => one.id === answer.id);
  if (request) finish(request, answer);
});

// Nothing was sent: say why.
export function refuse(text: string, reason: string): void {
  const run = get().view.focus;
  if (run !== null) put({ number: ++counter, run, text, status: "error", answer: reason });
}

// The last applied command that has set a setting: its id, a description, and whether this page has sent it.
export function lastSetting(name: string): { id: string; text: string; isOwn: boolean } | undefined {
  const run = get().view.focus;
  const found = (run === null ? undefined : get().events.get(run))?.findLast(
    ({ event, status, now }) => event === "control" && status === "applied" && typeof now === "object" && now !== null && name in now,
  );
  const id = String(found?.id);
  return found && { id, text: `${found.text} at step ${found.step}`, isOwn: requests.some((one) => one.id === id) };
}

export async function command(what: string, args: object, text: string): Promise<void> {
  const run = get().view.focus;
  if (run === null) return;
  const request: Request = { number: ++counter, run, text, status: "waiting", answer: "waiting for the run …" };
  put(request);
  try {
    const answer = await api.command(run, what, args);
    finish({ ...request, id: answer.id }, (answer.id && arrived.get(answer.id)) || answer);
  } catch (error) {
    put({ ...request, status: "error", answer: error instanceof Error ? error.message : String(error) });
    if (error instanceof Error && error.constructor !== Error) fail(error, what);
  }
  await loadDetails();
  await loadEvents(run);
}
