// The names and colours of the shown runs, for a phone: there the table is on another screen.
import { useStore } from "../data/store";

export function Legend() {
  const shown = useStore((state) => state.view.shown);
  const runs = useStore((state) => state.runs);
  const colours = useStore((state) => state.colours);
  const focus = useStore((state) => state.view.focus);
  return (
    <ul class="legend" aria-label="Shown runs">
      {shown.map((key) => (
        <li key={key} class={key === focus ? "focused" : ""}>
          <span class={`swatch run-${colours.get(key) ?? 0}`} /> {runs.get(key)?.label}
        </li>
      ))}
    </ul>
  );
}
