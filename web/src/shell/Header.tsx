// The top of the page: connection, link, theme and help.
import { useRef, useState } from "preact/hooks";
import { type Choice, chooseTheme, themeChoice } from "../charts/theme";
import { linkToView } from "../data/link";
import { update, useStore } from "../data/store";
import { Help } from "./Help";

const THEMES: readonly [Choice, string][] = [["system", "Theme: auto"], ["light", "Theme: light"], ["dark", "Theme: dark"]];
const TEXTS = { loading: "loading", live: "connected", lost: "not connected", denied: "no access" };

export function Header() {
  const connection = useStore((state) => state.connection);
  const readOnly = useStore((state) => state.readOnly);
  const help = useRef<HTMLDialogElement>(null);
  const [theme, setTheme] = useState(themeChoice());
  return (
    <header class="top">
      <img src="/favicon.svg" alt="" width={20} height={20} />
      <strong>hookpoint</strong>
      <span class={`chip ${connection}`} id="connection" role="status">{TEXTS[connection]}</span>
      {readOnly && <span class="chip" title="This board refuses commands to runs">read-only</span>}
      <span class="fill" />
      <button type="button" id="copy-link" title="Copy a link that restores this view" onClick={() => void copyLink()}>Copy link</button>
      <label class="theme">
        <span class="sr">Theme</span>
        <select
          id="theme"
          value={theme}
          onChange={(event) => {
            const choice = event.currentTarget.value as Choice;
            setTheme(choice);
            chooseTheme(choice);
          }}
        >
          {THEMES.map(([name, text]) => <option key={name} value={name}>{text}</option>)}
        </select>
      </label>
      <button type="button" id="help" aria-label="Help" title="Mouse and keys" onClick={() => help.current?.showModal()}>?</button>
      <Help dialog={help} />
    </header>
  );
}

async function copyLink(): Promise<void> {
  const link = linkToView();
  try {
    await navigator.clipboard.writeText(link);
    update({ notice: "Link copied. Whoever opens it needs access to this board." });
  } catch {
    update({ notice: `Copy this link: ${link}` });
  }
}
