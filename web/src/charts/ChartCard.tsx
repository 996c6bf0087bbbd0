// The frame of a chart: its title, its buttons, and the chart itself while it is on the screen.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { reload, setPixels, want } from "../data/curve_store";
import { short } from "../data/format";
import { get, setView, update } from "../data/store";
import type { Composed } from "./compose";
import { highest } from "./content";
import { CurveChart } from "./curve_chart";
import { saveCsv, savePng } from "./export";

const BESIDE = "300px"; // charts are mounted a little before they can be seen

export function ChartCard({ name, composed, isPinned }: { name: string; composed: Composed; isPinned: boolean }) {
  const { content, note, isExact, at } = composed;
  const box = useRef<HTMLElement>(null);
  const root = useRef<HTMLDivElement>(null);
  const chart = useRef<CurveChart | null>(null);
  const [isNear, setNear] = useState(false);
  const [isLarge, setLarge] = useState(false);
  const [spoken, setSpoken] = useState("");

  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setNear(entry?.isIntersecting ?? false), { rootMargin: BESIDE });
    observer.observe(box.current!);
    return () => observer.disconnect();
  }, []);

  useEffect(() => (isNear ? want(name) : undefined), [isNear, name]);

  useLayoutEffect(() => {
    if (!isNear || !root.current) return undefined;
    setPixels((document.querySelector(".chart.large .plot") ?? root.current).clientWidth);
    const mounted = new CurveChart(root.current, content, (reading) => {
      setSpoken([reading.title, reading.where, ...reading.rows.map((row) => `${row.label} ${row.value}`), ...reading.marks].join("; "));
    });
    chart.current = mounted;
    return () => {
      mounted.destroy();
      chart.current = null;
    };
  }, [isNear]);

  useLayoutEffect(() => chart.current?.show(content), [content]);

  useEffect(() => {
    if (!isLarge || !root.current) return;
    setPixels(root.current.clientWidth);
    reload(name); // there is room for more points
    box.current?.scrollIntoView({ block: "nearest" });
  }, [isLarge]);

  const keys = [...new Set(content.lines.map((line) => line.key))];
  const togglePin = () => {
    const { pinned } = get().view;
    setView({ pinned: isPinned ? pinned.filter((one) => one !== name) : [...pinned, name] });
    update({ notice: isPinned ? `Unpinned ${name}.` : `Pinned ${name} at the top.` });
  };
  return (
    <article class={isLarge ? "chart large" : "chart"} ref={box} data-metric={name} data-exact={isExact} data-high={isNear ? highest(content) : ""} data-lines={content.lines.length}>
      <header>
        <h3 title={name}>{name}</h3>
        {note && <span class="badge" title={note}>{note}</span>}
        <span class="chart-tools">
          <button type="button" class="quiet" aria-pressed={isPinned} aria-label={`Pin ${name}`} title={isPinned ? "Unpin this chart" : "Pin this chart to the top"} onClick={togglePin}>
            {isPinned ? "Unpin" : "Pin"}
          </button>
          <button
            type="button"
            class="quiet"
            title="Save this chart as a picture"
            aria-label={`PNG of ${name}`}
            onClick={() => void savePng(content)}
          >
            PNG
          </button>
          <button type="button" class="quiet" title="Save all values of the shown runs" aria-label={`CSV of ${name}`} onClick={() => saveCsv(keys, name, at)}>
            CSV
          </button>
          <button type="button" class="quiet" aria-pressed={isLarge} aria-label={`Enlarge ${name}`} title={isLarge ? "Make this chart small again" : "Enlarge this chart"} onClick={() => setLarge(!isLarge)}>
            <svg width="11" height="11" viewBox="0 0 11 11" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.5"><path d={isLarge ? "M1 5h4V1M6 10V6h4" : "M6 1h4v4M5 10H1V6"} /></svg>
          </button>
        </span>
      </header>
      <div class="plot" ref={root} tabIndex={0} role="img" aria-label={summary(composed)} />
      <span class="sr" role="status">
        {spoken}
      </span>
    </article>
  );
}

// The curves in words: the newest value of each run.
function summary({ content }: Composed): string {
  const values = content.lines.filter((line) => !line.areMeans).map((line) => `${line.label}: ${short(line.points.mean.at(-1) ?? null)}`);
  return `${content.title}. Newest values: ${values.join("; ") || "none"}. Use the arrow keys to read values.`;
}
