// Pan and zoom by wheel, by Shift and drag, by touch, and by keys.
import { type Range, pan, zoomAround, zoomTo } from "./viewport";

export interface Surface {
  over: HTMLElement; // the plot without its axes
  range: () => Range;
}

const WHEEL = 0.0015;
const SLOP = 6;

export function addGestures({ over, range }: Surface): void {
  const unitsPerPixel = () => (range()[1] - range()[0]) / over.clientWidth;
  const at = (x: number) => range()[0] + (x - over.getBoundingClientRect().left) * unitsPerPixel();

  over.addEventListener(
    "wheel",
    (event) => {
      const isZoom = event.ctrlKey || event.metaKey;
      if (!isZoom && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the page scrolls
      event.preventDefault();
      if (isZoom) zoomAround(range(), at(event.clientX), Math.exp(event.deltaY * WHEEL * 3));
      else pan(range(), event.deltaX * unitsPerPixel());
    },
    { passive: false },
  );

  const fingers = new Map<number, number>();
  let begin: { range: Range; x: number; gap: number } | null = null;
  const restart = () => {
    const x = [...fingers.values()];
    begin = x.length ? { range: range(), x: x.reduce((a, b) => a + b) / x.length, gap: x.length > 1 ? Math.abs(x[0]! - x[1]!) : 0 } : null;
  };
  over.addEventListener("pointerdown", (event) => {
    const pans = event.pointerType === "touch" || (event.button === 0 && event.shiftKey) || event.button === 1;
    if (!pans) return;
    fingers.set(event.pointerId, event.clientX);
    if (event.pointerType !== "touch") {
      over.setPointerCapture(event.pointerId);
      event.preventDefault();
    }
    restart();
  });
  over.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId) || !begin) return;
    fingers.set(event.pointerId, event.clientX);
    const x = [...fingers.values()];
    const middle = x.reduce((a, b) => a + b) / x.length;
    if (x.length === 1 && event.pointerType === "touch" && Math.abs(middle - begin.x) < SLOP) return;
    const width = begin.range[1] - begin.range[0];
    const factor = x.length > 1 && begin.gap ? begin.gap / Math.max(1, Math.abs(x[0]! - x[1]!)) : 1;
    const [left, span] = [over.getBoundingClientRect().left, over.clientWidth];
    const held = begin.range[0] + ((begin.x - left) / span) * width; // stays under the fingers
    const from = held - ((middle - left) / span) * width * factor;
    pan([from, from + width * factor], 0);
  });
  for (const name of ["pointerup", "pointercancel"] as const) {
    over.addEventListener(name, (event) => {
      if (fingers.delete(event.pointerId)) restart();
    });
  }
}

// Return whether a key has moved the charts.
export function moveByKey(event: KeyboardEvent, range: Range): boolean {
  const width = range[1] - range[0];
  const middle = (range[0] + range[1]) / 2;
  if (event.key === "ArrowLeft" && event.shiftKey) pan(range, -width / 8);
  else if (event.key === "ArrowRight" && event.shiftKey) pan(range, width / 8);
  else if (event.key === "+" || event.key === "=") zoomAround(range, middle, 0.7);
  else if (event.key === "-") zoomAround(range, middle, 1 / 0.7);
  else if (event.key === "0" || event.key === "Escape") zoomTo(null);
  else return false;
  return true;
}
