// Load the table of runs, the settings, and the focused run.
import { api } from "./api";
import { takeEvents } from "./events";
import { fail } from "./failures";
import { get, setView, update } from "./store";

const FEW_RUNS = 6; // up to this many runs are all shown
const FIRST_RUNS = 5;
const REFRESH_MS = 1000;
const VALUES_MS = 5000;

// The runs that are shown before somebody selects any.
export function firstShown(keys: readonly string[]): string[] {
  return keys.slice(0, keys.length <= FEW_RUNS ? FEW_RUNS : FIRST_RUNS);
}

export async function loadRuns(): Promise<void> {
  try {
    await requestRuns();
  } catch (error) {
    fail(error, "runs");
  }
}

async function requestRuns(): Promise<void> {
  const answer = await api.runs();
  const runs = new Map(answer.runs.map((row) => [row.key, row]));
  const view = get().view;
  const known = view.shown.filter((key) => runs.has(key));
  const isFirst = get().table === null;
  const shown = known.length || !isFirst ? known : firstShown(answer.runs.map((row) => row.key));
  const focus = view.focus !== null && runs.has(view.focus) ? view.focus : (shown[0] ?? answer.runs[0]?.key ?? null);
  update({ runs, table: answer.version, readOnly: answer.read_only, connection: "live", heard: Date.now(), error: "" });
  setView({ shown, focus });
}

let settingsOf = "";

// The settings of all runs, for columns and groups. They are loaded once somebody asks for them.
export async function loadSettings(): Promise<void> {
  const current = [...get().runs.values()].map((row) => `${row.key} ${row.started} ${row.status}`).join();
  if (settingsOf === current) return;
  settingsOf = current; // a run that starts again may have other settings
  try {
    const { settings } = await api.settings();
    update({ settings: new Map(Object.entries(settings)) });
  } catch (error) {
    settingsOf = "";
    fail(error, "settings");
  }
}

let request = 0;

export async function loadDetails(): Promise<void> {
  const key = get().view.focus;
  const mine = ++request;
  if (key === null) {
    update({ details: null, detailsError: "" });
    return;
  }
  try {
    const details = await api.run(key);
    if (mine === request) update({ details, detailsError: "" });
  } catch (error) {
    if (mine !== request) return;
    update({ detailsError: error instanceof Error ? error.message : String(error) });
    if (!(error instanceof Error) || error.constructor !== Error) fail(error, "run");
  }
}

let waiting: ReturnType<typeof setTimeout> | undefined;

// Load the focused run again, at most once a second.
export function refreshDetails(): void {
  waiting ??= setTimeout(() => {
    waiting = undefined;
    void loadDetails();
  }, REFRESH_MS);
}

let waitingForValues: ReturnType<typeof setTimeout> | undefined;

// New values of the focused run: load them with the rest, at most once in five seconds.
export function refreshValues(): void {
  waitingForValues ??= setTimeout(() => {
    waitingForValues = undefined;
    void loadDetails();
  }, VALUES_MS);
}

export async function loadEvents(key: string): Promise<void> {
  try {
    const { events } = await api.events(key);
    takeEvents(key, events);
  } catch (error) {
    fail(error, "events");
  }
}
