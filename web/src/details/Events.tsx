// What has happened in the run, the newest first. Saves in a row are folded into one line.
import { useState } from "preact/hooks";
import { kindOf } from "../curves/marks";
import { curvesOf } from "../data/curve_store";
import { clock, count } from "../data/format";
import { get, setView, useStore } from "../data/store";
import type { RunEvent } from "../data/types";

const MOST = 300;

type Entry = { event: RunEvent } | { saves: RunEvent[] };

export function Events() {
  const events = useStore((state) => (state.view.focus === null ? undefined : state.events.get(state.view.focus)));
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  if (!events) return <p class="hint">Loading …</p>;
  if (!events.length) return <p class="hint">Nothing has happened yet: saves, best values, commands and problems appear here.</p>;
  const entries = folded([...events].reverse());
  return (
    <>
      <ol class="events" id="events">
        {entries.slice(0, MOST).map((entry) => {
          if ("event" in entry) return <Line key={`${entry.event.time} ${entry.event.text}`} event={entry.event} />;
          const [newest, oldest] = [entry.saves[0]!, entry.saves.at(-1)!];
          if (entry.saves.length === 1) return <Line key={`${newest.time} ${newest.text}`} event={newest} />;
          const isOpen = open.has(oldest.time);
          return (
            <li key={`saves ${oldest.time}`} class="save">
              <button type="button" class="fold" aria-expanded={isOpen} onClick={() => setOpen(new Set(isOpen ? [...open].filter((one) => one !== oldest.time) : [...open, oldest.time]))}>
                {count(entry.saves.length, "save")}, steps {oldest.step.toLocaleString("en-US")} to {newest.step.toLocaleString("en-US")}
              </button>
              {isOpen && <ol>{entry.saves.map((event) => <Line key={`${event.time} ${event.text}`} event={event} />)}</ol>}
            </li>
          );
        })}
      </ol>
      {entries.length > MOST && <p class="hint">Older events are in events.jsonl.</p>}
    </>
  );
}

function Line({ event }: { event: RunEvent }) {
  return (
    <li class={kindOf(event)}>
      <time>{clock(event.time)}</time>{" "}
      <button type="button" class="link" title="Zoom the charts to this step" onClick={() => zoomToEvent(event)}>step {event.step.toLocaleString("en-US")}</button>{" "}
      <span>{event.text}</span>
    </li>
  );
}

// Show a twentieth of the run around an event.
function zoomToEvent(event: RunEvent): void {
  const { focus, axis } = get().view;
  const run = focus === null ? undefined : curvesOf(focus);
  if (!run) return;
  let last = 0;
  for (const { curves } of run.whole.values()) for (const curve of curves) last = Math.max(last, curve.x1.at(-1) ?? 0);
  const half = Math.max(5, last / 40);
  const time = event.time;
  const middle = run.axis.position(axis, event.step, time);
  const width = axis === "step" ? half : Math.abs(run.axis.position(axis, event.step + half, time) - middle) || half;
  setView({ range: [middle - width, middle + width], screen: "curves" });
}

function folded(events: RunEvent[]): Entry[] {
  const entries: Entry[] = [];
  for (const event of events) {
    const last = entries.at(-1);
    if (event.event !== "save") entries.push({ event });
    else if (last && "saves" in last) last.saves.push(event);
    else entries.push({ saves: [event] });
  }
  return entries;
}
