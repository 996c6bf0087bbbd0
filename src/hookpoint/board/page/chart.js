// A chart on a canvas: a line of means and a band from the lowest to the highest value, for each curve.
const MARGIN = { left: 52, right: 18, top: 6, bottom: 22 };

export class Chart {
  // `zoomed(range)` is called with [from, to] after a drag, and with null after a double click.
  constructor(canvas, zoomed) {
    this.canvas = canvas;
    this.zoomed = zoomed;
    this.curves = [];
    this.options = { log: false, time: false, range: null };
    this.drag = null;
    this.hover = null;
    canvas.addEventListener("pointerdown", (event) => this.begin(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.end(event));
    canvas.addEventListener("pointerleave", () => { this.hover = null; this.draw(); });
    canvas.addEventListener("dblclick", () => this.zoomed(null));
    this.resizing = new ResizeObserver(() => this.draw());
    this.resizing.observe(canvas);
  }

  remove() { this.resizing.disconnect(); }

  show(curves, options) {
    this.curves = curves;
    this.options = options;
    this.draw();
  }

  xs(curve) { return this.options.time ? curve.t : curve.x; }

  limits() {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const curve of this.curves) {
      const xs = this.xs(curve), ends = this.options.time ? curve.t : curve.x1;
      for (let i = 0; i < xs.length; i++) {
        x0 = Math.min(x0, xs[i]);
        x1 = Math.max(x1, ends[i]);
        for (const y of [curve.lo[i], curve.hi[i]]) {
          if (y === null || (this.options.log && y <= 0)) continue;
          y0 = Math.min(y0, y);
          y1 = Math.max(y1, y);
        }
      }
    }
    if (this.options.range && !this.options.time) [x0, x1] = this.options.range;
    if (x0 > x1) [x0, x1] = [0, 1];
    if (y0 > y1) [y0, y1] = [this.options.log ? 0.1 : 0, 1];
    if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
    if (this.options.log) { const m = Math.max(1.05, (y1 / y0) ** 0.05); return { x0, x1, y0: y0 / m, y1: y1 * m }; }
    const margin = (y1 - y0) * 0.05 || Math.abs(y1) * 0.1 || 1;
    return { x0, x1, y0: y0 - margin, y1: y1 + margin };
  }

  draw() {
    const { canvas } = this, scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width || !height) return;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const g = canvas.getContext("2d");
    g.scale(scale, scale);
    const box = (this.box = { left: MARGIN.left, top: MARGIN.top, width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom });
    const limits = (this.shown = this.limits());
    const flat = this.options.log ? Math.log : (y) => y;
    const [low, high] = [flat(limits.y0), flat(limits.y1)];
    const px = (x) => box.left + ((x - limits.x0) / (limits.x1 - limits.x0)) * box.width;
    const py = (y) => box.top + (1 - (flat(y) - low) / (high - low)) * box.height;
    this.axes(g, box, limits, px, py);
    g.save();
    g.beginPath();
    g.rect(box.left, box.top, box.width, box.height);
    g.clip();
    const usable = (y) => y !== null && (!this.options.log || y > 0);
    for (const curve of this.curves) {
      const xs = this.xs(curve), ends = this.options.time ? curve.t : curve.x1;
      g.fillStyle = curve.colour;
      g.strokeStyle = curve.colour;
      g.globalAlpha = 0.22;
      for (let i = 0; i < xs.length; i++) {
        if (!usable(curve.hi[i]) || curve.lo[i] === curve.hi[i]) continue;
        const left = px(xs[i]), top = py(curve.hi[i]), bottom = usable(curve.lo[i]) ? py(curve.lo[i]) : box.top + box.height;
        const next = i + 1 < xs.length ? Math.max(px(ends[i]), Math.min(px(xs[i + 1]), left + 3)) : px(ends[i]);
        g.fillRect(left, top, Math.max(1, next - left), Math.max(1, bottom - top));
      }
      g.globalAlpha = 1;
      g.lineWidth = 1.5;
      g.beginPath();
      let open = false;
      for (let i = 0; i < xs.length; i++) {
        if (!usable(curve.mean[i])) { open = false; continue; }
        const x = px((xs[i] + ends[i]) / 2), y = py(curve.mean[i]);
        if (open) g.lineTo(x, y); else g.moveTo(x, y);
        open = true;
      }
      g.stroke();
      for (let i = 0; i < xs.length; i++) {
        if (xs.length <= 40 && usable(curve.mean[i])) g.fillRect(px((xs[i] + ends[i]) / 2) - 2, py(curve.mean[i]) - 2, 4, 4);
        if (curve.bad[i]) { g.font = "11px sans-serif"; g.fillText("×", px(xs[i]) - 3, box.top + box.height - 2); }
      }
    }
    if (this.hover !== null) { g.fillStyle = "#0004"; g.fillRect(this.hover, box.top, 1, box.height); }
    if (this.drag) { g.fillStyle = "#0072b233"; g.fillRect(Math.min(this.drag.from, this.drag.to), box.top, Math.abs(this.drag.to - this.drag.from), box.height); }
    g.restore();
  }

  axes(g, box, limits, px, py) {
    g.font = "11px sans-serif";
    g.fillStyle = "#5a5a5a";
    g.strokeStyle = "#e4e4e4";
    g.lineWidth = 1;
    const ys = this.options.log ? decades(limits.y0, limits.y1) : ticks(limits.y0, limits.y1, 5);
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (const y of ys) { line(g, box.left, py(y), box.left + box.width, py(y)); g.fillText(short(y), box.left - 5, py(y)); }
    g.textBaseline = "top";
    g.textAlign = "center";
    for (const x of ticks(limits.x0, limits.x1, Math.max(2, Math.floor(box.width / 90)))) {
      line(g, px(x), box.top, px(x), box.top + box.height);
      g.fillText(this.options.time ? new Date(x * 1000).toLocaleTimeString() : compact(x), px(x), box.top + box.height + 5);
    }
    g.textAlign = "left";
  }

  at(event) { return event.clientX - this.canvas.getBoundingClientRect().left; }

  value(x) { return this.shown.x0 + ((x - this.box.left) / this.box.width) * (this.shown.x1 - this.shown.x0); }

  begin(event) { this.drag = { from: this.at(event), to: this.at(event) }; this.canvas.setPointerCapture(event.pointerId); }

  move(event) {
    this.hover = this.at(event);
    if (this.drag) this.drag.to = this.hover;
    this.draw();
    this.read?.(this.box ? this.value(this.hover) : null);
  }

  end() {
    const drag = this.drag;
    this.drag = null;
    if (drag && Math.abs(drag.to - drag.from) > 5 && !this.options.time) {
      this.zoomed([this.value(Math.min(drag.from, drag.to)), this.value(Math.max(drag.from, drag.to))]);
    } else this.draw();
  }
}

function line(g, x0, y0, x1, y1) { g.beginPath(); g.moveTo(x0, y0); g.lineTo(x1, y1); g.stroke(); }

export function short(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(6)));
}

function compact(value) {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) return `${Number((value / (letter === "k" ? 1e3 : size)).toPrecision(6))}${letter}`;
  }
  return short(value);
}

function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  if (!Number.isFinite(power) || power === 0) return [];
  const stride = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw) ?? 10 * power;
  const found = [];
  for (let n = Math.ceil(low / stride); n * stride <= high && found.length < 50; n++) found.push(Number((n * stride).toPrecision(12)));
  return found;
}

function decades(low, high) {
  const found = [];
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power++) found.push(10 ** power);
  return found.length >= 2 ? found.filter((_, i) => i % Math.ceil(found.length / 6) === 0) : ticks(low, high, 4).filter((y) => y > 0);
}
