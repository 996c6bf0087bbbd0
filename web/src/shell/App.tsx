// The page: runs on the left, curves in the middle, the focused run on the right. On a phone, one of them at a time.
import { Charts } from "../charts/Charts";
import { Legend } from "../charts/Legend";
import { Toolbar } from "../charts/Toolbar";
import { setView, useStore } from "../data/store";
import type { Screen } from "../data/view";
import { Details } from "../details/Details";
import { Compare } from "../runs/Compare";
import { RunPanel } from "../runs/RunPanel";
import { Banner } from "./Banner";
import { Empty } from "./Empty";
import { Header } from "./Header";
import { goTo } from "./places";

const SKIPS: readonly [Screen, string][] = [["runs", "Skip to runs"], ["curves", "Skip to curves"], ["run", "Skip to run details"]];
const SCREENS: readonly [Screen, string][] = [["runs", "Runs"], ["curves", "Curves"], ["run", "Run"]];

export function App() {
  const connection = useStore((state) => state.connection);
  const hasRuns = useStore((state) => state.runs.size > 0);
  const screen = useStore((state) => state.view.screen);
  const compare = useStore((state) => state.view.compare && state.view.shown.length > 1);
  return (
    <>
      {hasRuns && (
        <nav class="skips" aria-label="Skip">
          {SKIPS.map(([name, text]) => <button type="button" key={name} onClick={() => goTo(name)}>{text}</button>)}
        </nav>
      )}
      <Header />
      <Banner />
      {hasRuns ? (
        <main data-screen={screen}>
          <nav class="runs-panel" aria-label="Runs"><RunPanel /></nav>
          <section class="curves-panel" aria-label="Curves">
            <h1 class="sr">Training runs</h1>
            <Toolbar />
            <Legend />
            <div class="curves" tabIndex={-1}>
              {compare && <Compare />}
              <Charts />
            </div>
          </section>
          <aside class="run-panel" aria-label="Focused run"><Details /></aside>
        </main>
      ) : (
        <main class="empty"><Empty connection={connection} /></main>
      )}
      {hasRuns && (
        <nav class="screens" aria-label="Views">
          {SCREENS.map(([name, text]) => <button type="button" key={name} aria-current={screen === name ? "page" : undefined} onClick={() => setView({ screen: name })}>{text}</button>)}
        </nav>
      )}
    </>
  );
}
