// A chart: uPlot has the axes and the cursor, and the painter draws the curves. It knows nothing of Preact.
import uPlot from "uplot";
import { axesOf } from "./chart_axes";
import { type Content, isSameContent, yRange } from "./content";
import { isOwner, onPoint, pointAt, release, sharedPosition } from "./crosshair";
import { addGestures, moveByKey } from "./gestures";
import { Painter } from "./painter";
import { type Reading, reading } from "./reading";
import { onTheme } from "./theme";
import { Tip } from "./tip";
import { type Range, currentRange, isMoving, onMove, zoomTo } from "./viewport";

const REACH = 7; // pixels from the pointer to a mark

export class CurveChart {
  #plot: uPlot | null = null;
  #content: Content;
  #painter = new Painter();
  #tip: Tip;
  #undo: (() => void)[];
  #size = { width: 0, height: 0 };
  #drawnRange: Range | null = null;
  #isKeyed = false; // the keyboard has put the cursor there
  #isPointed = false; // uPlot is handling an event of the pointer

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
      onPoint(() => this.#follow()),
      () => release(this),
    ];
    this.#resize();
  }

  show(content: Content): void {
    const before = this.#content;
    this.#content = content;
    if (isSameContent(before, content) && this.#range() === this.#drawnRange) return;
    if (before.isLog !== content.isLog || before.axis !== content.axis) this.#build();
    else this.#scale();
    if (isOwner(this)) this.#follow(); // the values there may be new
  }

  destroy(): void {
    for (const undo of this.#undo) undo();
    this.#plot?.destroy();
    this.#plot = null;
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
    const { isLog } = this.#content;
    const options: uPlot.Options = {
      ...this.#size,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      scales: { x: { time: false, auto: false }, y: { auto: false, distr: isLog ? 3 : 1 } },
      axes: axesOf(this.#content),
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
          mousemove: (_u, _target, handler) => (event: MouseEvent) => this.#pointed(() => handler(event)),
          mouseleave: (_u, _target, handler) => (event: MouseEvent) => this.#pointed(() => handler(event)),
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

  #pointed(handle: () => void): null {
    this.#isPointed = true;
    handle();
    this.#isPointed = false;
    return null;
  }

  // uPlot also reports its cursor after each change of a scale: then the position stays, and the cursor moves.
  #point(u: uPlot): void {
    if (!this.#isPointed) return this.#follow();
    const left = u.cursor.left ?? -1;
    if (left >= 0) {
      this.#isKeyed = false;
      pointAt(u.posToVal(left, "x"), this);
    } else if (!this.#isKeyed) release(this);
  }

  #read(plot: uPlot, position: number): Reading {
    const [low, high] = this.#range();
    const found = reading(this.#content, position, (REACH * (high - low)) / plot.over.clientWidth);
    const place = plot.over.getBoundingClientRect();
    this.#tip.show(found, place.left + plot.valToPos(position, "x"), place.top);
    return found;
  }

  #leave(): void {
    this.#isKeyed = false;
    release(this);
  }

  // Put the cursor at the shared position. Only its owner has the box with the values.
  #follow(): void {
    const plot = this.#plot;
    const position = sharedPosition();
    if (!plot) return;
    const [low, high] = this.#range();
    const isInside = position !== null && position >= low && position <= high;
    plot.setCursor({ left: isInside ? plot.valToPos(position, "x") : -10, top: isOwner(this) ? 0 : -10 }, false);
    if (isInside && isOwner(this)) this.#read(plot, position);
    else this.#tip.hide();
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
    const from = isOwner(this) ? sharedPosition() : null;
    this.#isKeyed = true;
    const to = Math.min(high, Math.max(low, (from ?? (low + high) / 2) + by));
    pointAt(to, this);
    if (this.#plot) this.say(this.#read(this.#plot, to));
  }
}
