// A setting that can be changed. It is sent only if the run still has the value that is shown here.
import { useEffect, useRef, useState } from "preact/hooks";
import { plainText } from "../data/format";
import type { Knob, Plain } from "../data/types";
import { command, refuse } from "./commands";

export function KnobField({ knob, reason }: { knob: Knob; reason: string }) {
  const current = textOf(knob.value);
  const [text, setText] = useState(current);
  const [was, setWas] = useState<Plain>(knob.value);
  const isEditing = useRef(false);
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
    setWas(knob.value); // what the user sees while typing
  };
  const reset = () => {
    isEditing.current = false;
    setText(textOf(latest.current.value));
    setWas(latest.current.value);
  };
  const send = (typed: string) => {
    const value = parsed(knob, typed);
    isEditing.current = false;
    if (value === undefined) {
      refuse(`Set ${knob.name}`, `“${typed}” is not valid: ${expected(knob)}`);
      return;
    }
    if (JSON.stringify(value) === JSON.stringify(was)) return reset();
    void command("set", { values: { [knob.name]: value } }, `Set ${knob.name} to ${plainText(value)}`, { [knob.name]: was }).then(reset);
  };

  const id = `knob-${knob.name}`;
  const isChanged = text !== textOf(was);
  const shared = { id, "data-knob": knob.name, disabled: Boolean(reason), title: reason || expected(knob) };
  const choices = knob.type === "bool" ? [true, false] : knob.choices;
  return (
    <div class="knob">
      <label for={id}>
        <span>{knob.name}</span>
        <small>{[knob.about, bounds(knob)].filter(Boolean).join("; ")}</small>
      </label>
      {choices.length ? (
        <select {...shared} value={text} onChange={(event) => send(event.currentTarget.value)}>
          {choices.map((choice) => <option key={textOf(choice)} value={textOf(choice)}>{plainText(choice)}</option>)}
        </select>
      ) : (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            send(text);
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

function bounds(knob: Knob): string {
  if (knob.low !== null && knob.high !== null) return `${knob.low} to ${knob.high}`;
  if (knob.low !== null) return `≥ ${knob.low}`;
  return knob.high !== null ? `≤ ${knob.high}` : "";
}

function expected(knob: Knob): string {
  const kind = { float: "a number", int: "an integer", bool: "true or false", str: "a text", list: "a list in JSON" }[knob.type];
  return `expected ${kind}${bounds(knob) ? `, ${bounds(knob)}` : ""}`;
}
