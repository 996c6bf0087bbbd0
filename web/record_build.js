// Write build.json: a digest of the sources, and of each built file. `make test` compares them without node.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join, relative, resolve } from "node:path";

const LEFT_OUT = new Set(["node_modules"]);

export function recordBuild(root) {
  let out;
  return {
    name: "record-build",
    configResolved(config) {
      out = resolve(root, config.build.outDir);
    },
    closeBundle() {
      const files = Object.fromEntries(filesBelow(out).filter((path) => path !== "build.json").map((path) => [path, digest(out, [path])]));
      const build = { sources: digest(root, filesBelow(root)), files };
      writeFileSync(join(out, "build.json"), `${JSON.stringify(build, null, 2)}\n`);
    },
  };
}

function filesBelow(folder, top = folder) {
  const names = readdirSync(folder).filter((name) => !LEFT_OUT.has(name));
  const paths = names.map((name) => join(folder, name));
  return paths.flatMap((path) => (statSync(path).isDirectory() ? filesBelow(path, top) : [relative(top, path)])).sort();
}

// The names count too: each file is its path, its size and its bytes.
function digest(folder, paths) {
  const hash = createHash("sha256");
  for (const path of paths) {
    const content = readFileSync(join(folder, path));
    hash.update(`${path}\n${content.length}\n`);
    hash.update(content);
  }
  return hash.digest("hex");
}
