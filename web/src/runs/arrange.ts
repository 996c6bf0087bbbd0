// Which rows the table has: filtered, sorted and grouped.
import { plainText } from "../data/format";
import type { Plain, Row, Settings } from "../data/types";
import type { View } from "../data/view";
import { statusOf } from "./standing";

export type SettingsOf = (key: string) => Settings | undefined;
export type Item = { row: Row } | { group: string; rows: Row[] };

export const SETTING = "setting:";

// Every word must match: part of the name, a status, or name=value for a setting.
export function matches(row: Row, filter: string, settings: SettingsOf): boolean {
  return filter
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .every((word) => {
      const [name, value] = word.split("=", 2);
      if (value !== undefined && name) {
        const found = Object.entries(settings(row.key) ?? {}).filter(([one]) => one.toLowerCase() === name || one.toLowerCase().endsWith(`.${name}`));
        return found.some(([, one]) => plainText(one).toLowerCase().startsWith(value));
      }
      return `${row.label} ${row.name} ${row.status} ${statusOf(row)}`.toLowerCase().includes(word);
    });
}

// Runs in progress come first, then the newest.
function usualOrder(a: Row, b: Row): number {
  return Number(b.status === "running") - Number(a.status === "running") || (b.started ?? "").localeCompare(a.started ?? "") || a.label.localeCompare(b.label);
}

function sortValue(row: Row, sort: string, settings: SettingsOf): Plain {
  if (sort.startsWith(SETTING)) return settings(row.key)?.[sort.slice(SETTING.length)] ?? null;
  if (sort === "name") return row.label;
  if (sort === "best") return row.best?.value ?? null;
  if (sort === "last") return row.last?.[1] ?? null;
  if (sort === "duration") return secondsOf(row);
  if (sort === "epoch") return row.epoch ?? row.step;
  return statusOf(row);
}

export function secondsOf(row: Row, now = Date.now() / 1000): number | null {
  return row.since !== null ? Math.max(0, now - row.since) : row.seconds;
}

function compare(a: Plain, b: Plain): number {
  if (typeof a === "number" && typeof b === "number") return a === b ? 0 : a - b; // two infinities have no difference
  return plainText(a).localeCompare(plainText(b), undefined, { numeric: true });
}

export function arranged(rows: Iterable<Row>, view: View, settings: SettingsOf): Item[] {
  const kept = [...rows].filter((row) => matches(row, view.filter, settings));
  kept.sort((a, b) => {
    if (!view.sort) return usualOrder(a, b);
    const [one, two] = [sortValue(a, view.sort, settings), sortValue(b, view.sort, settings)];
    if (one === null || two === null) return Number(one === null) - Number(two === null) || usualOrder(a, b); // runs without it are last
    return (view.descending ? -1 : 1) * compare(one, two) || usualOrder(a, b);
  });
  if (!view.group) return kept.map((row) => ({ row }));
  const groups = new Map<string, Row[]>();
  for (const row of kept) {
    const value = plainText(settings(row.key)?.[view.group]);
    groups.set(value, [...(groups.get(value) ?? []), row]);
  }
  const names = [...groups.keys()].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
  return names.flatMap((name) => [{ group: name, rows: groups.get(name)! }, ...groups.get(name)!.map((row) => ({ row }))]);
}

// The best run of some, among those with the most common metric.
export function bestOf(rows: readonly Row[]): Row | null {
  const counts = new Map<string, Row[]>();
  for (const row of rows) {
    if (row.best && typeof row.best.value === "number") counts.set(row.best.metric, [...(counts.get(row.best.metric) ?? []), row]);
  }
  const [most] = [...counts.values()].sort((a, b) => b.length - a.length);
  if (!most) return null;
  const sign = signOf(most);
  return most.reduce((a, b) => (sign * (b.best!.value as number) < sign * (a.best!.value as number) ? b : a));
}

const signOf = (rows: readonly Row[]) => (rows.some((row) => row.best?.mode === "max") ? -1 : 1);

// The best run first, as `bestOf` chooses it. Runs with another metric cannot be compared: they come last.
export function byBest(rows: readonly Row[]): Row[] {
  const metric = bestOf(rows)?.best?.metric;
  const sign = signOf(rows.filter((row) => row.best?.metric === metric));
  const value = ({ best }: Row) => (typeof best?.value === "number" && best.metric === metric ? sign * best.value : Infinity);
  return [...rows].sort((a, b) => compare(value(a), value(b)) || a.label.localeCompare(b.label));
}
