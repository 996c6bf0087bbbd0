"""Run the checks on a GPU without pytest: `python -m tests.gpu [part of a name ...]`."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from pathlib import Path

import torch


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU: the checks in tests/gpu are skipped")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    wanted, failed, began = sys.argv[1:], [], time.perf_counter()
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.gpu.{path.stem}")
        for name, test in list(vars(module).items()):
            if name.startswith("test_") and (not wanted or any(part in f"{path.stem}::{name}" for part in wanted)):
                start = time.perf_counter()
                try:
                    test()
                except Exception:
                    failed.append(f"{path.stem}::{name}")
                    traceback.print_exc()
                print(
                    f"{'FAIL' if failed and failed[-1].endswith(name) else 'ok':4} {time.perf_counter() - start:6.1f} s  "
                    f"{path.stem}::{name}",
                    flush=True,
                )
    print(f"{len(failed)} failed in {time.perf_counter() - began:.0f} s", *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
