// A chart as a picture or as a table of values.
import { api } from "../data/api";
import type { Content } from "./content";
import { palette } from "./theme";

const PAD = 12;
const LINE = 18;

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

// The chart with its title and the names of its runs.
export async function savePng(source: HTMLCanvasElement, content: Content): Promise<void> {
  const ratio = devicePixelRatio;
  const colours = palette();
  const runs = [...new Map(content.lines.map((line) => [line.key, line])).values()];
  const canvas = document.createElement("canvas");
  canvas.width = source.width + 2 * PAD * ratio;
  canvas.height = source.height + (3 * PAD + LINE * (runs.length + 1)) * ratio;
  const g = canvas.getContext("2d")!;
  g.fillStyle = colours.surface;
  g.fillRect(0, 0, canvas.width, canvas.height);
  g.drawImage(source, PAD * ratio, (PAD + LINE) * ratio);
  g.scale(ratio, ratio);
  g.textBaseline = "middle";
  g.fillStyle = colours.text;
  g.font = "600 13px system-ui, sans-serif";
  g.fillText(content.title, PAD, PAD + LINE / 2);
  g.font = "12px system-ui, sans-serif";
  runs.forEach((line, index) => {
    const y = source.height / ratio + 2 * PAD + LINE * (index + 1.5);
    g.fillStyle = colours.runs[line.colour]!;
    g.fillRect(PAD, y - 5, 10, 10);
    g.fillStyle = colours.text;
    g.fillText(line.label, PAD + 16, y);
  });
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) return;
  const url = URL.createObjectURL(blob);
  download(url, `${fileName(content.title)}.png`);
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
