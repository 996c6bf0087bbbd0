"""Measure training steps on a GPU in a bare loop and with a Runner. Count how often the host waits for the device.

Needs a CUDA device. Run the benchmark with `python benchmarks/gpu_step.py` from the project's folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from report import Figure, in_words, machine, print_table, versions, write
from steps import QUIET, Job, NoOp, measure
from torch import nn
from torch.profiler import ProfilerActivity, profile

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaStreamWaitEvent")
BARE = "bare loop"


def make_mlp() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(256, 10)).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


class SmallTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 4)
        self.head = nn.Linear(128, 512)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens))).flatten(0, 1)


def make_transformer() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = SmallTransformer().cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()


def jobs(steps: int) -> dict[str, Job]:
    vectors = [(torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")) for _ in range(steps)]
    tokens = [torch.randint(0, 512, (16, 64), device="cuda") for _ in range(steps)]
    pairs = [(one, one.flatten()) for one in tokens]
    wait = torch.cuda.synchronize
    return {
        "MLP 8x256, batch 64, fp32": Job(make_mlp, vectors, wait),
        "MLP 8x256, batch 64, bf16": Job(make_mlp, vectors, wait, "bf16"),
        "small transformer, fp32": Job(make_transformer, pairs, wait),
        "small transformer, bf16": Job(make_transformer, pairs, wait, "bf16"),
    }


def count_waits(train: Callable[[], Any]) -> Counter[str]:
    """Profile a training run, and return how often each CUDA function in `WAITS` was called."""
    train()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        train()
    events = trace.events()
    assert events is not None
    return Counter(event.name for event in events if event.name in WAITS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device; benchmarks/step_overhead.py runs a similar benchmark on the CPU", file=sys.stderr)
        return 2
    groups, figures, waits = [], [], {}
    with tempfile.TemporaryDirectory() as workdir:
        for title, job in jobs(options.steps).items():
            candidates = {
                BARE: job.bare,
                "runner, quiet": lambda job=job: job.under_runner(**QUIET),
                "runner, ten no-op callbacks": lambda job=job: job.under_runner([NoOp() for _ in range(10)], **QUIET),
                "runner, default callbacks": lambda job=job: job.under_runner(workdir=workdir),
                "runner, default, strict_sync": lambda job=job: job.under_runner(workdir=workdir, strict_sync=True),
            }
            cpu, wall = measure(title, candidates, rounds=options.rounds)
            groups += [cpu, wall]
            rows = []
            for name in candidates:
                ratio = wall[name].over(wall[BARE])
                figures.append(Figure(f"{title}: {name}", "x", ratio))
                waits[f"{title}: {name}"] = dict(count_waits(candidates[name]))
                rows.append(
                    [
                        name,
                        in_words(wall[name], digits=1, per=1e3),
                        f"{ratio.median:.3f}",
                        str(sum(waits[f"{title}: {name}"].values())),
                    ]
                )
            print_table(title, ["us a step", "times bare", f"waits/{options.steps}"], rows)
            for name in candidates:
                print("   ", name, waits[f"{title}: {name}"])
    if not options.no_write:
        about = {"versions": versions("hookpoint", "torch"), "machine": {**machine(), "gpu": torch.cuda.get_device_name()}}
        print("wrote", write("gpu-step", "", {**about, "waits": waits, "steps": options.steps}, groups, figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
