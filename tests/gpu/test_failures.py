"""Steps that cannot be captured raise or run without a graph, and a run frees its memory."""

from __future__ import annotations

import gc
from typing import Any

import torch
from tests.gpu.test_leaving import Lines
from tests.gpu.training import Net, assert_same, full_training
from torch import nn

import hookpoint
from hookpoint import Callback
from hookpoint.core.errors import BadLoop, BadValue


class Reads(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        if hidden.mean().item() > 100:
            hidden = hidden * 0
        return self.head(hidden)


class LogsANumber(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hookpoint.log("width", 3.0)
        return super().forward(x)


def plain(**options: Any) -> Any:
    torch.manual_seed(3)
    model = options.pop("model")()
    return full_training(model=model, scheduler=False, extras=False, epochs=2, **options)


def raised(kind: type[Exception], **options: Any) -> str:
    try:
        plain(**options)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def check_device() -> None:
    """Draw random numbers, and check that memory used on two streams is freed."""
    assert torch.rand(4, device="cuda").shape == (4,)
    assert nn.functional.dropout(torch.ones(8, device="cuda"), 0.5).shape == (8,)
    side = torch.cuda.Stream()
    before = torch.cuda.memory_allocated()
    for _ in range(8):
        tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        tensor.record_stream(side)
        del tensor
    torch.cuda.synchronize()
    torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before, (torch.cuda.memory_allocated(), before)
    assert torch.cuda.memory_reserved() < before + (100 << 20), torch.cuda.memory_reserved()


def test_a_model_that_reads_a_value_raises_and_names_the_line() -> None:
    text = raised(BadLoop, model=Reads, cuda_graph=True)
    assert "the step cannot be captured in a CUDA graph at " in text, text
    assert "test_failures.py" in text, text
    assert "if hidden.mean().item() > 100:" in text, text
    check_device()


def test_auto_continues_without_graphs() -> None:
    with Lines() as lines:
        result = plain(model=Reads, cuda_graph="auto")
    assert result.replays == 0
    said = [line for line in lines if line.startswith("training without CUDA graphs: ")]
    assert len(said) == 1, lines
    assert "hidden.mean().item()" in said[0], lines
    assert_same(plain(model=Reads), result)
    check_device()


def test_a_number_logged_in_forward_raises() -> None:
    text = raised(BadValue, model=LogsANumber, cuda_graph=True)
    assert text.startswith("'width' is 3.0: in a CUDA graph, the forward can log only tensors on the GPU."), text
    check_device()


def test_a_captured_step_runs_under_strict_sync() -> None:
    result = plain(model=Net, cuda_graph=True, strict_sync=True)
    assert result.replays > 40
    assert_same(plain(model=Net), result)


def test_memory_is_freed_when_the_run_ends() -> None:
    plain(model=Net, cuda_graph=True)  # one-time allocations of torch, such as for cuBLAS
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    result = plain(model=Net, cuda_graph=True)
    del result
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() <= before[0], (torch.cuda.memory_allocated(), before)
    assert torch.cuda.memory_reserved() <= before[1], (torch.cuda.memory_reserved(), before)


def test_an_error_in_a_callback_frees_the_graphs() -> None:
    class Fails(Callback):
        def on_train_iter_end(self, run: Any) -> None:
            if run.iteration == 12:
                raise RuntimeError("enough")

    assert "enough" in raised(RuntimeError, model=Net, cuda_graph=True, callbacks=(Fails(),))
    check_device()


def peak(**options: Any) -> int:
    """Return the peak memory reserved while training a wide network."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    model = nn.Sequential(
        *[layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())], nn.Linear(1024, 10)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    batches = [(torch.randn(8192, 1024), torch.randint(10, (8192,))) for _ in range(3)]
    runner = hookpoint.Runner(model, optimizer, nn.CrossEntropyLoss(), extra_callbacks=[], monitors=[], **options)
    runner.fit(batches, epochs=4)
    return torch.cuda.max_memory_reserved()


def test_a_graph_needs_little_more_memory_than_eager_steps() -> None:
    eager = peak()
    graph = peak(cuda_graph=True)
    print(f"    eager {eager >> 20} MiB, graph {graph / eager:.2f} of that", end="")
    mixed = peak(cuda_graph=True, callbacks=[hookpoint.callbacks.GradientStats(every=3)])
    print(f", with steps outside {mixed / eager:.2f}")
    assert graph <= 1.15 * eager, graph / eager
    assert mixed <= 2.1 * eager, mixed / eager
