// A chart: uPlot has the axes and the cursor, and the painter draws the curves. It knows nothing of Preact.
import uPlot from "uplot";
import { logTicks, ticks, timeTicks } from "../curves/ticks";
import { compact, duration, short } from "../data/format";
import { type Content, isSameContent, yRange } from "./content";
import { onPoint, pointAt } from "./crosshair";
import { addGestures, moveByKey } from "./gestures";
import { Painter } from "./painter";
import { type Reading, reading } from "./reading";
import { onTheme, palette } from "./theme";
import { Tip } from "./tip";
import { type Range, currentRange, isMoving, onMove, zoomTo } from "./viewport";

const REACH = 7; // pixels from the pointer to a mark
const FONT = "11px system-ui, sans-serif";

export class CurveChart {
  #plot: uPlot | null = null;
  #content: Content;
  #painter = new Painter();
  #tip: Tip;
  #undo: (() => void)[];
  #size = { width: 0, height: 0 };
  #drawnRange: Range | null = null;
  #keyed: number | null = null; // where the keyboard has put the cursor

  constructor(
    private readonly root: HTMLElement,
    content: Content,
    private readonly say: (reading: Reading) => void,
  ) {
    this.#content = content;
    this.#tip = new Tip(root);
    const resizing = new ResizeObserver(() => this.#resize());
    resizing.observe(root);
    const onKey = (event: KeyboardEvent) => this.#key(event);
    const onLeave = () => this.#leave();
    root.addEventListener("keydown", onKey);
    root.addEventListener("blur", onLeave);
    this.#undo = [
      () => resizing.disconnect(),
      () => root.removeEventListener("keydown", onKey),
      () => root.removeEventListener("blur", onLeave),
      onMove(() => this.#scale()),
      onTheme(() => this.#build()),
      onPoint((position, source) => source !== this && this.#follow(position)),
    ];
    this.#resize();
  }

  show(content: Content): void {
    const before = this.#content;
    this.#content = content;
    if (isSameContent(before, content) && this.#range() === this.#drawnRange) return;
    if (before.isLog !== content.isLog || before.axis !== content.axis) this.#build();
    else this.#scale();
  }

  destroy(): void {
    for (const undo of this.#undo) undo();
    this.#plot?.destroy();
    this.#plot = null;
  }

  get canvas(): HTMLCanvasElement | null {
    return this.#plot?.ctx.canvas ?? null;
  }

  #resize(): void {
    const [width, height] = [Math.floor(this.root.clientWidth), Math.floor(this.root.clientHeight)];
    if (!width || !height || (width === this.#size.width && height === this.#size.height)) return;
    this.#size = { width, height };
    if (this.#plot) this.#plot.setSize(this.#size);
    else this.#build();
  }

  #build(): void {
    if (!this.#size.width) return;
    this.#plot?.destroy();
    const { isLog, axis } = this.#content;
    const labels = { stroke: () => palette().muted, font: FONT, ticks: { show: false } };
    const grid = { stroke: () => palette().grid, width: 1 };
    const timed = axis === "time";
    const options: uPlot.Options = {
      ...this.#size,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      scales: { x: { time: false, auto: false }, y: { auto: false, distr: isLog ? 3 : 1 } },
      axes: [
        {
          ...labels,
          grid,
          size: 26,
          splits: (u, _axis, low, high) => (timed ? timeTicks : ticks)(low, high, u.bbox.width / devicePixelRatio / (timed ? 62 : 46)),
          values: (_u, values) => values.map((value) => (timed ? duration(value) : compact(value))),
        },
        {
          ...labels,
          grid,
          size: 52,
          splits: (u, _axis, low, high) => (isLog ? logTicks : ticks)(low, high, u.bbox.height / devicePixelRatio / 34),
          filter: (_u, values) => values,
          values: (_u, values) => values.map((value) => short(value, 4)),
        },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: 5 },
        bind: {
          mousedown: (_u, _target, handler) => (event: MouseEvent) => {
            if (event.button === 0 && !event.shiftKey) handler(event);
            return null;
          },
          dblclick: () => () => {
            zoomTo(null);
            return null;
          },
        },
      },
      hooks: {
        draw: [(u) => this.#painter.paint(u, this.#content)],
        setSelect: [(u) => this.#select(u)],
        setCursor: [(u) => this.#point(u)],
      },
    };
    const plot = new uPlot(options, [[0, 1], [null, null]] as unknown as uPlot.AlignedData, this.root);
    addGestures({ over: plot.over, range: () => this.#range() });
    this.#plot = plot;
    this.#scale();
  }

  #range(): Range {
    return currentRange() ?? this.#content.extent;
  }

  // While the charts move, the y scale stays: curves are shifted, not built again.
  #scale(): void {
    const plot = this.#plot;
    if (!plot) return;
    const [min, max] = (this.#drawnRange = this.#range());
    plot.batch(() => {
      plot.setScale("x", { min, max });
      if (isMoving() && plot.scales.y!.min !== null && plot.scales.y!.min !== undefined) return;
      const [low, high] = yRange(this.#content, [min, max]);
      plot.setScale("y", { min: low, max: high });
    });
  }

  #select(u: uPlot): void {
    const { left, width } = u.select;
    if (width <= 0) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    zoomTo([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
  }

  #point(u: uPlot): void {
    const left = u.cursor.left ?? -1;
    if (left < 0) {
      if (this.#keyed === null) this.#leave();
      return;
    }
    const position = u.posToVal(left, "x");
    this.#read(position);
    pointAt(position, this);
  }

  #read(position: number): void {
    const plot = this.#plot;
    if (!plot) return;
    const [low, high] = this.#range();
    const found = reading(this.#content, position, (REACH * (high - low)) / plot.over.clientWidth);
    const place = plot.over.getBoundingClientRect();
    this.#tip.show(found, place.left + plot.valToPos(position, "x"), place.top);
    if (this.#keyed !== null) this.say(found);
  }

  #leave(): void {
    this.#keyed = null;
    this.#tip.hide();
    pointAt(null, this);
  }

  // Another chart has the pointer: show the same position here.
  #follow(position: number | null): void {
    const plot = this.#plot;
    if (!plot) return;
    this.#tip.hide();
    plot.setCursor({ left: position === null ? -10 : plot.valToPos(position, "x"), top: -10 }, false);
  }

  #key(event: KeyboardEvent): void {
    const [low, high] = this.#range();
    if (moveByKey(event, [low, high])) {
      event.preventDefault();
      return;
    }
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    const by = ((event.key === "ArrowLeft" ? -1 : 1) * (high - low)) / 50;
    this.#keyed = Math.min(high, Math.max(low, (this.#keyed ?? (low + high) / 2) + by));
    this.#plot?.setCursor({ left: this.#plot.valToPos(this.#keyed, "x"), top: 0 }, false);
    this.#read(this.#keyed);
    pointAt(this.#keyed, this);
  }
}
