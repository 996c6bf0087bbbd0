// A row of the table: click it to see the run's details, click its dot to show or hide its curves.
import { plainText, short, shortDuration } from "../data/format";
import { focus, toggle } from "../data/selection";
import { setView } from "../data/store";
import type { Row, Settings } from "../data/types";
import { goTo } from "../shell/places";
import { secondsOf } from "./arrange";
import { bestText, fallen, statusOf } from "./standing";

interface Props {
  row: Row;
  colour: number | undefined;
  isFocused: boolean;
  isBest: boolean;
  columns: readonly string[];
  settings: Settings | undefined;
  index: number;
}

export function RunRow({ row, colour, isFocused, isBest, columns, settings, index }: Props) {
  const isShown = colour !== undefined;
  const status = statusOf(row);
  const why = fallen(row);
  const folder = row.label.slice(0, row.label.lastIndexOf("/") + 1);
  // With the keyboard, a second Enter goes to the details.
  const open = (event: MouseEvent) => {
    if (isFocused && event.detail === 0) return goTo("run");
    focus(row.key);
    if (matchMedia("(max-width: 760px)").matches) setView({ screen: "run" });
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const row = (event.currentTarget as HTMLElement).closest("tr");
    const other = event.key === "ArrowDown" ? row?.nextElementSibling : event.key === "ArrowUp" ? row?.previousElementSibling : null;
    const button = other?.querySelector<HTMLElement>("button.name");
    if (!button) return;
    event.preventDefault();
    button.focus();
  };
  return (
    <tr data-key={row.key} class={isFocused ? "focused" : ""} aria-rowindex={index + 2} onClick={open}>
      <td class="dot-cell">
        <button
          type="button"
          class={isShown ? `dot run-${colour}` : "dot"}
          aria-pressed={isShown}
          aria-label={`Show ${row.label}`}
          title={isShown ? "Hide the curves" : "Show the curves"}
          onClick={(event) => {
            event.stopPropagation();
            toggle(row.key);
          }}
        />
      </td>
      <td class="name-cell">
        <button type="button" class="name" title={row.label} aria-current={isFocused} onKeyDown={onKeyDown}>
          <span class="folder">{folder}</span>
          <span>{row.label.slice(folder.length)}</span>
        </button>
      </td>
      <td class={`status ${status}`} title={row.reason || undefined}>
        {status}
      </td>
      <td class="number">{progress(row)}</td>
      <td class="number" title={row.best ? `Best ${row.best.metric}: ${bestText(row)}` : undefined}>
        {isBest && <span class="star" role="img" aria-label="Best of all runs" title={`Best of all runs: ${row.best?.metric} ${bestText(row)}`}>★</span>}
        {row.best ? short(row.best.value, 4) : ""}
      </td>
      <td class={why ? "number worse" : "number"} title={why || (row.last ? `Last ${row.last[0]}` : undefined)}>
        {why && <span role="img" aria-label={why}>▲</span>}
        {row.last ? short(row.last[1], 4) : ""}
      </td>
      <td class="number">{shortDuration(secondsOf(row))}</td>
      {columns.map((name) => (
        <td class="setting" key={name} title={plainText(settings?.[name])}>
          {plainText(settings?.[name])}
        </td>
      ))}
    </tr>
  );
}

function progress(row: Row): string {
  if (row.epoch === null) return row.step === null ? "" : `step ${short(row.step)}`;
  return row.epochs === null ? String(row.epoch) : `${row.epoch}/${row.epochs}`;
}
