// The box with the values under the pointer. Names are set as text.
import type { Reading } from "./reading";
import { palette } from "./theme";

const GAP = 12;

function element(tag: string, name: string, text = ""): HTMLElement {
  const one = document.createElement(tag);
  one.className = name;
  one.textContent = text;
  return one;
}

export class Tip {
  #box = element("div", "tip");

  constructor(parent: HTMLElement) {
    this.#box.hidden = true;
    parent.append(this.#box);
  }

  // `left` is where the pointer is, `top` where the chart begins, both in the window.
  show(reading: Reading, left: number, top: number): void {
    const rows = reading.rows.map((row) => {
      const line = element("div", "tip-row");
      const dot = element("span", "swatch");
      dot.style.background = palette().runs[row.colour]!;
      line.append(dot, element("span", "tip-label", row.label), element("b", "", row.value), element("span", "tip-more", row.more));
      return line;
    });
    const head = element("div", "tip-head", reading.title);
    head.append(element("span", "tip-where", reading.where));
    const marks = reading.marks.map((text, index) => element("div", index ? "tip-mark" : "tip-mark tip-marked", text));
    this.#box.replaceChildren(head, ...rows, ...marks);
    this.#box.hidden = false;
    const width = this.#box.offsetWidth;
    const fits = left + GAP + width <= innerWidth - GAP;
    this.#box.style.left = `${Math.max(GAP, fits ? left + GAP : left - GAP - width)}px`;
    this.#box.style.top = `${Math.max(GAP, Math.min(top, innerHeight - GAP - this.#box.offsetHeight))}px`;
  }

  hide(): void {
    this.#box.hidden = true;
  }
}
