// Messages from the server: changed runs, new values, events and answers. The browser reconnects by itself.
import { curvesOf, forget, loadShown, refresh } from "./curve_store";
import { keepEvent } from "./events";
import { firstShown, loadEvents, loadRuns, refreshDetails, refreshValues } from "./loading";
import { get, listen, sameItems, setView, update } from "./store";
import type { Answer, Row, RunEvent } from "./types";

const RETRY_MS = 2000;
let source: EventSource | null = null;
let retry: ReturnType<typeof setTimeout> | undefined;
const answerListeners = new Set<(answer: Answer) => void>();

// Answers to commands, whoever sent them.
export const onAnswer = (listener: (answer: Answer) => void) => void answerListeners.add(listener);

// Listen to the shown runs and the focused one. A hidden page does not listen: a browser has six connections for all pages.
export function followServer(): void {
  let keys: string[] = [];
  listen(() => {
    const now = wantedKeys();
    if (sameItems(now, keys)) return;
    keys = now;
    connect();
  });
  document.addEventListener("visibilitychange", connect);
  keys = wantedKeys();
  connect();
}

const wantedKeys = () => [...new Set([...get().view.shown, get().view.focus].filter((key): key is string => Boolean(key)))].sort();

function connect(): void {
  clearTimeout(retry);
  source?.close();
  source = null;
  if (document.hidden || get().connection === "denied") return;
  const opened = new EventSource(`/api/stream?runs=${wantedKeys().join(",")}`);
  source = opened;
  const on = <T>(name: string, handle: (data: T) => void) =>
    opened.addEventListener(name, (message) => {
      update({ heard: Date.now(), ...(get().connection === "lost" ? { connection: "live" as const } : {}) });
      handle(JSON.parse((message as MessageEvent<string>).data) as T);
    });
  opened.addEventListener("error", () => lost(opened));
  on("state", caughtUp);
  on("runs", changeRuns);
  on<{ run: string; version: number }>("curves", ({ run, version }) => {
    refresh(run, version);
    if (run === get().view.focus) refreshValues();
  });
  on<RunEvent & { run: string }>("event", addEvent);
  on<Answer & { run: string }>("answer", (answer) => {
    for (const listener of answerListeners) listener(answer);
    if (answer.run === get().view.focus) refreshDetails();
  });
}

// A server that was restarted refuses the page if its token is new: then a request says so.
function lost(opened: EventSource): void {
  if (opened !== source) return;
  if (get().connection !== "denied") update({ connection: "lost" });
  if (opened.readyState !== EventSource.CLOSED) return;
  clearTimeout(retry);
  retry = setTimeout(() => void loadRuns().then(connect), RETRY_MS);
}

function caughtUp({ table, curves }: { table: number; curves: Record<string, number | null> }): void {
  if (table !== get().table) void loadRuns();
  for (const [key, version] of Object.entries(curves)) if (version !== null && curvesOf(key)) refresh(key, version);
  loadShown();
  refreshDetails();
  const { focus } = get().view;
  if (focus !== null) void loadEvents(focus); // while this stream was not open, there were no messages
}

function changeRuns({ rows, gone }: { rows: Row[]; gone: string[] }): void {
  const runs = new Map(get().runs);
  const focus = get().view.focus;
  for (const row of rows) {
    const before = runs.get(row.key);
    runs.set(row.key, row);
    if (row.key === focus && (before?.status !== row.status || before.control !== row.control)) refreshDetails();
  }
  for (const key of gone) {
    runs.delete(key);
    forget(key);
  }
  const view = get().view;
  const isFirst = !get().runs.size;
  update({ runs });
  if (isFirst) setView({ shown: firstShown([...runs.keys()]), focus: [...runs.keys()][0] ?? null });
  else if (gone.length) setView({ shown: view.shown.filter((key) => runs.has(key)) });
}

function addEvent(event: RunEvent & { run: string }): void {
  keepEvent(event.run, event);
  if (event.run === get().view.focus) refreshDetails();
}
