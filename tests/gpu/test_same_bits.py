"""A captured step gives the same results as an eager step, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import torch
from tests.gpu.training import BATCH, Net, assert_equal, assert_same, data, full_training, optimizer_of
from torch import nn


def test_a_graph_trains_the_same_weights() -> None:
    for kind in ("adamw", "sgd"):
        for accumulate in (1, 4):
            for clip in (None, 0.5):
                options: dict[str, Any] = {"kind": kind, "accumulate": accumulate, "clip_grad_norm": clip, "epochs": 5}
                eager = full_training(**options)
                graph = full_training(**options, cuda_graph=True)
                assert_same(eager, graph)
                steps = len(graph.losses)
                assert graph.replays > 0.7 * steps, (options, graph.replays, steps)


def test_a_capturable_optimizer_trains_the_same_weights() -> None:
    options: dict[str, Any] = {"kind": "capturable", "scheduler": False, "epochs": 3}
    eager, graph = full_training(**options), full_training(**options, cuda_graph=True)
    assert_same(eager, graph)
    assert graph.replays > 50


def test_a_fused_step_gives_the_same_bits_with_the_rate_in_a_tensor() -> None:
    draw = random.Random(5)
    rates = [10 ** draw.uniform(-6, 0) for _ in range(60)]
    for kind in ("adamw", "sgd"):
        results = []
        for as_tensor in (False, True):
            torch.manual_seed(0)
            weight = nn.Parameter(torch.randn(1000, device="cuda"))
            optimizer = optimizer_of(kind, [weight])
            for rate in rates:
                weight.grad = torch.sin(weight.detach() * 10)
                optimizer.param_groups[0]["lr"] = torch.full((), rate, device="cuda") if as_tensor else rate
                optimizer.step()
            results.append(weight.detach().clone())
        assert_equal(*results, kind)


def test_bf16_trains_the_same_weights() -> None:
    options: dict[str, Any] = {"precision": "bf16", "epochs": 3}
    eager, graph = full_training(**options), full_training(**options, cuda_graph=True)
    assert_same(eager, graph)
    assert graph.replays > 40


def by_hand(compiled: bool, epochs: int = 3) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Train in a plain loop that compiles forward and loss as one function."""
    torch.manual_seed(3)
    model = Net().to("cuda")
    optimizer = optimizer_of("adamw", model.parameters())
    criterion = nn.CrossEntropyLoss()

    def forward_and_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return criterion(model(x), y)

    function = torch.compile(forward_and_loss, dynamic=False) if compiled else forward_and_loss
    train, _ = data()
    torch.manual_seed(11)
    losses = []
    for _ in range(epochs):
        for x, y in train:
            loss = function(x.cuda(), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return model.state_dict(), losses


def test_compile_trains_the_same_weights_as_a_compiled_loop() -> None:
    weights, losses = by_hand(compiled=True)
    for options in ({"compile": True}, {"compile": True, "cuda_graph": True}):
        result = full_training(scheduler=False, extras=False, epochs=3, **options)  # type: ignore[arg-type]
        assert_equal(result.weights, weights, f"{options}")
        assert_equal(result.losses, losses, f"{options}")
        assert (result.replays > 50) == ("cuda_graph" in options)


def test_compile_and_graph_agree_with_all_callbacks() -> None:
    compiled = full_training(epochs=3, compile=True)
    both = full_training(epochs=3, compile=True, cuda_graph=True)
    assert_same(compiled, both)
    assert both.replays > 0.7 * len(both.losses)


def test_batches_of_all_kinds_train_the_same_weights() -> None:
    """Batches may be dicts, on the GPU, or not pinned."""

    def train(batches: list[Any], *, cuda_graph: bool) -> dict[str, torch.Tensor]:
        from hookpoint import Runner

        torch.manual_seed(3)
        model = Net().cuda()
        runner = Runner(
            model,
            optimizer_of("sgd", model.parameters()),
            nn.CrossEntropyLoss(),
            extra_callbacks=[],
            monitors=[],
            cuda_graph=cuda_graph,
            seed=1,
        )
        runner.fit(batches, epochs=2)
        return dict(model.state_dict())

    pairs = [pair for pair in data()[0] if len(pair[0]) == BATCH]
    plain = train(pairs, cuda_graph=False)
    assert_equal(train(pairs, cuda_graph=True), plain)
    assert_equal(train([{"x": x, "labels": y} for x, y in pairs], cuda_graph=True), plain)
    assert_equal(train([(x.cuda(), y.cuda()) for x, y in pairs], cuda_graph=True), plain)
