// There is no run yet, or the table is being loaded.
import type { Connection } from "../data/store";

export function Empty({ connection }: { connection: Connection }) {
  if (connection === "loading") return <p class="hint" role="status">Looking for runs …</p>;
  return (
    <div class="first-steps">
      <h1>No runs yet</h1>
      <p>This page shows the runs in the folder that the board was started for. A run appears here as soon as it has started.</p>
      <h2>Try the demo</h2>
      <pre><code>hookpoint demo</code></pre>
      <h2>In your own loop</h2>
      <pre><code>{'with Loop(workdir="runs/first") as run:\n    for epoch in run.epochs(10):\n        for batch in run.batches(loader):\n            run.log(loss=step(batch))'}</code></pre>
      <h2>Runs in another folder</h2>
      <pre><code>hookpoint board /path/to/runs</code></pre>
    </div>
  );
}
