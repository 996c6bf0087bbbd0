// Keys that work everywhere, except while somebody types.

export function followKeys(): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    const types = target.closest("input:not([type=checkbox], [type=radio], [type=range]), select, textarea, dialog[open]");
    if (types || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("find-run")?.focus();
    } else if (event.key === "?") {
      document.getElementById("help")?.click();
    }
  });
}
