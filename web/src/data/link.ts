// Keep the view in the address, so that a link or a reload restores it.
import { get, listen, setView } from "./store";
import { decoded, encoded } from "./view";

export function followLink(): void {
  setView(decoded(location.hash.slice(1)));
  let written = get().view;
  listen(() => {
    const { view, connection } = get();
    if (view === written || connection === "loading") return;
    written = view;
    history.replaceState(null, "", `#${encoded(view)}`);
  });
  window.addEventListener("hashchange", () => setView(decoded(location.hash.slice(1))));
}

// The address without the token: whoever opens it needs access to this board.
export function linkToView(): string {
  return `${location.origin}/#${encoded(get().view)}`;
}
