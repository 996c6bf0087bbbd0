"""`Runner(cuda_graph=...)` rejects unsupported options before training."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from hookpoint import DataParallel, MainCallback, Runner
from hookpoint.core.errors import BadArgument
from hookpoint.engine.fused._graph_options import check_graph_optimizer, graph_options

CUDA = torch.device("cuda", 0)
WEIGHTS = [nn.Parameter(torch.zeros(2))]


class OwnBackward(MainCallback):
    def on_iter_backward(self, run):
        run.loss.backward()


def options(**changes):
    return {"device": CUDA, "optimizer": None, "precision": "32", "strategy": None, "main": None, **changes}


@pytest.mark.parametrize(
    ("cuda_graph", "changes", "text"),
    [
        (1, {}, "cuda_graph must be True, False or 'auto', got 1.\n  write     cuda_graph=\"auto\""),
        ("Auto", {}, "cuda_graph must be True, False or 'auto', got 'Auto'.\n  write     cuda_graph=\"auto\""),
        (
            True,
            {"device": torch.device("cpu")},
            (
                "cuda_graph=True needs a CUDA device; this run uses 'cpu'.\n"
                '  choose    device="cuda" on a machine with a GPU\n  drop      cuda_graph=True instead'
            ),
        ),
        (
            True,
            {"precision": "fp16"},
            (
                "cuda_graph=True does not support precision='fp16': the gradient scaler decides on the CPU whether to step.\n"
                "  choose    precision='bf16' or '32'"
            ),
        ),
        (
            True,
            {"strategy": DataParallel()},
            (
                "cuda_graph=True supports one process; this run uses DataParallel.\n"
                "  start     one process, or drop cuda_graph=True"
            ),
        ),
        (
            True,
            {"main": OwnBackward()},
            (
                "cuda_graph=True captures the Runner's own step, but OwnBackward overrides on_iter_backward.\n"
                "  move      its computation to on_iter_forward or the loss\n  drop      cuda_graph=True instead"
            ),
        ),
        (
            True,
            {"optimizer": {"a": torch.optim.SGD(WEIGHTS, lr=0.1), "b": torch.optim.SGD(WEIGHTS, lr=0.1)}},
            "cuda_graph=True supports one optimizer, got 2.\n  give      one optimizer with multiple parameter groups",
        ),
        (
            True,
            {"optimizer": torch.optim.AdamW(WEIGHTS)},
            (
                "cuda_graph=True cannot capture AdamW with its current options.\n"
                "  write     torch.optim.AdamW(..., fused=True, capturable=True)"
            ),
        ),
        (
            True,
            {"optimizer": torch.optim.SGD(WEIGHTS, lr=0.1)},
            "cuda_graph=True cannot capture SGD with its current options.\n  write     torch.optim.SGD(..., fused=True)",
        ),
        (
            True,
            {"optimizer": torch.optim.RMSprop(WEIGHTS)},
            (
                "cuda_graph=True cannot capture RMSprop with its current options.\n"
                "  write     torch.optim.RMSprop(..., capturable=True)"
            ),
        ),
        (
            True,
            {"optimizer": torch.optim.LBFGS(WEIGHTS)},
            (
                "cuda_graph=True cannot capture LBFGS: it has neither a fused nor a capturable step.\n"
                "  use       torch.optim.AdamW(..., fused=True, capturable=True) or torch.optim.SGD(..., fused=True)"
            ),
        ),
        (
            True,
            {"optimizer": torch.optim.SGD(WEIGHTS, lr=torch.tensor(0.5), fused=True)},
            "cuda_graph=True: the learning rate of SGD is a tensor on the CPU.\n  give      lr=0.5",
        ),
    ],
)
def test_unsupported_options_raise(cuda_graph, changes, text):
    with pytest.raises(BadArgument) as error:
        graph_options(cuda_graph, **options(**changes))
    assert str(error.value) == text


def test_optimizers_that_can_be_captured_are_accepted():
    check_graph_optimizer(torch.optim.SGD(WEIGHTS, lr=0.1, fused=True))
    check_graph_optimizer(torch.optim.RMSprop(WEIGHTS, capturable=True))
    assert graph_options(True, **options()) is True
    assert graph_options("auto", **options()) == "auto"


def test_a_graph_on_the_cpu_raises_and_auto_warns_once(caplog):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BadArgument, match="cuda_graph=True needs a CUDA device; this run uses 'cpu'"):
        Runner(model, optimizer, nn.MSELoss(), device="cpu", cuda_graph=True)
    with caplog.at_level(logging.WARNING, "hookpoint"):
        runner = Runner(model, optimizer, nn.MSELoss(), device="cpu", cuda_graph="auto", extra_callbacks=[], monitors=[])
        run = runner.fit((torch.ones(4, 2), torch.ones(4, 1)), epochs=1, batch_size=2)
    assert run.step == 2
    assert caplog.messages == ["training without CUDA graphs: cuda_graph=True needs a CUDA device; this run uses 'cpu'."]
