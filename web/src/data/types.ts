// What the server answers.

export type Status = "running" | "finished" | "stopped" | "failed" | "killed" | "unknown";

export interface Best {
  metric: string;
  value: number | string;
  step: number | null;
  mode: "min" | "max" | null;
  source: string;
}

export interface Row {
  key: string;
  name: string;
  label: string;
  status: Status;
  paused: boolean;
  reason: string;
  step: number | null;
  epoch: number | null;
  epochs: number | null;
  started: string | null;
  seconds: number | null;
  since: number | null;
  best: Best | null;
  last: [string, number | string] | null;
  control: boolean;
  hyper: string[]; // names of hyper-parameters
}

export type Plain = string | number | boolean | null | Plain[] | { [name: string]: Plain };
export type Settings = Record<string, Plain>;

// The values of a metric: a point stands for the values of the steps from x to x1.
export interface Curve {
  name: string;
  at: string;
  exact: boolean;
  x: number[];
  x1: number[];
  t: number[];
  lo: (number | null)[];
  hi: (number | null)[];
  mean: (number | null)[];
  bad: number[];
}

export interface SeriesAnswer {
  complete: number;
  preview: boolean;
  exact: boolean;
  version: number;
  generation: number; // another one: the file was cut, so ranges that were loaded before may be wrong
  problem: string;
  note: string;
  all: string[];
  epochs: [step: number, epoch: number][];
  curves: Curve[];
}

export interface RunEvent {
  run?: string;
  event: string;
  text: string;
  step: number;
  epoch?: number;
  time: number;
  [field: string]: unknown;
}

export interface Knob {
  name: string;
  type: "float" | "int" | "bool" | "str" | "list";
  value: Plain;
  low: number | null;
  high: number | null;
  choices: Plain[];
  about: string;
}

export interface Pending {
  id: string;
  do: string;
  text: string;
  by: string;
  status: string;
}

export interface Control {
  paused: boolean;
  commands: string[];
  cannot: Record<string, string>;
  actions: { name: string; about?: string }[];
  knobs: Knob[];
  pending: Pending[];
}

export interface CallbackRow {
  name: string;
  points: { point: string; when: string; seconds: number | null; calls: number | null }[];
  seconds: number | null;
}

export interface Checkpoint {
  name: string;
  step: number | null;
  epoch: number | null;
  tags: string[];
  size_bytes: number;
  problem: string;
  measured: Record<string, { metric?: string; value?: number | string }>;
}

export interface RunDetails extends Omit<Row, "best" | "last"> {
  path: string;
  best: Record<string, Omit<Best, "metric">>;
  best_checkpoints: Record<string, string>;
  last: Record<string, { value: number | string; step: number }>;
  run: Record<string, Plain>;
  checkpoints: Checkpoint[];
  callbacks: CallbackRow[];
  settings: Settings;
  control: never;
  controls: Control | null;
  controls_reason: string;
  size_bytes: Record<string, number>;
}

export interface Answer {
  id?: string;
  status: string;
  text: string;
  reason?: string;
}

export interface Medium {
  kind: "image" | "histogram";
  name: string;
  step: number;
  time: number;
}

export interface HistogramAnswer {
  counts: number[];
  limits: number[];
  low: number;
  high: number;
}
