// Requests to the server. Every failure has a text that can be shown.
import type { Answer, HistogramAnswer, Medium, RunDetails, RunEvent, Row, SeriesAnswer, Settings } from "./types";

export class Unreachable extends Error {}
export class Denied extends Error {}

async function request(url: string, options?: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, options);
  } catch {
    throw new Unreachable("The board does not answer.");
  }
  if (response.status === 401) throw new Denied("This page has no access any more.");
  if (!response.ok) throw new Error(await response.text());
  return response;
}

async function json<T>(url: string): Promise<T> {
  return (await request(url)).json() as Promise<T>;
}

export interface SeriesQuery {
  names?: string[];
  from?: number;
  to?: number;
  pixels: number;
}

function search(values: Record<string, string | number>, names: string[] = []): string {
  const query = new URLSearchParams(Object.entries(values).map(([name, value]) => [name, String(value)]));
  for (const name of names) query.append("name", name);
  return query.toString();
}

export const api = {
  runs: () => json<{ version: number; runs: Row[]; read_only: boolean }>("/api/runs"),
  settings: () => json<{ settings: Record<string, Settings> }>("/api/settings"),
  run: (key: string) => json<RunDetails>(`/api/run/${key}`),
  events: (key: string) => json<{ events: RunEvent[] }>(`/api/run/${key}/events`),
  media: (key: string) => json<{ media: Medium[] }>(`/api/run/${key}/media`),
  histogram: (key: string, one: Medium) =>
    json<HistogramAnswer>(`/api/run/${key}/histogram?${search({ name: one.name, step: one.step })}`),
  imageUrl: (key: string, one: Medium) => `/api/run/${key}/image?${search({ name: one.name, step: one.step })}`,
  csvUrl: (keys: string[], name: string, at: string) => `/api/curve.csv?${search({ runs: keys.join(","), name, at })}`,

  series(key: string, query: SeriesQuery): Promise<SeriesAnswer> {
    const range = query.from === undefined || query.to === undefined ? {} : { from: query.from, to: query.to };
    return json(`/api/run/${key}/series?${search({ px: query.pixels, ...range }, query.names)}`);
  },

  async command(key: string, what: string, args: object): Promise<Answer> {
    const headers = { "content-type": "application/json", "x-hookpoint": "1" };
    const body = JSON.stringify({ do: what, args });
    return (await request(`/api/run/${key}/control`, { method: "POST", headers, body })).json() as Promise<Answer>;
  },
};
