// What follows from a change of the view: load curves, details, events and settings.
import { forget, load, loadShown } from "./curve_store";
import { loadDetails, loadEvents, loadSettings } from "./loading";
import { assigned } from "./selection";
import { get, listen, update } from "./store";

const ZOOM_MS = 120;

export function react(): void {
  let before = { ...get().view, shown: [] as readonly string[], focus: null as string | null };
  let zooming: ReturnType<typeof setTimeout> | undefined;
  listen(() => {
    const { view, connection } = get();
    if (view === before || connection === "loading") return;
    const last = before;
    before = view;
    if (view.shown !== last.shown) {
      update({ colours: assigned(get().colours, view.shown, get().runs) });
      for (const key of last.shown) if (!view.shown.includes(key)) forget(key);
      for (const key of view.shown) if (!last.shown.includes(key)) void load(key);
    }
    if (view.focus !== last.focus) {
      update({ details: null, detailsError: "" });
      void loadDetails();
      if (view.focus !== null) void loadEvents(view.focus); // what happened since they were loaded
    }
    if (view.range !== last.range || view.axis !== last.axis) {
      clearTimeout(zooming);
      zooming = setTimeout(loadShown, ZOOM_MS);
    }
    if (view.columns.length || view.group || view.sort.startsWith("setting:") || view.filter.includes("=")) void loadSettings();
  });
}
