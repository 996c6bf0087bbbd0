// Steer the run: settings and commands, what was requested and by whom, and what became of it.
import { useEffect, useReducer, useRef } from "preact/hooks";
import { clock } from "../data/format";
import { useStore } from "../data/store";
import type { Control, RunDetails, RunEvent } from "../data/types";
import { command, onRequests, requestsOf } from "./commands";
import { KnobField } from "./KnobField";

const MOST = 12;
const ACTIONS: readonly [name: string, title: string, about: string][] = [
  ["pause", "Pause", "Wait before the next step"],
  ["resume", "Resume", "Continue a paused run"],
  ["save", "Save", "Save a checkpoint now"],
  ["validate", "Validate", "Run the validation now"],
  ["trace", "Trace", "Record a profile of the next 5 steps"],
  ["stop", "Stop", "End the run"],
];

export function Controls() {
  const details = useStore((state) => state.details);
  const focus = useStore((state) => state.view.focus);
  const isLost = useStore((state) => state.connection !== "live");
  const dialog = useRef<HTMLDialogElement>(null);
  const reason = useRef<HTMLInputElement>(null);
  if (!details) return null;
  const { controls, controls_reason } = details;
  const general = isLost ? "The board is not connected." : controls_reason;

  const stop = (isSure: boolean) => {
    const text = reason.current?.value.trim() ?? "";
    dialog.current?.close();
    if (isSure) void command("stop", text ? { reason: text } : {}, "Stop");
  };
  return (
    <div id="controls">
      {general && <p class="hint" id="controls-reason">{general}</p>}
      <div class="command-bar">
        <div class="actions" id="actions">
          {ACTIONS.map(([name, title, about]) => {
            const why = whyNot(name, controls, general);
            return (
              <button
                type="button"
                key={name}
                data-do={name}
                disabled={Boolean(why)}
                title={why || about}
                class={name === "stop" ? "danger" : ""}
                onClick={() => (name === "stop" ? dialog.current?.showModal() : void command(name, name === "trace" ? { steps: 5 } : {}, title))}
              >
                {title}
              </button>
            );
          })}
        </div>
        <Answer />
      </div>
      <ul class="why">
        {!general && ACTIONS.map(([name, title]) => [title, controls?.cannot[name]] as const).filter(([, why]) => why).map(([title, why]) => <li key={title}>{title}: {why}</li>)}
      </ul>
      {controls && controls.knobs.length > 0 && (
        <>
          <h3>Settings of the run</h3>
          <p class="hint">Press Enter to set a value from the next step on. If a schedule or a callback also changes it, it may set it again: the answer says which.</p>
          <div id="knobs">{controls.knobs.map((knob) => <KnobField key={`${focus} ${knob.name}`} knob={knob} reason={general || (controls.cannot.set ?? "")} />)}</div>
        </>
      )}
      {controls && controls.actions.length > 0 && (
        <>
          <h3>Actions of callbacks</h3>
          <div class="actions">
            {controls.actions.map(({ name, about }) => (
              <button type="button" key={name} disabled={Boolean(general)} title={general || about} onClick={() => void command("call", { action: name }, `Call ${name}`)}>{name}</button>
            ))}
          </div>
        </>
      )}
      <Requests />
      <dialog ref={dialog} aria-labelledby="stop-title">
        <h3 id="stop-title">Stop {details.name}?</h3>
        <p id="stop-about">{afterStop(details)}</p>
        <label>Reason (optional) <input ref={reason} id="stop-reason" autocomplete="off" maxLength={200} /></label>
        <div class="actions">
          <button type="button" id="stop-cancel" onClick={() => stop(false)}>Keep running</button>
          <button type="button" id="stop-confirm" class="danger" onClick={() => stop(true)}>Stop the run</button>
        </div>
      </dialog>
    </div>
  );
}

// What a stop leaves. Files of older versions do not say which callbacks save.
function afterStop({ run: { savers } }: RunDetails): string {
  if (!Array.isArray(savers)) return "The run ends. If one of its callbacks saves checkpoints, the run saves one first and can be resumed.";
  if (savers.length) return "The run saves a checkpoint and ends. You can resume it later by starting it again.";
  return "The run ends, and nothing is saved: none of its callbacks saves checkpoints. To keep its current state, press Save first.";
}

// Why a command cannot be used now; empty if it can.
function whyNot(name: string, controls: Control | null, general: string): string {
  if (general || !controls) return general || "This run takes no commands.";
  if (controls.cannot[name]) return controls.cannot[name]!;
  if (!controls.commands.includes(name)) return "This run does not support it.";
  if (name === "pause" && controls.paused) return "The run is already paused.";
  if (name === "resume" && !controls.paused) return "The run is not paused.";
  return "";
}

// What became of the latest request from this page. It stays in view while the settings below it are changed.
function Answer() {
  const focus = useStore((state) => state.view.focus);
  const [, render] = useReducer((number: number) => number + 1, 0);
  useEffect(() => onRequests(() => render(0)), []);
  const latest = requestsOf(focus)[0];
  return <p id="answer" role="status" class={latest?.status ?? ""}>{latest ? `${latest.text}: ${latest.answer}` : ""}</p>;
}

// Requests that wait, and those that the run has answered: whoever sent them.
function Requests() {
  const pending = useStore((state) => state.details?.controls?.pending);
  const events = useStore((state) => (state.view.focus === null ? undefined : state.events.get(state.view.focus)));
  const answered = (events ?? []).filter((event) => event.event === "control").slice(-MOST).reverse();
  return (
    <>
      {(pending?.length || answered.length) ? <h3>Requests</h3> : null}
      <ol class="requests" id="requests">
        {(pending ?? []).map((one) => (
          <li key={one.id}><span class="badge">{one.status}</span> {one.text} <small>by {one.by || "unknown"}</small></li>
        ))}
        {answered.map((event) => (
          <li key={`${event.time} ${event.text}`} class={String(event.status)}>
            <time>{clock(event.time)}</time> {event.text} <small>{whereOf(event)}</small>
          </li>
        ))}
      </ol>
    </>
  );
}

const whereOf = (event: RunEvent) => `step ${event.step.toLocaleString("en-US")}`;
