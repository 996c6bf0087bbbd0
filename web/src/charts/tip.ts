// The box with the values under the pointer. Names are set as text.
import type { Reading } from "./reading";
import { palette } from "./theme";

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

  show(reading: Reading, left: number, width: number): void {
    const rows = reading.rows.map((row) => {
      const line = element("div", "tip-row");
      const dot = element("span", "swatch");
      dot.style.background = palette().runs[row.colour]!;
      line.append(dot, element("span", "tip-label", row.label), element("b", "", row.value), element("span", "tip-more", row.more));
      return line;
    });
    const marks = reading.marks.map((text) => element("div", "tip-mark", text));
    this.#box.replaceChildren(element("div", "tip-head", reading.where), ...rows, ...marks);
    this.#box.hidden = false;
    const isRight = left > width / 2;
    this.#box.style.left = isRight ? "auto" : `${left + 12}px`;
    this.#box.style.right = isRight ? `${width - left + 12}px` : "auto";
  }

  hide(): void {
    this.#box.hidden = true;
  }

  get text(): string {
    return this.#box.hidden ? "" : (this.#box.textContent ?? "");
  }
}
