"""Graphs are bound to storages: changes that discard a graph, so that it is captured again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from tests.gpu.training import LoggingNet, Net, assert_same, full_training

from hookpoint import Callback


class At(Callback):
    """Call a function at the start of an iteration or of an epoch."""

    def __init__(self, act: Callable[[Any], None], *, iteration: int | None = None, epoch: int | None = None) -> None:
        super().__init__()
        self.act, self.iteration, self.epoch = act, iteration, epoch

    def on_epoch_begin(self, run: Any) -> None:
        if run.epoch == self.epoch:
            self.act(run)

    def on_train_iter_begin(self, run: Any) -> None:
        if run.iteration == self.iteration:
            self.act(run)


def check(captures: int, act: Callable[[Any], None], model: Callable[[], Net] = Net, **when: int) -> None:
    def train(**options: Any) -> Any:
        torch.manual_seed(3)
        return full_training(model=model(), scheduler=False, extras=False, epochs=3, callbacks=(At(act, **when),), **options)

    eager, graph = train(), train(cuda_graph=True)
    assert_same(eager, graph)
    assert graph.captures == captures, graph.captures
    assert graph.replays > 50, graph.replays


def test_loading_the_optimizer_captures_again() -> None:
    def load(run: Any) -> None:
        run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))

    check(2, load, iteration=35)


def test_loading_the_model_captures_again() -> None:
    def load(run: Any) -> None:
        run.model.load_state_dict({name: value * 0.5 for name, value in run.model.state_dict().items()})

    check(2, load, iteration=35)


def test_a_new_parameter_group_captures_again() -> None:
    class Wide(Net):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale

    def frozen() -> Net:
        model = Wide()
        model.scale.requires_grad_(False)
        return model

    def add(run: Any) -> None:
        run.model.scale.requires_grad_(True)
        run.optimizer.add_param_group({"params": [run.model.scale], "lr": 0.01})

    check(2, add, model=frozen, iteration=30)


def test_a_changed_setting_captures_again() -> None:
    def change(run: Any) -> None:
        run.optimizer.param_groups[0]["weight_decay"] = 0.3

    check(2, change, iteration=35)


def test_frozen_parameters_capture_again() -> None:
    def freeze(run: Any) -> None:
        run.model.body[0].requires_grad_(False)
        for parameter in run.model.body[0].parameters():
            parameter.grad = None

    check(2, freeze, epoch=2)


def test_a_module_in_eval_mode_captures_again() -> None:
    check(2, lambda run: run.model.body[1].eval(), epoch=2)


def test_replaced_parameters_capture_again() -> None:
    def replace(run: Any) -> None:
        run.model.head.weight.data = run.model.head.weight.data * 1.5

    check(2, replace, epoch=2)


def test_recapture_captures_again() -> None:
    def replace(run: Any) -> None:
        run.model.head.weight.data = run.model.head.weight.data * 1.5
        run.recapture()

    check(2, replace, iteration=30)


def test_a_changed_learning_rate_needs_no_new_capture() -> None:
    def change(run: Any) -> None:
        run.hyper.set("learning_rate", 0.007)

    check(1, change, iteration=30)


def test_values_logged_in_forward_are_logged_at_each_replay() -> None:
    check(1, lambda run: None, model=LoggingNet, iteration=0)
