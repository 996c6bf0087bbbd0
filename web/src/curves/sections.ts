// Which charts there are, in which order, and which metrics are settings.

export interface Section {
  title: string;
  names: string[];
}

const SETTING = /^(learning_rate|lr|momentum|weight_decay|dampening|betas?|batch_size)([@/_-]|$)/;
const SYSTEM = /(gpu|cuda|cpu|memory|throughput|per.?sec|\/sec|host[-_/ ]|util)/i;
const LOSS = /^(train(ing)?[-_/])?loss([-_/]|$)/i;
const VALIDATION = /^val(id|idation)?[-_/]/i;

export const isSetting = (name: string, known: ReadonlySet<string>): boolean => SETTING.test(name) || known.has(name);
export const isSystem = (name: string): boolean => SYSTEM.test(name);

export function sectionsOf(names: Iterable<string>, pinned: readonly string[], settings: ReadonlySet<string>): Section[] {
  const all = new Set(names);
  const pins = pinned.filter((name) => all.has(name));
  const groups: Record<"first" | "other" | "settings" | "system", string[]> = { first: [], other: [], settings: [], system: [] };
  for (const name of all) {
    if (pins.includes(name)) continue;
    if (isSetting(name, settings)) groups.settings.push(name);
    else if (isSystem(name)) groups.system.push(name);
    else groups[rank(name) < 4 ? "first" : "other"].push(name);
  }
  for (const group of Object.values(groups)) group.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  const sections = [
    { title: "Pinned", names: pins },
    { title: "Loss and validation", names: groups.first },
    { title: "Other metrics", names: groups.other },
    { title: "Settings", names: groups.settings },
    { title: "System", names: groups.system },
  ];
  return sections.filter((section) => section.names.length);
}

function rank(name: string): number {
  if (LOSS.test(name)) return name.includes("/") ? 3 : 0;
  if (VALIDATION.test(name)) return /loss/i.test(name) ? 1 : 2;
  return 4;
}
