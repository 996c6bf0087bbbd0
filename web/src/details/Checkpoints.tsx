// The checkpoints of the run, the newest first.
import { bytes, short } from "../data/format";
import { useStore } from "../data/store";
import type { Checkpoint } from "../data/types";

export function Checkpoints() {
  const details = useStore((state) => state.details);
  if (!details) return null;
  if (!details.checkpoints.length) return <p class="hint">This run has saved no checkpoint. Add ModelSaver() to its callbacks.</p>;
  const best = new Map(Object.entries(details.best_checkpoints).map(([metric, name]) => [name, metric]));
  return (
    <table class="facts" id="checkpoints">
      <thead>
        <tr><th scope="col">Checkpoint</th><th scope="col">Why</th><th scope="col" class="number">Size</th></tr>
      </thead>
      <tbody>
        {[...details.checkpoints].reverse().map((one) => (
          <tr key={one.name} class={one.problem ? "problem" : ""}>
            <td class="whole">{one.name}</td>
            <td>{best.has(one.name) && <span class="star" title={`Best ${best.get(one.name)}`}>★ </span>}{one.problem || why(one)}</td>
            <td class="number">{bytes(one.size_bytes)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function why(one: Checkpoint): string {
  return one.tags
    .map((tag) => {
      const value = one.measured[tag]?.value;
      return value === undefined ? tag : `${tag} ${short(value)}`;
    })
    .join(", ");
}
