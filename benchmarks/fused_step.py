"""Measure the time of a whole training step on a GPU.

The step runs in eager mode, as a CUDA graph, and as a compiled CUDA graph. Each of these is measured in a hand-written loop and
with a Runner.

Each variant trains in its own thread, and the variants take turns on the GPU. Needs a CUDA device. Run the benchmark with
`make bench-gpu`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from fused_models import GPT, ResNet50, mlp
from report import Figure, machine, print_table, versions, write
from rounds import Spread
from torch import nn

BARE = "bare loop"
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
Train = Callable[["Turns"], None]


class Turns:
    """The data for one variant. The iterator waits for the variant's turn, yields the batches, and measures the turn's time."""

    def __init__(self, batches: list[Any], steps: int) -> None:
        self.batches, self.steps = batches, steps
        self.seconds: list[float] = []
        self.error: BaseException | None = None
        self._go, self._done, self._is_over = threading.Event(), threading.Event(), False

    def __iter__(self) -> Batches:
        while True:
            self._go.wait()
            self._go.clear()
            if self._is_over:
                return
            torch.cuda.synchronize()
            began = time.perf_counter()
            for step in range(self.steps):
                yield self.batches[step % len(self.batches)]
            torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - began)
            self._done.set()

    def take(self) -> None:
        """Let this variant train for one turn."""
        self._done.clear()
        self._go.set()
        while not self._done.wait(1):
            if self.error is not None:
                raise self.error

    def end(self) -> None:
        self._is_over = True
        self._go.set()


class Job:
    """A model, its data and its precision."""

    def __init__(
        self, make: Callable[[], nn.Module], batches: list[Any], *, bf16: bool, limits: dict[str, float], steps: int
    ) -> None:
        self.make, self.batches, self.bf16, self.limits, self.steps = make, batches, bf16, limits, steps
        self.criterion = nn.CrossEntropyLoss()

    def parts(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = self.make().cuda()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)

    def bare(self, turns: Turns, *, compiled: bool = False) -> None:
        model, optimizer = self.parts()
        forward = self._forward(model, compiled)
        for x, y in turns:
            optimizer.zero_grad()
            forward(x, y).backward()
            optimizer.step()

    def graph(self, turns: Turns, *, compiled: bool = False) -> None:
        """Train with a CUDA graph, captured by hand."""
        model, optimizer = self.parts()
        forward = self._forward(model, compiled)
        batches = iter(turns)
        x, y = (tensor.clone() for tensor in self.batches[0])
        stream: Any = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = forward(x, y)
            loss.backward()
            optimizer.step()
            return loss

        with torch.cuda.stream(stream):
            for _ in range(3):
                for static, tensor in zip((x, y), next(batches), strict=True):
                    static.copy_(tensor)
                step()
            optimizer.zero_grad()
            graph.capture_begin(capture_error_mode="thread_local")
            loss = step().detach()
            graph.capture_end()
            for batch in batches:
                for static, tensor in zip((x, y), batch, strict=True):
                    static.copy_(tensor)
                graph.replay()
        del loss

    def _forward(self, model: nn.Module, compiled: bool) -> Callable[..., torch.Tensor]:
        def forward_and_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16):
                return self.criterion(model(x), y)

        return torch.compile(forward_and_loss, dynamic=False) if compiled else forward_and_loss

    def under_runner(self, turns: Turns, workdir: str, **options: Any) -> None:
        from hookpoint import Runner
        from hookpoint.callbacks import JSONWriter, ScalarPrinter, TFEventWriter

        model, optimizer = self.parts()
        monitors: list[Any] = [JSONWriter(), ScalarPrinter()]
        try:
            import tensorboard  # noqa: F401

            monitors.append(TFEventWriter())
        except ImportError:
            pass
        precision = "bf16" if self.bf16 else "32"
        runner = Runner(
            model, optimizer, self.criterion, monitors=monitors, workdir=workdir, precision=precision, resume="never", **options
        )
        runner.fit(turns, epochs=1)


def jobs(steps: int) -> dict[str, Job]:
    vectors = [(torch.randn(64, 256, device="cuda"), torch.randint(10, (64,), device="cuda")) for _ in range(8)]
    images = [
        (
            torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last),
            torch.randint(1000, (64,), device="cuda"),
        )
        for _ in range(4)
    ]
    tokens = [torch.randint(50257, (8, 1025), device="cuda") for _ in range(4)]
    pairs = [(one[:, :-1].contiguous(), one[:, 1:].flatten()) for one in tokens]
    return {
        "MLP 8x256, batch 64": Job(mlp, vectors, bf16=False, limits={"graph": 0.16}, steps=10 * steps),
        "ResNet-50, batch 64, bf16, channels last": Job(
            lambda: ResNet50().to(memory_format=torch.channels_last),
            images,
            bf16=True,
            limits={"compile + graph": 0.56},
            steps=steps,
        ),
        "GPT 124M, 8 x 1024, bf16": Job(GPT, pairs, bf16=True, limits={"compile + graph": 0.76}, steps=steps),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=30, help="steps per turn; the small model runs ten times as many")
    parser.add_argument("--only", default="", help="measure only models whose title contains this")
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: skipping the benchmark of the fused step")
        return 0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    figures, times = [], {}
    with tempfile.TemporaryDirectory() as workdir:
        for title, job in jobs(options.steps).items():
            if options.only not in title:
                continue
            ways: dict[str, Train] = {
                BARE: job.bare,
                "by hand: graph": job.graph,
                "Runner: graph": lambda turns, job=job: job.under_runner(turns, f"{workdir}/a", cuda_graph=True),
                "by hand: compile + graph": lambda turns, job=job: job.graph(turns, compiled=True),
                "Runner: compile + graph": lambda turns, job=job: job.under_runner(
                    turns, f"{workdir}/b", compile=True, cuda_graph=True
                ),
                "Runner: default": lambda turns, job=job: job.under_runner(turns, f"{workdir}/c"),
            }
            seconds = measure(ways, job, options.rounds)
            rows = []
            for name, values in seconds.items():
                over = [value / bare for value, bare in zip(values, seconds[BARE], strict=True)]
                kind = name.partition(": ")[2]
                figures.append(Figure(f"{title}: {name}", "x", Spread.of(over), _limit(name, job, kind), digits=3))
                cells = [f"{sorted(values)[len(values) // 2] / job.steps * 1e6:.0f}", f"{figures[-1].value.median:.3f}"]
                by_hand = seconds.get(f"by hand: {kind}")
                if name.startswith("Runner") and by_hand is not None:
                    beside = Spread.of([value / other for value, other in zip(values, by_hand, strict=True)])
                    figures.append(Figure(f"{title}: {name} / by hand", "x", beside, 1.03, digits=3))
                    cells.append(f"{beside.median:.3f}")
                rows.append([name, *cells])
            times[title] = {name: [round(value / job.steps * 1e6, 1) for value in values] for name, values in seconds.items()}
            print_table(title, ["us a step", "times bare", "times by hand"], rows)
    if not options.no_write and not options.only:
        about = {"versions": versions("hookpoint", "torch"), "machine": {**machine(), "gpu": torch.cuda.get_device_name()}}
        print("wrote", write("fused-step", "", {**about, "us_a_step": times}, [], figures))
    return 0


def _limit(name: str, job: Job, kind: str) -> float | None:
    return job.limits.get(kind) if name.startswith("Runner") else None


def measure(ways: dict[str, Train], job: Job, rounds: int) -> dict[str, list[float]]:
    """Let the variants train in turns. Return the duration of each turn in seconds, except for the first two turns."""
    turns = {name: Turns(job.batches, job.steps) for name in ways}
    threads = []

    def train(name: str) -> None:
        try:
            ways[name](turns[name])
        except BaseException as error:
            turns[name].error = error

    for name in ways:
        threads.append(threading.Thread(target=train, args=(name,), daemon=True))
        threads[-1].start()
    shuffle = random.Random(0).sample
    for _ in range(rounds + 2):
        # The order is random, because later turns are slower when the GPU reaches its power limit.
        for turn in shuffle(list(turns.values()), len(turns)):
            turn.take()
    for turn, thread in zip(turns.values(), threads, strict=True):
        turn.end()
        thread.join()
    return {name: turn.seconds[2:] for name, turn in turns.items()}


if __name__ == "__main__":
    sys.exit(main())
