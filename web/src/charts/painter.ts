// Draw the curves and marks of a chart on uPlot's canvas.
import type uPlot from "uplot";
import { type Paths, type Scale, pathsOf } from "../curves/paths";
import type { Points } from "../curves/points";
import type { Content, Line, PlacedMark } from "./content";
import { palette } from "./theme";

interface Built {
  fits: string;
  anchor: number;
  paths: Paths;
}

const FAR = 1e5; // pixels from the anchor: beyond that, a canvas is not exact
const DASHES: Partial<Record<PlacedMark["kind"], number[]>> = { command: [4, 3], problem: [] };

export class Painter {
  #built = new WeakMap<Points, Built>();

  paint(u: uPlot, content: Content): void {
    const { ctx, bbox } = u;
    const { min, max } = u.scales.x!;
    if (min === undefined || max === undefined || min === null || max === null) return;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    this.#marks(u, content);
    for (const line of content.lines) this.#line(u, content, line);
    ctx.restore();
  }

  #line(u: uPlot, content: Content, line: Line): void {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    const { paths, shift } = this.#pathsOf(u, content, line);
    const colour = palette().runs[line.colour]!;
    ctx.save();
    ctx.translate(bbox.left + shift, bbox.top);
    ctx.strokeStyle = ctx.fillStyle = colour;
    ctx.lineJoin = "round";
    if (paths.band) {
      ctx.globalAlpha = 0.2;
      ctx.fill(paths.band);
    }
    ctx.globalAlpha = paths.smooth ? 0.3 : 1;
    ctx.lineWidth = (paths.smooth ? 1 : 1.5) * ratio;
    ctx.stroke(paths.line);
    if (paths.dots && !paths.smooth) ctx.fill(paths.dots);
    ctx.globalAlpha = 1;
    if (paths.smooth) {
      ctx.lineWidth = 2 * ratio;
      ctx.stroke(paths.smooth);
    }
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    for (const x of paths.bad) ctx.fillText("×", x, bbox.height - 3 * ratio);
    ctx.restore();
  }

  // A path is built again only if the scale has changed; a pan shifts it.
  #pathsOf(u: uPlot, content: Content, line: Line): { paths: Paths; shift: number } {
    const [x, y] = [u.scales.x!, u.scales.y!];
    const { width, height } = u.bbox;
    const perUnit = width / (x.max! - x.min!);
    const fits = [perUnit.toPrecision(9), y.min, y.max, height, content.isLog, line.areMeans].join(" ");
    let built = this.#built.get(line.points);
    if (!built || built.fits !== fits || Math.abs((x.min! - built.anchor) * perUnit) > FAR) {
      const scale: Scale = { perUnit, anchor: x.min!, y: pixelOf(y.min!, y.max!, height, content.isLog), height, isLog: content.isLog };
      built = { fits, anchor: x.min!, paths: pathsOf(line.points, scale, 2.2 * devicePixelRatio, line.areMeans) };
      this.#built.set(line.points, built);
    }
    return { paths: built.paths, shift: (built.anchor - x.min!) * perUnit };
  }

  // Saves are ticks at the bottom, the best values stars; what somebody did, and problems, are lines.
  #marks(u: uPlot, content: Content): void {
    const { ctx, bbox } = u;
    const colours = palette();
    const ratio = devicePixelRatio;
    const { min, max } = u.scales.x!;
    const bottom = bbox.top + bbox.height;
    ctx.lineWidth = ratio;
    ctx.font = `${9 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    for (const mark of content.marks) {
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
}

function pixelOf(low: number, high: number, height: number, isLog: boolean): (value: number) => number {
  if (!isLog) return (value) => height * (1 - (value - low) / (high - low));
  const [bottom, top] = [Math.log(low), Math.log(high)];
  return (value) => height * (1 - (Math.log(value) - bottom) / (top - bottom));
}
