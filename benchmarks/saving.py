"""How long a save blocks the training loop: in the background (the default), synchronously, and in other libraries.

The model has 100 million parameters, and SGD keeps one momentum value for each parameter. Together, they take 800 MB. Time is
measured from the end of one step's body to the beginning of the next, so it includes every delay that a save causes in the
loop. The benchmark waits for work in the background, but does not count it. Each time is compared with the time that it takes
to copy the same state to preallocated host memory. Run the benchmark with `make bench` or, if only torch, numpy and safetensors
are installed, with `PYTHONPATH=src python3 benchmarks/saving.py --results FOLDER`.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from report import RESULTS, Figure, machine, print_table, versions, write
from rounds import Group, Timing
from torch import nn

from hookpoint import Every, Loop
from hookpoint import callbacks as cb
from hookpoint.core.loop.services import machine_of
from hookpoint.storage.disk._fs_calls import Operation, intercepted

MILLISECOND = 1e6
DEFAULT, AT_ONCE = "hookpoint, default saver", "hookpoint, async_save=False"
LIMITS = {DEFAULT: 1.2, AT_ONCE: 12.0}  # upper limits, as multiples of the time that a copy of the state takes

Save = Callable[[Path], float]  # saves to a new folder, and returns how many nanoseconds the caller had to wait


def make(parameters: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make a model with ten layers and about this many parameters, and an optimizer that has already stepped."""
    torch.manual_seed(0)
    width = round((parameters / 10) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-9)
    optimizer.step()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for one in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_of(one)


class Copies:
    """Copy the state to preallocated memory, which is the least that a background save must do."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._pairs = [(torch.empty_like(tensor), tensor) for tensor in tensors_of(state)]

    def __call__(self, folder: Path) -> float:
        began = time.perf_counter_ns()
        for buffer, tensor in self._pairs:
            buffer.copy_(tensor)
        return time.perf_counter_ns() - began


def timed(save: Callable[[Path], Any]) -> Save:
    def call(folder: Path) -> float:
        began = time.perf_counter_ns()
        save(folder)
        return time.perf_counter_ns() - began

    return call


def torch_save(state: dict[str, Any]) -> Save:
    return timed(lambda folder: torch.save(state, folder / "state.pt"))


def safetensors_save(state: dict[str, Any]) -> Save:
    from safetensors.torch import save_file

    tensors = {str(number): tensor for number, tensor in enumerate(tensors_of(state))}
    return timed(lambda folder: save_file(tensors, folder / "state.safetensors"))


def dcp_async_save(state: dict[str, Any]) -> Save:
    """Save with torch.distributed.checkpoint in one process. On a GPU machine, reuse the buffers for the copy."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    writer_options: dict[str, Any] = {"cache_staged_state_dict": torch.cuda.is_available()}  # reused buffers need pinned memory

    def save(folder: Path) -> float:
        writer = FileSystemWriter(folder / "dcp", **writer_options)
        began = time.perf_counter_ns()
        future: Any = dcp.async_save(state, storage_writer=writer, no_dist=True)
        taken = time.perf_counter_ns() - began
        getattr(future, "upload_completion", future).result()
        return taken

    return save


class Hookpoint:
    """A Loop with a saver that saves a checkpoint at every step. It runs until the measurement ends."""

    def __init__(self, model: nn.Module, optimizer: Any, workdir: Path, **options: Any) -> None:
        saver = cb.ModelSaver(max_to_keep=2, keep_checkpoint_every_n_hours=None, **options)
        self._loop = Loop([saver.when(Every(steps=1))], model=model, optimizer=optimizer, workdir=workdir, extra_callbacks=[])
        self._optimizer = optimizer
        self._run = self._loop.__enter__()
        self._batches = iter(self._run.batches([None] * 1000))
        next(self._batches)

    def __call__(self, folder: Path) -> float:
        self._optimizer.step()
        self._run.log(loss=1.0)
        began = time.perf_counter_ns()
        next(self._batches)  # ends the step that requests a checkpoint, and begins the next
        taken = time.perf_counter_ns() - began
        self._wait()
        began = time.perf_counter_ns()
        machine_of(self._run).saving.at_boundary()  # at the end of a later step, the loop collects the finished save
        return taken + time.perf_counter_ns() - began

    def _wait(self) -> None:
        """Wait until this step's checkpoint is complete and older ones are deleted. The store then wakes the loop."""
        saving = machine_of(self._run).saving
        while saving.is_writing and not saving.is_due:
            time.sleep(0.005)
        time.sleep(0.1)  # give the saving thread time to end

    def close(self) -> None:
        del self._batches
        self._loop.__exit__(None, None, None)


@contextmanager
def candidates(parameters: int, folder: Path) -> Iterator[dict[str, Save]]:
    model, optimizer = make(parameters)
    state = state_of(model, optimizer)
    background = Hookpoint(model, optimizer, folder / "background")
    at_once = Hookpoint(model, optimizer, folder / "at once", async_save=False)
    try:
        yield {
            "copy into kept memory": Copies(state),
            DEFAULT: background,
            AT_ONCE: at_once,
            "torch.save": torch_save(state),
            "safetensors": safetensors_save(state),
            "DCP async_save": dcp_async_save(state),
        }
    finally:
        at_once.close()  # close the inner loop first: each loop restores the signal handlers that it replaced
        background.close()


class Operations:
    """Record when operations on checkpoint files run. Files are written on several threads, so the operations overlap."""

    def __init__(self) -> None:
        self._times: list[tuple[str, int, int]] = []

    def __call__(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        began = time.perf_counter_ns()
        try:
            return proceed()
        finally:
            if "step-" in operation.path:
                self._times.append((operation.name, began, time.perf_counter_ns()))

    def spans(self) -> dict[str, tuple[float, float]]:
        """Return when the first operation of each kind begins and when the last one ends.

        Times are in milliseconds since the first recorded operation of any kind.
        """
        first = min(began for _, began, _ in self._times)
        spans = {}
        for name in dict.fromkeys(name for name, _, _ in self._times):
            times = [(began, ended) for one, began, ended in self._times if one == name]
            ends = min(began for began, _ in times), max(ended for _, ended in times)
            spans[name] = ((ends[0] - first) / MILLISECOND, (ends[1] - first) / MILLISECOND)
        return spans


def measure(parameters: int, rounds: int, operations: Operations | None = None) -> Group:
    """Time all ways to save. At the end, save synchronously once more and record the file operations in `operations`."""
    group = Group("time a save keeps the loop waiting for")
    with (
        TemporaryDirectory(dir=Path.cwd(), prefix=".saving-") as folder,
        open(os.devnull, "w") as nowhere,
        redirect_stderr(nowhere),
        candidates(parameters, Path(folder)) as saves,
    ):
        group.timings = {name: Timing() for name in saves}
        for number in range(rounds + 1):
            for name, save in saves.items():
                target = Path(folder) / f"{number}"
                target.mkdir(exist_ok=True)
                taken = save(target)
                shutil.rmtree(target)
                os.sync()  # so that unwritten data from one save does not slow down the next
                if number:  # the first save of each kind allocates memory
                    group[name].rounds.append(taken)
            print(f"round {number} of {rounds}", file=sys.__stderr__, flush=True)
        if operations is not None:
            with intercepted(operations):
                saves[AT_ONCE](Path(folder))
    return group


def figures_of(group: Group) -> list[Figure]:
    copy = group["copy into kept memory"]
    return [
        Figure(f"{name} / copy", "x", timing.over(copy), LIMITS.get(name))
        for name, timing in group.timings.items()
        if timing is not copy
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small model, few rounds: takes seconds, gives rough figures")
    parser.add_argument("--no-write", action="store_true", help="do not write a result file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result file")
    options = parser.parse_args()
    logging.getLogger("hookpoint").setLevel(logging.CRITICAL)
    parameters, rounds = (1_000_000, 3) if options.quick else (100_000_000, 9)
    about: dict[str, Any] = {
        "versions": versions("hookpoint", "torch", "safetensors"),
        "machine": machine(),
        "parameters": parameters,
        "rounds": rounds,
    }
    operations = Operations()
    group = measure(parameters, rounds, operations)
    about["synchronous_save_ms"] = {name: [round(one, 1) for one in span] for name, span in operations.spans().items()}
    rows = [
        [name, *(f"{value / MILLISECOND:.0f} ms" for value in (one.spread.median, one.minimum, max(one.rounds)))]
        for name, one in group.timings.items()
    ]
    print_table(group.title, ["median", "minimum", "maximum"], rows)
    figures = figures_of(group)
    print_table("figures", ["median", "interval", "limit", ""], [figure.cells() for figure in figures])
    rows = [[name, f"{began:.0f} ms", f"{ended:.0f} ms"] for name, (began, ended) in about["synchronous_save_ms"].items()]
    print_table("one synchronous save", ["from", "to"], rows)
    if not options.no_write and not options.quick:
        print(f"\nwritten to {write('saving', '', about, [group], figures, folder=options.results)}")


if __name__ == "__main__":
    main()
