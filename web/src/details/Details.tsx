// The focused run: where it is, and tabs with everything known about it.
import { useRef } from "preact/hooks";
import { count, duration } from "../data/format";
import { loadDetails } from "../data/loading";
import { setView, useStore } from "../data/store";
import type { Row } from "../data/types";
import { TABS, type Tab } from "../data/view";
import { secondsOf } from "../runs/arrange";
import { bestText, statusOf } from "../runs/standing";
import { Callbacks } from "./Callbacks";
import { Checkpoints } from "./Checkpoints";
import { Controls } from "./Controls";
import { Events } from "./Events";
import { Media } from "./Media";
import { Settings } from "./Settings";
import { System } from "./System";

const TITLES: Record<Tab, string> = {
  controls: "Controls",
  events: "Events",
  checkpoints: "Checkpoints",
  callbacks: "Callbacks",
  settings: "Settings",
  system: "System",
  media: "Images",
};

export function Details() {
  const focus = useStore((state) => state.view.focus);
  const row = useStore((state) => (state.view.focus === null ? undefined : state.runs.get(state.view.focus)));
  const chosen = useStore((state) => state.view.tab);
  const first = useRef<{ focus: string; tab: Tab } | null>(null);
  const details = useStore((state) => state.details);
  const error = useStore((state) => state.detailsError);
  const colour = useStore((state) => (focus === null ? undefined : state.colours.get(focus)));
  const tabs = useRef<HTMLDivElement>(null);
  if (focus === null || !row) return <p class="hint">No run is selected.</p>;
  // A run that has ended takes no commands. The tab stays when a run ends.
  if (first.current?.focus !== focus) first.current = { focus, tab: row.status === "running" ? "controls" : "events" };
  const tab = chosen ?? first.current.tab;

  const onKeyDown = (event: KeyboardEvent) => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    const next = TABS[(TABS.indexOf(tab) + by + TABS.length) % TABS.length]!;
    setView({ tab: next });
    tabs.current?.querySelector<HTMLElement>(`[data-tab="${next}"]`)?.focus();
  };
  return (
    <>
      <header class="run-head">
        <h2 id="name">
          {colour !== undefined && <span class={`swatch run-${colour}`} />} <span>{row.name}</span>
        </h2>
        <p id="state"><span class={`status ${statusOf(row)}`}>{statusOf(row)}</span> {stateText(row)}</p>
        {row.reason && <p class="reason">{row.reason}</p>}
        {row.epochs !== null && row.epoch !== null && row.status === "running" && (
          <progress max={row.epochs} value={row.epoch} aria-label="Epochs" />
        )}
      </header>
      <div class="tabs" role="tablist" aria-label="Run" ref={tabs} onKeyDown={onKeyDown}>
        {TABS.map((one) => (
          <button type="button" role="tab" key={one} data-tab={one} id={`tab-${one}`} aria-controls="tab-panel" aria-selected={tab === one} tabIndex={tab === one ? 0 : -1} onClick={() => setView({ tab: one })}>
            {TITLES[one]}
          </button>
        ))}
      </div>
      <div class="tab-panel" key={`${focus} ${tab}`} role="tabpanel" id="tab-panel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
        {error && (
          <p class="problem" role="alert">
            This run cannot be read: {error} <button type="button" onClick={() => void loadDetails()}>Try again</button>
          </p>
        )}
        {!details && !error && <p class="hint">Loading …</p>}
        {details && details.status && panel(tab, focus)}
      </div>
    </>
  );
}

function panel(tab: Tab, focus: string) {
  if (tab === "controls") return <Controls />;
  if (tab === "events") return <Events />;
  if (tab === "checkpoints") return <Checkpoints />;
  if (tab === "callbacks") return <Callbacks />;
  if (tab === "settings") return <Settings />;
  return tab === "system" ? <System /> : <Media key={focus} />;
}

function stateText(row: Row): string {
  const epoch = row.epoch === null ? "" : `epoch ${row.epoch}${row.epochs === null ? "" : ` of ${row.epochs}`}`;
  const best = row.best ? `best ${row.best.metric} ${bestText(row)}` : "";
  return [epoch, row.step === null ? "" : count(row.step, "step"), duration(secondsOf(row)), best].filter(Boolean).join(" · ");
}
