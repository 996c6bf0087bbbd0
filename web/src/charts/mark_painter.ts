// Draw the events of the focused run: saves as ticks at the bottom, best values as stars, all others as lines.
import type uPlot from "uplot";
import type { PlacedMark } from "./content";
import { palette } from "./theme";

const DASHES: Partial<Record<PlacedMark["kind"], number[]>> = { command: [4, 3], other: [2, 3], problem: [] };
const MOST_LINES = 40; // events of the user's own, beyond which they are ticks
const SAVE_GAP = 10; // pixels between the ticks of saves, of which there may be one for each epoch
const BEST_GAP = 7;

export function paintMarks(u: uPlot, marks: readonly PlacedMark[], ratio: number): void {
  const { ctx, bbox } = u;
  const colours = palette();
  const { min, max } = u.scales.x!;
  const bottom = bbox.top + bbox.height;
  const visible = marks.filter((mark) => mark.x >= min! && mark.x <= max!);
  const areMany = visible.filter((mark) => mark.kind === "other").length > MOST_LINES;
  const gaps: Partial<Record<PlacedMark["kind"], number>> = { save: SAVE_GAP * ratio, best: BEST_GAP * ratio, ...(areMany ? { other: SAVE_GAP * ratio } : {}) };
  const drawn = new Map<PlacedMark["kind"], number>();
  ctx.lineWidth = ratio;
  ctx.font = `${9 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  for (const mark of visible) {
    const x = Math.round(u.valToPos(mark.x, "x", true)) + 0.5;
    if (Math.abs(x - (drawn.get(mark.kind) ?? -Infinity)) < (gaps[mark.kind] ?? 0)) continue;
    drawn.set(mark.kind, x);
    const dash = mark.kind === "other" && areMany ? undefined : DASHES[mark.kind];
    ctx.strokeStyle = ctx.fillStyle = mark.kind === "problem" ? colours.problem : mark.kind === "command" ? colours.accent : mark.kind === "other" ? colours.text : colours.muted;
    if (mark.kind === "best") {
      ctx.fillText("★", x, bottom - 6 * ratio);
      continue;
    }
    ctx.beginPath();
    ctx.setLineDash((dash ?? []).map((length) => length * ratio));
    ctx.moveTo(x, dash ? bbox.top : bottom - 4 * ratio);
    ctx.lineTo(x, bottom);
    ctx.stroke();
    ctx.setLineDash([]);
  }
}
