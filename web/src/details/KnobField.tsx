// A setting that can be changed. It is not sent if somebody else has set it since the user began to type. A value that a schedule
// changes may be older here than in the run: that does not matter, because the user's value replaces it.
import { useEffect, useRef, useState } from "preact/hooks";
import { plainText, short } from "../data/format";
import { loadEvents } from "../data/loading";
import { get, useStore } from "../data/store";
import type { Knob, Plain, RunDetails } from "../data/types";
import { command, lastSetting, refuse } from "./commands";

export function KnobField({ knob, reason }: { knob: Knob; reason: string }) {
  const current = textOf(knob.value);
  const [text, setText] = useState(current);
  const [was, setWas] = useState<Plain>(knob.value);
  const isEditing = useRef(false);
  const base = useRef<string | undefined>(undefined); // the last command that had set it when the user began to type
  const latest = useRef(knob); // an answer arrives later than the value that it has set
  latest.current = knob;
  useEffect(() => {
    if (isEditing.current) return;
    setText(current);
    setWas(knob.value);
  }, [current]);

  const begin = () => {
    if (isEditing.current) return;
    isEditing.current = true;
    base.current = lastSetting(knob.name)?.id;
    setWas(knob.value); // what the user sees while typing
  };
  const reset = () => {
    isEditing.current = false;
    setText(textOf(latest.current.value));
    setWas(latest.current.value);
  };
  const send = async (typed: string) => {
    const value = parsed(knob, typed);
    const hasBegun = isEditing.current;
    isEditing.current = false;
    if (value === undefined) {
      refuse(`Set ${knob.name}`, `“${typed}” is not valid: ${expected(knob)}`);
      return;
    }
    if (get().view.focus !== null) await loadEvents(get().view.focus!);
    const other = hasBegun ? lastSetting(knob.name) : undefined;
    if (other && other.id !== base.current && !other.isOwn) {
      isEditing.current = true;
      base.current = other.id;
      refuse(`Set ${knob.name}`, `not sent. Meanwhile, ${other.text}. To overwrite it, press Set again.`);
      return;
    }
    await command("set", { values: { [knob.name]: value } }, `Set ${knob.name} to ${plainText(value)}`);
    if (!isEditing.current) reset(); // the user may type again before the answer is there
  };

  const last = useStore((state) => state.details?.last);
  const id = `knob-${knob.name}`;
  const isChanged = text !== textOf(was);
  const shared = { id, "data-knob": knob.name, disabled: Boolean(reason), title: reason || expected(knob) };
  const choices = knob.type === "bool" ? [true, false] : knob.choices;
  return (
    <div class="knob">
      <label for={id}>
        <span>{knob.name}</span>
        <small>{[knob.about, bounds(knob), newest(knob, last)].filter(Boolean).join("; ")}</small>
      </label>
      {choices.length ? (
        <select {...shared} value={text} onFocus={begin} onChange={(event) => void send(event.currentTarget.value)}>
          {choices.map((choice) => <option key={textOf(choice)} value={textOf(choice)}>{plainText(choice)}</option>)}
        </select>
      ) : (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void send(text);
          }}
        >
          <input
            {...shared}
            value={text}
            inputMode={knob.type === "float" || knob.type === "int" ? "decimal" : "text"}
            autocomplete="off"
            onFocus={begin}
            onInput={(event) => {
              begin();
              setText(event.currentTarget.value);
            }}
            onKeyDown={(event) => {
              if (event.key === "Escape") reset();
            }}
            onBlur={() => {
              if (!isChanged) isEditing.current = false;
            }}
          />
          <button type="submit" disabled={Boolean(reason) || !isChanged}>Set</button>
        </form>
      )}
    </div>
  );
}

const textOf = (value: Plain): string => (typeof value === "string" ? value : JSON.stringify(value));

function parsed(knob: Knob, text: string): Plain | undefined {
  const choices = knob.type === "bool" ? [true, false] : knob.choices;
  if (choices.length) return choices.find((choice) => textOf(choice) === text);
  if (knob.type === "str") return text;
  if (knob.type === "list") {
    try {
      const value = JSON.parse(text) as Plain;
      return Array.isArray(value) ? value : undefined;
    } catch {
      return undefined;
    }
  }
  const value = Number(text);
  const isNumber = text.trim() !== "" && Number.isFinite(value) && (knob.type !== "int" || Number.isInteger(value));
  const isInside = (knob.low === null || value >= knob.low) && (knob.high === null || value <= knob.high);
  return isNumber && isInside ? value : undefined;
}

// The newest logged value, if it is another one: a schedule changes it more often than the run describes its settings.
function newest(knob: Knob, last: RunDetails["last"] | undefined): string {
  const point = last?.[knob.name] ?? (knob.name === "lr" ? last?.learning_rate : undefined);
  return point && point.value !== knob.value ? `${short(point.value)} at step ${point.step.toLocaleString("en-US")}` : "";
}

function bounds(knob: Knob): string {
  if (knob.low !== null && knob.high !== null) return `${knob.low} to ${knob.high}`;
  if (knob.low !== null) return `≥ ${knob.low}`;
  return knob.high !== null ? `≤ ${knob.high}` : "";
}

function expected(knob: Knob): string {
  const kind = { float: "a number", int: "an integer", bool: "true or false", str: "a text", list: "a list in JSON" }[knob.type];
  return `expected ${kind}${bounds(knob) ? `, ${bounds(knob)}` : ""}`;
}
