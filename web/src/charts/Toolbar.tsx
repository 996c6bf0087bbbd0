// What is common to all charts: filter, axis, scale, smoothing, marks, zoom.
import { setView, useStore } from "../data/store";
import type { AxisName } from "../data/view";
import { zoomTo } from "./viewport";

const AXES: readonly [AxisName, string][] = [["step", "Step"], ["epoch", "Epoch"], ["time", "Time"]];

export function Toolbar() {
  const view = useStore((state) => state.view);
  return (
    <div class="toolbar" role="toolbar" aria-label="Charts">
      <input
        type="search"
        id="find-metric"
        placeholder="Filter metrics"
        aria-label="Filter metrics"
        value={view.metrics}
        onInput={(event) => setView({ metrics: event.currentTarget.value })}
      />
      <div class="segments" role="radiogroup" aria-label="Horizontal axis">
        {AXES.map(([name, text]) => (
          <label key={name}>
            <input type="radio" name="axis" value={name} checked={view.axis === name} onChange={() => setView({ axis: name, range: null })} />
            <span>{text}</span>
          </label>
        ))}
      </div>
      <label class="check">
        <input type="checkbox" id="log-scale" checked={view.log} onChange={(event) => setView({ log: event.currentTarget.checked })} /> Log scale
      </label>
      <label class="slide" title="The raw line stays visible. Settings are never smoothed.">
        Smoothing
        <input
          type="range"
          id="smoothing"
          min="0"
          max="0.99"
          step="0.01"
          value={view.smooth}
          onInput={(event) => setView({ smooth: Number(event.currentTarget.value) })}
        />
        <output>{view.smooth.toFixed(2)}</output>
      </label>
      <label class="check" title="Saves, commands, best values and problems of the focused run">
        <input type="checkbox" id="marks" checked={view.marks} onChange={(event) => setView({ marks: event.currentTarget.checked })} /> Events
      </label>
      <button type="button" id="reset-zoom" disabled={!view.range} title={view.range ? "Show everything again" : "Drag across a chart to zoom"} onClick={() => zoomTo(null)}>
        Reset zoom
      </button>
    </div>
  );
}
