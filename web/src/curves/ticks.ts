// Where an axis has its labels.

export function ticks(low: number, high: number, most: number): number[] {
  const raw = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(raw));
  if (!Number.isFinite(power) || power <= 0) return [];
  const stride = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999) ?? 10 * power;
  return multiples(low, high, stride);
}

// Powers of ten, or more if there are too few of them.
export function logTicks(low: number, high: number, most: number): number[] {
  const powers: number[] = [];
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high && powers.length < 400; power++) powers.push(10 ** power);
  if (powers.length > most) return powers.filter((_, index) => index % Math.ceil(powers.length / most) === 0);
  if (powers.length >= 3) return powers;
  const more = powers.flatMap((power) => [power / 5, power / 2, power, power * 2, power * 5]);
  const inside = [...new Set(more)].filter((one) => one >= low && one <= high).sort((a, b) => a - b);
  return inside.length >= 2 ? inside : ticks(low, high, most).filter((one) => one > 0);
}

const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

// Seconds in steps that people use.
export function timeTicks(low: number, high: number, most: number): number[] {
  const raw = (high - low) / Math.max(1, most);
  if (raw < 1) return ticks(low, high, most);
  const stride = SPANS.find((one) => one >= raw) ?? Math.ceil(raw / 86400) * 86400;
  return multiples(low, high, stride);
}

function multiples(low: number, high: number, stride: number): number[] {
  const found: number[] = [];
  for (let n = Math.ceil(low / stride); n * stride <= high && found.length < 60; n++) found.push(Number((n * stride).toPrecision(12)));
  return found;
}
