// Numbers, durations and times as text.
import type { Plain } from "./types";

export function short(value: number | string | null | undefined, digits = 5): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return String(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(digits - 3).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(digits)));
}

// 12,000 steps as 12k, for axes.
export function compact(value: number): string {
  for (const [size, letter, unit] of [[1e9, "G", 1e9], [1e6, "M", 1e6], [1e4, "k", 1e3]] as const) {
    if (Math.abs(value) >= size) return `${Number((value / unit).toPrecision(6))}${letter}`;
  }
  return short(value);
}

export const grouped = (value: number): string => value.toLocaleString("en-US");

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 60) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${pad(Math.floor(seconds % 60))}s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}h ${pad(minutes % 60)}m` : `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

// For tables: without seconds from ten minutes on.
export function shortDuration(seconds: number | null | undefined): string {
  return duration(seconds).replace(/^(\d\dm) \d\ds$/, "$1");
}

const pad = (value: number) => String(value).padStart(2, "0");

// A short span of time, such as that of a call.
export function span(seconds: number | null): string {
  if (seconds === null || !Number.isFinite(seconds)) return "";
  if (seconds >= 1) return seconds >= 60 ? duration(seconds) : `${Number(seconds.toPrecision(3))} s`;
  return seconds >= 1e-3 ? `${Number((seconds * 1e3).toPrecision(3))} ms` : `${Number((seconds * 1e6).toPrecision(2))} µs`;
}

export function bytes(count: number): string {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]] as const) {
    if (count >= size) return `${Number((count / size).toPrecision(3))} ${unit}`;
  }
  return `${count} B`;
}

export function clock(seconds: number): string {
  const date = new Date(seconds * 1000);
  if (Number.isNaN(date.getTime())) return "";
  const time = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  const isToday = new Date().toDateString() === date.toDateString();
  return isToday ? time : `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${time}`;
}

export function plainText(value: Plain | undefined): string {
  if (value === undefined || value === null) return "–";
  if (typeof value === "number") return short(value, 6);
  return typeof value === "string" ? value : JSON.stringify(value);
}

export const count = (number: number, one: string, many = `${one}s`) => `${grouped(number)} ${number === 1 ? one : many}`;
