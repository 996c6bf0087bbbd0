// Light or dark, as the system says or as the user chooses; and the colours that charts draw with.

export type Choice = "system" | "light" | "dark";
const KEY = "hookpoint-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

export function themeChoice(): Choice {
  try {
    const stored = localStorage.getItem(KEY);
    return stored === "light" || stored === "dark" ? stored : "system";
  } catch {
    return "system"; // storage is disabled
  }
}

export function chooseTheme(choice: Choice): void {
  try {
    if (choice === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, choice);
  } catch {
    // It lasts until the page is closed.
  }
  apply(choice);
}

function apply(choice: Choice): void {
  const isDark = choice === "dark" || (choice === "system" && dark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  known = null;
  for (const listener of listeners) listener();
}

// Draw in light colours. Nothing is painted on the screen meanwhile.
export function inLight<T>(draw: () => T): T {
  const { dataset } = document.documentElement;
  const before = dataset.theme;
  dataset.theme = "light";
  known = null;
  try {
    return draw();
  } finally {
    dataset.theme = before;
    known = null;
  }
}

export function followTheme(): void {
  apply(themeChoice());
  dark.addEventListener("change", () => apply(themeChoice()));
}

export function onTheme(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export interface Palette {
  runs: string[];
  text: string;
  muted: string;
  grid: string;
  surface: string;
  accent: string;
  problem: string;
}

let known: Palette | null = null;

export function palette(): Palette {
  if (known) return known;
  const style = getComputedStyle(document.documentElement);
  const value = (name: string) => style.getPropertyValue(name).trim();
  known = {
    runs: Array.from({ length: 10 }, (_, index) => value(`--run-${index}`)),
    text: value("--text"),
    muted: value("--muted"),
    grid: value("--grid"),
    surface: value("--surface"),
    accent: value("--accent"),
    problem: value("--problem"),
  };
  return known;
}
