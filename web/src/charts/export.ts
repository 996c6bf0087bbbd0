// A chart as a picture or as a table of values.
import uPlot from "uplot";
import { api } from "../data/api";
import { axesOf } from "./chart_axes";
import { type Content, yRange } from "./content";
import { Painter } from "./painter";
import { inLight, palette } from "./theme";
import { currentRange } from "./viewport";

const SCALE = 2; // pixels of the picture for each of the sizes below
const WIDTH = 640;
const HEIGHT = 340;
const PAD = 12;
const LINE = 18;
const X_LABELS = { step: "step", epoch: "epoch", time: "time since the start" };

export function download(url: string, name: string): void {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
}

const fileName = (title: string) => title.replace(/[^A-Za-z0-9_.-]+/g, "_").replace(/^[._]+|[._]+$/g, "") || "chart";

// All values of all shown runs, not only those on the screen.
export function saveCsv(keys: string[], name: string, at: string): void {
  download(api.csvUrl(keys, name, at), `${fileName(name)}.csv`);
}

// The chart with its title, the name of its axis and those of its runs: for documents, so always light.
export async function savePng(content: Content): Promise<void> {
  const canvas = inLight(() => picture(content));
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) return;
  const url = URL.createObjectURL(blob);
  download(url, `${fileName(content.title)}.png`);
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function picture(content: Content): HTMLCanvasElement {
  const colours = palette();
  const runs = [...new Map(content.lines.map((line) => [line.key, line])).values()];
  const canvas = document.createElement("canvas");
  canvas.width = (WIDTH + 2 * PAD) * SCALE;
  canvas.height = (HEIGHT + 3 * PAD + LINE * (runs.length + 2)) * SCALE;
  const g = canvas.getContext("2d")!;
  g.fillStyle = colours.surface;
  g.fillRect(0, 0, canvas.width, canvas.height);
  const plot = plotOf(content);
  g.drawImage(plot.ctx.canvas, PAD * SCALE, (PAD + LINE) * SCALE);
  plot.destroy();
  g.scale(SCALE, SCALE);
  g.textBaseline = "middle";
  g.fillStyle = colours.text;
  g.font = "600 13px system-ui, sans-serif";
  g.fillText(content.title, PAD, PAD + LINE / 2);
  g.font = "12px system-ui, sans-serif";
  g.textAlign = "center";
  g.fillText(X_LABELS[content.axis], PAD + (52 + WIDTH) / 2, PAD + HEIGHT + LINE * 1.5);
  g.textAlign = "left";
  runs.forEach((line, index) => {
    const y = HEIGHT + 2 * PAD + LINE * (index + 2.5);
    g.fillStyle = colours.runs[line.colour]!;
    g.fillRect(PAD, y - 5, 10, 10);
    g.fillStyle = colours.text;
    g.fillText(line.label, PAD + 16, y);
  });
  return canvas;
}

// uPlot multiplies all sizes by the ratio of the screen.
function plotOf(content: Content): uPlot {
  const scale = SCALE / devicePixelRatio;
  const painter = new Painter(scale);
  const options: uPlot.Options = {
    width: WIDTH * scale,
    height: HEIGHT * scale,
    padding: [8 * scale, 18 * scale, 0, 0],
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false, auto: false }, y: { auto: false, distr: content.isLog ? 3 : 1 } },
    axes: axesOf(content, scale),
    series: [{}, { paths: () => null, points: { show: false } }],
    hooks: { draw: [(u) => painter.paint(u, content)] },
  };
  const plot = new uPlot(options, [[0, 1], [null, null]] as unknown as uPlot.AlignedData);
  const range = currentRange() ?? content.extent;
  const [low, high] = yRange(content, range);
  plot.batch(() => {
    plot.setScale("x", { min: range[0], max: range[1] });
    plot.setScale("y", { min: low, max: high });
  });
  return plot;
}
