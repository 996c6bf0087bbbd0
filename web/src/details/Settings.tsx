// The settings of the run, and where and how it was started.
import { plainText } from "../data/format";
import { useStore } from "../data/store";
import type { Plain } from "../data/types";

const FACTS = ["command", "folder", "host", "pid", "started", "ended", "objects", "identity"] as const;

export function Settings() {
  const details = useStore((state) => state.details);
  if (!details) return null;
  const settings = Object.entries(details.settings);
  const facts = FACTS.flatMap((name) => entries(name, details.run[name]));
  return (
    <div id="settings">
      <h3>Settings at the start</h3>
      {settings.length ? <Table rows={settings} /> : <p class="hint">This run has stored no settings. Pass config={"{…}"} to Runner or Loop.</p>}
      <h3>This run</h3>
      <Table rows={[["path", details.path], ...facts]} />
    </div>
  );
}

function entries(name: string, value: Plain | undefined): [string, Plain][] {
  if (value === undefined || value === null) return [];
  if (typeof value === "object" && !Array.isArray(value)) return Object.entries(value).map(([own, one]) => [`${name}.${own}`, one]);
  return [[name, value]];
}

function Table({ rows }: { rows: [string, Plain][] }) {
  return (
    <table class="facts">
      <tbody>
        {rows.map(([name, value]) => <tr key={name}><th scope="row">{name}</th><td>{plainText(value)}</td></tr>)}
      </tbody>
    </table>
  );
}
