"""The specialized training step equals the plain `TorchStepper.train_step`, step by step and bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint import Callback, LambdaCallback, MainCallback
from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import now_of
from hookpoint.engine.runner import Runner
from hookpoint.engine.step.torch_stepper import TorchStepper

mse = nn.functional.mse_loss
POINTS = (
    "on_iter_begin",
    "on_backward_begin",
    "on_backward_end",
    "on_step_begin",
    "on_step_end",
    "on_iter_end",
    "on_iter_skip",
)


class Watch(Callback):
    """Note the clocks, the loss, the gradients and the weights at the points of a step."""

    def __init__(self, seen, points=POINTS):
        self.seen = seen
        for point in points:
            setattr(self, point, self.note(point))
        super().__init__()

    def note(self, point):
        def on_point(run):
            loss = getattr(now_of(run), "loss", None)
            weights = [parameter.detach().clone() for parameter in run.model.parameters()]
            gradients = [None if one.grad is None else one.grad.clone() for one in run.model.parameters()]
            self.seen.append((point, run.step, run.iteration, None if loss is None else loss.item(), weights, gradients))

        return on_point


class OwnBackward(MainCallback):
    def on_iter_backward(self, run):
        run.backward()
        run.optimizer_step()


class OwnForward(MainCallback):
    def on_iter_forward(self, run):
        run.forward()
        run.log(seen=run.loss)


def ask(point, verdict, *, at):
    waiting = list(at)

    def on_point(run):
        if waiting and now_of(run).batch_idx == waiting[0]:
            waiting.pop(0)
            getattr(run, verdict)()

    return LambdaCallback(**{point: on_point})


CASES = {
    "plain": {},
    "nobody listens": {"points": ["on_iter_end"]},
    "only to the end of a step": {"points": ["on_step_end"]},
    "accumulation": {"accumulate": 2},
    "accumulation, nobody listens": {"accumulate": 3, "points": ["on_iter_end"]},
    "clipping": {"clip_grad_norm": 0.1},
    "clipping and accumulation": {"clip_grad_norm": 0.1, "accumulate": 2},
    "bf16": {"precision": "bf16"},
    "a scheduler after each step": {"lr_scheduler_on": "step", "schedules": True},
    "skip the batch": {"asks": [("on_iter_begin", "skip_batch", [1])]},
    "skip the backward": {"asks": [("on_backward_begin", "skip_backward", [1])]},
    "skip the step": {"asks": [("on_backward_end", "skip_step", [1])]},
    "skip the step at its beginning": {"asks": [("on_step_begin", "skip_step", [1])]},
    "skip the step of a window": {"accumulate": 2, "asks": [("on_backward_end", "skip_step", [1])]},
    "retry": {"asks": [("on_backward_begin", "retry", [2, 2])]},
    "retry a step that fails": {"asks": [("on_iter_error", "retry", [3])], "fails_at": 3},
    "log steps": {"log_every": 2},
    "an own backward": {"main": OwnBackward},
    "an own forward": {"main": OwnForward},
    "an optimizer without gradients of one layer": {"freezes": True},
}


class Net(nn.Module):
    def __init__(self, fails_at=None):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)
        self.fails_at, self.calls = fails_at, -1

    def forward(self, inputs):
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("once")
        return self.two(torch.relu(self.one(inputs)))


def story(batches, case):
    """Train two epochs; return what was seen, and the results."""
    seen: list = []
    case = dict(case)
    callbacks = [ask(point, verdict, at=at) for point, verdict, at in case.pop("asks", ())]
    callbacks.append(Watch(seen, case.pop("points", POINTS)))
    torch.manual_seed(0)
    model = Net(case.pop("fails_at", None))
    trained = model.two.parameters() if case.pop("freezes", False) else model.parameters()
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    if case.pop("schedules", False):
        case["lr_scheduler"] = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    if "main" in case:
        case["main"] = case["main"]()
    run = Runner(model, optimizer, mse, callbacks=callbacks, **case).fit(batches, epochs=2)
    return seen, dict(run.metrics), run.monitors.get_history("loss"), (run.step, run.iteration), run


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("name", CASES)
def test_every_point_sees_the_same_as_in_the_plain_step(monkeypatch, batches, name):
    *decided, _ = story(batches, CASES[name])
    monkeypatch.setattr(TorchStepper, "training_step", lambda self, run: self.train_step)
    *plain, _ = story(batches, CASES[name])
    for one, other in zip(decided[0], plain[0], strict=True):
        assert same(one, other), (one[:4], other[:4])
    assert same(decided, plain)
    assert len(plain[0]) > 5


@pytest.mark.parametrize(
    ("options", "has", "lacks"),
    [
        ({}, ["optimizer.step()", "clocks.step += 1"], ["clip", "accumulate", "scaler", "step_begin", "merge"]),
        ({"clip_grad_norm": 0.5}, ["self._clip_gradients(optimizer, clip)"], ["scaler"]),
        ({"accumulate": 4}, ["now.loss / 4", "self._step_if_due(run, now)"], ["clip"]),
        ({"precision": "bf16"}, ["self._train_forward(run)"], ["compute("]),
        ({"main": OwnBackward}, ["self._train_backward(run)"], ["backward()"]),
    ],
)
def test_explain_shows_the_training_step(batches, options, has, lacks):
    *_, run = story(batches, {"points": ["on_iter_end"], **options})
    source = run.hooks.explain(step=True).split("The training step:")[1].split("The iterations")[0]
    assert all(part in source for part in has), source
    assert not any(part in source for part in lacks), source


def test_an_error_shows_the_line_of_the_plain_step(batches):
    model = nn.Linear(3, 2)
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda outputs, targets: None)
    with pytest.raises(BadLoop, match="the forward pass did not set a loss") as raised:
        runner.fit(batches, epochs=1)
    assert raised.traceback[-1].path.name == "torch_stepper.py"
    assert "the forward pass did not set a loss" in str(raised.traceback[-1].statement)
