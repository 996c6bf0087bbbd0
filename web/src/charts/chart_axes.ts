// The axes of a chart: where they have labels, and which.
import type uPlot from "uplot";
import { logTicks, ticks, timeTicks } from "../curves/ticks";
import { compact, duration, short } from "../data/format";
import type { Content } from "./content";
import { palette } from "./theme";

// `scale` enlarges them, for pictures.
export function axesOf({ isLog, axis }: Content, scale = 1): uPlot.Axis[] {
  const labels = { stroke: () => palette().muted, font: `${11 * scale}px system-ui, sans-serif`, gap: 5 * scale, ticks: { show: false } };
  const grid = { stroke: () => palette().grid, width: scale };
  const isTime = axis === "time";
  const units = (pixels: number) => pixels / devicePixelRatio / scale;
  return [
    {
      ...labels,
      grid,
      size: 26 * scale,
      splits: (u, _axis, low, high) => (isTime ? timeTicks : ticks)(low, high, units(u.bbox.width) / (isTime ? 62 : 46)),
      values: (_u, values) => values.map((value) => (isTime ? duration(value) : compact(value))),
    },
    {
      ...labels,
      grid,
      size: 52 * scale,
      splits: (u, _axis, low, high) => (isLog ? logTicks : ticks)(low, high, units(u.bbox.height) / 34),
      filter: (_u, values) => values,
      values: (_u, values) => values.map((value) => short(value, 4)),
    },
  ];
}
