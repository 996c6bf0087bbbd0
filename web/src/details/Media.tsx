// Images and histograms of the run, read when this tab is opened. A slider goes through the steps.
import { useEffect, useRef, useState } from "preact/hooks";
import { palette } from "../charts/theme";
import { api } from "../data/api";
import { short } from "../data/format";
import { get } from "../data/store";
import type { HistogramAnswer, Medium } from "../data/types";

const MOST = 60;

export function Media() {
  const key = get().view.focus!;
  const [media, setMedia] = useState<Medium[] | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let isHere = true;
    api.media(key).then(
      (answer) => isHere && setMedia(answer.media),
      (error: unknown) => isHere && setProblem(error instanceof Error ? error.message : String(error)),
    );
    return () => {
      isHere = false;
    };
  }, []);
  if (problem) return <p class="problem" role="alert">{problem}</p>;
  if (!media) return <p class="hint">Reading TensorBoard's files …</p>;
  if (!media.length) return <p class="hint">This run has logged no images and no histograms.</p>;
  const groups = new Map<string, Medium[]>();
  for (const one of media) {
    const id = `${one.kind} ${one.name}`;
    groups.set(id, [...(groups.get(id) ?? []), one]);
  }
  return (
    <div id="media">
      {[...groups].slice(0, MOST).map(([id, steps]) => <Figure key={id} run={key} steps={steps} />)}
      {groups.size > MOST && <p class="hint">{groups.size - MOST} more are in TensorBoard's files.</p>}
    </div>
  );
}

function Figure({ run, steps }: { run: string; steps: Medium[] }) {
  const [index, setIndex] = useState(steps.length - 1);
  const one = steps[Math.min(index, steps.length - 1)]!;
  return (
    <figure>
      <figcaption>{one.name} <small>step {one.step.toLocaleString("en-US")}</small></figcaption>
      {one.kind === "image" ? <img src={api.imageUrl(run, one)} alt={`${one.name} at step ${one.step}`} loading="lazy" /> : <Histogram run={run} one={one} />}
      {steps.length > 1 && (
        <input type="range" min={0} max={steps.length - 1} value={index} aria-label={`Step of ${one.name}`} onInput={(event) => setIndex(Number(event.currentTarget.value))} />
      )}
    </figure>
  );
}

function Histogram({ run, one }: { run: string; one: Medium }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [text, setText] = useState("");
  useEffect(() => {
    let isHere = true;
    api.histogram(run, one).then(
      (answer) => {
        if (!isHere || !canvas.current) return;
        draw(canvas.current, answer);
        setText(`${short(answer.low)} to ${short(answer.high)}`);
      },
      (error: unknown) => isHere && setText(error instanceof Error ? error.message : String(error)),
    );
    return () => {
      isHere = false;
    };
  }, [one]);
  return (
    <>
      <canvas ref={canvas} width={600} height={140} role="img" aria-label={`Histogram of ${one.name}, ${text}`} />
      <small>{text}</small>
    </>
  );
}

// The area of a bar is its count: bins have different widths.
function draw(canvas: HTMLCanvasElement, { counts, limits, low, high }: HistogramAnswer): void {
  const g = canvas.getContext("2d")!;
  g.clearRect(0, 0, canvas.width, canvas.height);
  g.fillStyle = palette().accent;
  const bars = counts.flatMap((count, i) => {
    const [left, right] = [Math.max(low, limits[i - 1] ?? low), Math.min(high, limits[i] ?? high)];
    return count && right >= left ? [{ left, width: right - left, count }] : [];
  });
  const perUnit = canvas.width / (high - low || 1);
  const heightOf = (bar: (typeof bars)[number]) => bar.count / Math.max(bar.width * perUnit, 1);
  const most = Math.max(...bars.map(heightOf), 0);
  for (const bar of bars) {
    const height = (canvas.height * heightOf(bar)) / most;
    g.fillRect((bar.left - low) * perUnit, canvas.height - height, Math.max(1, bar.width * perUnit - 1), height);
  }
}
