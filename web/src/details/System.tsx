// What the run uses: newest values of system metrics, and the sizes of its files.
import { isSystem } from "../curves/sections";
import { bytes, short } from "../data/format";
import { setView, useStore } from "../data/store";

export function System() {
  const details = useStore((state) => state.details);
  if (!details) return null;
  const values = Object.entries(details.last).filter(([name]) => isSystem(name));
  const sizes = Object.entries(details.size_bytes);
  return (
    <div id="system">
      <h3>Newest values</h3>
      {values.length ? (
        <table class="facts">
          <tbody>
            {values.map(([name, point]) => (
              <tr key={name}>
                <th scope="row"><button type="button" class="link" title="Show its chart" onClick={() => setView({ metrics: name, screen: "curves" })}>{name}</button></th>
                <td class="number">{short(point.value)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <p class="hint">This run measures no system use. Add ThroughputTracker(), GPUUtilizationTracker() or HostMemoryTracker() to its callbacks.</p>
      )}
      <h3>Disk space</h3>
      <table class="facts">
        <tbody>
          {sizes.map(([name, size]) => <tr key={name}><th scope="row">{name}</th><td class="number">{bytes(size)}</td></tr>)}
        </tbody>
      </table>
    </div>
  );
}
