"""Measure the time per step of a small model: eager, compiled, as a CUDA graph, and as a compiled CUDA graph."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn

from hookpoint import Callback, HookpointError, Run, Runner


class StepTime(Callback):
    """Measure the mean time per step, from step `first` to the end of training."""

    def __init__(self, first: int) -> None:
        self.first = first

    def on_train_iter_end(self, run: Run) -> None:
        if run.step == self.first:
            wait(run)
            self.began = time.perf_counter()

    def on_train_epoch_end(self, run: Run) -> None:
        wait(run)
        self.seconds = (time.perf_counter() - self.began) / (run.step - self.first)


def wait(run: Run) -> None:
    if run.device is not None and run.device.type == "cuda":
        torch.cuda.synchronize()


def train(steps: int, **options: Any) -> tuple[float, float]:
    """Train an MLP with nine linear layers. Return the seconds per step and the last loss."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 10))
    if torch.cuda.is_available():
        model.cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters())
    inputs, targets = torch.randn(4096, 256), torch.randint(10, (4096,))
    if torch.cuda.is_available():
        inputs, targets = inputs.cuda(), targets.cuda()
    batches = [(inputs[i : i + 64], targets[i : i + 64]) for i in range(0, 4096, 64)] * (steps // 64 + 1)
    timer = StepTime(first=20)
    runner = Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=[timer], extra_callbacks=[], monitors=[], **options)
    run = runner.fit(batches[:steps], epochs=1)
    return timer.seconds, run.metrics["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="steps per variant, at least 30")
    parser.add_argument("--backend", default="inductor", help="backend of torch.compile")
    arguments = parser.parse_args()
    steps, compiled = max(30, arguments.steps), {"compile": {"backend": arguments.backend}}
    variants: dict[str, dict[str, Any]] = {
        "eager": {},
        "compile": compiled,
        "cuda_graph": {"cuda_graph": True},
        "compile and cuda_graph": {**compiled, "cuda_graph": True},
    }
    print(torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: skipping CUDA graphs")
    eager: float | None = None
    for name, options in variants.items():
        if "cuda_graph" in options and not torch.cuda.is_available():
            continue
        try:
            seconds, loss = train(steps, **options)
        except HookpointError as error:  # for example, no compiler is installed
            print(f"{name:<24} {str(error).splitlines()[0]}")
            continue
        eager = eager or seconds
        print(f"{name:<24} {seconds * 1e6:8.0f} us per step   {seconds / eager:5.2f} of eager   loss {loss:.6f}")


if __name__ == "__main__":
    main()
