// Draw the events of the focused run: saves as ticks at the bottom, best values as stars, commands and problems as lines.
import type uPlot from "uplot";
import type { PlacedMark } from "./content";
import { palette } from "./theme";

const DASHES: Partial<Record<PlacedMark["kind"], number[]>> = { command: [4, 3], problem: [] };

export function paintMarks(u: uPlot, marks: readonly PlacedMark[]): void {
  const { ctx, bbox } = u;
  const colours = palette();
  const ratio = devicePixelRatio;
  const { min, max } = u.scales.x!;
  const bottom = bbox.top + bbox.height;
  ctx.lineWidth = ratio;
  ctx.font = `${9 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  for (const mark of marks) {
    if (mark.x < min! || mark.x > max!) continue;
    const x = Math.round(u.valToPos(mark.x, "x", true)) + 0.5;
    const dash = DASHES[mark.kind];
    ctx.strokeStyle = ctx.fillStyle = mark.kind === "problem" ? colours.problem : mark.kind === "command" ? colours.accent : colours.muted;
    if (mark.kind === "best") {
      ctx.fillText("★", x, bottom - 6 * ratio);
      continue;
    }
    ctx.beginPath();
    ctx.setLineDash((dash ?? []).map((length) => length * ratio));
    ctx.moveTo(x, dash ? bbox.top : bottom - 5 * ratio);
    ctx.lineTo(x, bottom);
    ctx.stroke();
    ctx.setLineDash([]);
  }
}
