// Draw the curves and marks of a chart on uPlot's canvas. While charts are panned, curves come from a picture of them.
import type uPlot from "uplot";
import { type Paths, type Scale, pathsOf } from "../curves/paths";
import type { Points } from "../curves/points";
import type { Content, Line } from "./content";
import { paintMarks } from "./mark_painter";
import { palette } from "./theme";
import { isMoving } from "./viewport";

interface Built {
  fits: string;
  anchor: number;
  paths: Paths;
}

// What is drawn, and in which scale. `left` and `width` are pixels of the canvas.
interface Frame {
  ctx: CanvasRenderingContext2D;
  left: number;
  top: number;
  width: number;
  height: number;
  from: number; // the position at the left edge
  perUnit: number;
}

interface Layer {
  canvas: HTMLCanvasElement;
  fits: string;
  from: number;
  width: number;
}

const FAR = 1e5; // pixels from the anchor: beyond that, a canvas is not exact
const MAX_WIDTH = 8192;

export class Painter {
  #built = new WeakMap<Points, Built>();
  #layer: Layer | null = null;
  #lastPerUnit = 0;

  // `scale` enlarges lines and signs, for pictures.
  constructor(private readonly scale = 1) {}

  #ratio(): number {
    return devicePixelRatio * this.scale;
  }

  paint(u: uPlot, content: Content): void {
    const { ctx, bbox } = u;
    const { min, max } = u.scales.x!;
    if (typeof min !== "number" || typeof max !== "number") return;
    const frame: Frame = { ctx, ...bbox, from: min, perUnit: bbox.width / (max - min) };
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    paintMarks(u, content.marks, this.#ratio());
    const isPan = isMoving() && Math.abs(frame.perUnit / this.#lastPerUnit - 1) < 1e-9;
    if (isPan) this.#shift(u, content, frame);
    else this.#lines(u, content, frame);
    if (!isMoving()) this.#layer = null;
    this.#lastPerUnit = frame.perUnit;
    ctx.restore();
  }

  // Copy the curves from a picture that is three times as wide as the chart.
  #shift(u: uPlot, content: Content, frame: Frame): void {
    const fits = [frame.perUnit.toPrecision(9), u.scales.y!.min, u.scales.y!.max, frame.width, frame.height].join(" ");
    const offset = (layer: Layer) => (layer.from - frame.from) * frame.perUnit;
    let layer = this.#layer;
    if (!layer || layer.fits !== fits || offset(layer) > 0 || offset(layer) + layer.width < frame.width) {
      const width = Math.min(MAX_WIDTH, Math.round(frame.width * 3));
      const canvas = layer?.canvas ?? document.createElement("canvas");
      [canvas.width, canvas.height] = [width, Math.round(frame.height)];
      const from = frame.from - (width - frame.width) / 2 / frame.perUnit;
      layer = this.#layer = { canvas, fits, from, width };
      this.#lines(u, content, { ...frame, ctx: canvas.getContext("2d")!, left: 0, top: 0, width, from });
    }
    frame.ctx.drawImage(layer.canvas, Math.round(frame.left + offset(layer)), Math.round(frame.top));
  }

  #lines(u: uPlot, content: Content, frame: Frame): void {
    for (const line of content.lines) this.#line(u, content, line, frame);
  }

  #line(u: uPlot, content: Content, line: Line, frame: Frame): void {
    const { ctx, left, top, width, height } = frame;
    const ratio = this.#ratio();
    const { paths, shift } = this.#pathsOf(u, content, line, frame);
    ctx.save();
    ctx.translate(Math.round(left + shift), top);
    ctx.strokeStyle = ctx.fillStyle = palette().runs[line.colour]!;
    ctx.globalAlpha = 0.2;
    if (paths.band) ctx.fill(paths.band);
    if (paths.columns) fillColumns(ctx, paths.columns, -shift, width - shift);
    ctx.globalAlpha = paths.smooth ? 0.3 : 1;
    ctx.lineWidth = (paths.smooth || paths.isDense ? 1 : 1.5) * ratio; // a thin line is drawn a hundred times as fast
    ctx.stroke(paths.line);
    if (paths.dots && !paths.smooth) ctx.fill(paths.dots);
    ctx.globalAlpha = 1;
    if (paths.smooth) {
      ctx.lineWidth = 2 * ratio;
      ctx.lineJoin = "round";
      ctx.stroke(paths.smooth);
    }
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    for (const x of paths.bad) ctx.fillText("×", x, height - 3 * ratio);
    ctx.restore();
  }

  // A path is built again only if the scale has changed.
  #pathsOf(u: uPlot, content: Content, line: Line, frame: Frame): { paths: Paths; shift: number } {
    const y = u.scales.y!;
    const { perUnit, from, height } = frame;
    const fits = [perUnit.toPrecision(9), y.min, y.max, height, content.isLog, line.areMeans].join(" ");
    let built = this.#built.get(line.points);
    if (!built || built.fits !== fits || Math.abs((from - built.anchor) * perUnit) > FAR) {
      const scale: Scale = { perUnit, anchor: from, y: pixelOf(y.min!, y.max!, height, content.isLog), height, isLog: content.isLog };
      built = { fits, anchor: from, paths: pathsOf(line.points, scale, 2.2 * this.#ratio(), line.areMeans) };
      this.#built.set(line.points, built);
    }
    return { paths: built.paths, shift: (built.anchor - from) * perUnit };
  }
}

function fillColumns(ctx: CanvasRenderingContext2D, columns: Int32Array, from: number, to: number): void {
  for (let i = 0; i < columns.length; i += 3) {
    const left = columns[i]!;
    if (left < from - 4 || left > to + 4) continue;
    const next = i + 3 < columns.length ? columns[i + 3]! : left + 1;
    ctx.fillRect(left, columns[i + 1]!, Math.max(1, Math.min(4, next - left)), columns[i + 2]!);
  }
}

function pixelOf(low: number, high: number, height: number, isLog: boolean): (value: number) => number {
  if (!isLog) return (value) => height * (1 - (value - low) / (high - low));
  const [bottom, top] = [Math.log(low), Math.log(high)];
  return (value) => height * (1 - (Math.log(value) - bottom) / (top - bottom));
}
