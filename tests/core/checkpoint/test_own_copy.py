from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, CallbackPipeline, Every, Loop, Runner
from hookpoint import callbacks as cb
from hookpoint.core.checkpoint.own_copy import own_copy


class Gone(Exception):
    """Raised to interrupt the run."""


class Keeps(Callback):
    """Keep what was loaded and change it in place, at a point that a resumed run reaches again."""

    def on_run_begin(self):
        self.kept = {"count": 0, "seen": [], "mean": torch.ones(3)}

    def on_epoch_begin(self):
        self.change(100)

    def on_load(self):
        self.change(1000)

    def on_train_iter_end(self):
        self.change(1)

    def change(self, by):
        self.kept["count"] += by
        self.kept["seen"].append(by)
        self.kept["mean"].mul_(0.9).add_(by)

    def state_dict(self):
        return self.kept

    def load_state_dict(self, state):
        self.kept = state


class Pops(Callback):
    """Empty the state that was loaded."""

    def on_run_begin(self):
        self.count = 0

    def on_train_iter_end(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count, "list": [self.count], "inner": {"count": self.count}}

    def load_state_dict(self, state):
        self.count = state.pop("count")
        assert state["list"].pop() == state["inner"].pop("count") == self.count


class Counter:
    """A part of the user's state that keeps and changes what it loads."""

    def __init__(self):
        self.kept = {"numbers": [0]}

    def step(self):
        self.kept["numbers"][0] += 1

    def state_dict(self):
        return self.kept

    def load_state_dict(self, state):
        self.kept = {"numbers": state.pop("numbers")}


class Leaves(Callback):
    def __init__(self, iteration):
        super().__init__()
        self.last = iteration

    def on_iter_end(self, run):
        if run.iteration == self.last:
            raise Gone


def model_and_optimizer():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3)


DATA = [(torch.full((2, 2), float(number)), torch.ones(2, 1)) for number in range(4)]


def in_loop(callbacks, workdir):
    model, optimizer, schedule = model_and_optimizer()
    counter = Counter()
    with Loop(
        callbacks, model=model, optimizer=optimizer, state={"mine": [counter], "schedule": schedule}, workdir=workdir
    ) as run:
        counter.step()  # runs again on the way back into the epoch
        for _ in run.epochs(3):
            counter.step()
            for inputs, targets in run.batches(DATA):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                counter.step()
    return model, schedule, counter.kept["numbers"]


def in_runner(callbacks, workdir):
    model, optimizer, schedule = model_and_optimizer()
    counter = Counter()
    runner = Runner(
        model,
        optimizer,
        torch.nn.MSELoss(),
        lr_scheduler=schedule,
        lr_scheduler_on="step",
        callbacks=callbacks,
        state={"mine": {"counter": counter}},
        workdir=workdir,
    )

    @runner.on("on_iter_end")
    def count():
        counter.step()

    runner.fit(DATA, epochs=3)
    return model, schedule, counter.kept["numbers"]


@pytest.mark.parametrize("train", [in_loop, in_runner])
@pytest.mark.parametrize("when", [Every(steps=1), Every(epochs=1)], ids=["in an epoch", "between epochs"])
def test_a_run_resumes_exactly_even_if_callbacks_change_their_loaded_state(train, when, tmp_path):
    def go(workdir, gone_after=None):
        keeps, pops = Keeps(), Pops()
        nested = CallbackPipeline([pops, CallbackPipeline([keeps])])
        leaves = [] if gone_after is None else [Leaves(gone_after)]
        model, schedule, numbers = train([nested, cb.ModelSaver().when(when), *leaves], tmp_path / workdir)
        kept = {**keeps.kept, "mean": keeps.kept["mean"].tolist()}
        weights = [one.tolist() for one in model.parameters()]
        return weights, kept, pops.count, numbers, schedule.state_dict() | {"_scale_fn_custom": None}

    whole = go("whole")
    with pytest.raises(Gone):
        go("cut", gone_after=7)
    with pytest.raises(Gone):
        go("cut", gone_after=10)
    assert go("cut") == whole


def test_model_weights_are_not_copied_but_other_state_is():
    model = torch.nn.Linear(2, 1)
    state = {**model.state_dict(), "part._extra_state": torch.ones(1)}
    copied = own_copy(state, model)
    assert copied is not state
    assert [copied[name] is state[name] for name in state] == [True, True, False]
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    assert all(one is not state["state"][0][name] for name, one in own_copy(state, optimizer)["state"][0].items())


def test_tensors_that_an_optimizer_moves_to_its_device_are_not_copied():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2, device="meta"))])
    state = {"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2)}}, "param_groups": []}
    copied = own_copy(state, optimizer)["state"][0]
    assert copied["exp_avg"] is state["state"][0]["exp_avg"]
    assert copied["step"] is not state["state"][0]["step"]
