"""The attributes of a callback belong to its class: hookpoint stores its own elsewhere."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field
from typing import Any

import pytest

from hookpoint import Callback, CallbackPipeline, Every, Hooks, callbacks
from hookpoint.core.loop.loop import Loop

OWN = ("save_path", "component", "schedule", "run", "name", "_run")


class Owner(Callback):
    """Sets each name that the base class uses to its own value."""

    def __init__(self, **options):
        super().__init__(**options)
        for name in OWN:
            setattr(self, name, f"my {name}")
        self.epochs = []

    def on_epoch_end(self):
        self.epochs.append([getattr(self, name) for name in OWN])

    def on_trigger(self, run):
        assert self.trainer is run


@dataclass(frozen=True)
class Frozen(Callback):
    """All its fields have names that the base class uses."""

    name: str
    save_path: str
    schedule: list[int]
    component: int
    run: Any = None
    seen: list[Any] = field(default_factory=list)

    def on_epoch_end(self, run):
        self.seen.append((run.epoch, self.name, self.save_path, self.schedule, self.component, self.run))


def names_of(listed):
    return [entry.name for entry in Hooks(listed).entries]


def test_attributes_of_a_callback_survive_a_run(train, tmp_path):
    owner = Owner()
    train([owner], epochs=2, model="the model", workdir=tmp_path)
    assert owner.epochs == [[f"my {name}" for name in OWN]] * 2


def test_attributes_set_before_super_init_survive_a_run(train):
    class Early(Callback):
        def __init__(self, name):
            self.name = "Bob"
            super().__init__(name=name)

        def on_epoch_end(self): ...

    early = Early("mine")
    train([early])
    assert (early.name, names_of([early])) == ("Bob", ["mine"])


def test_a_frozen_dataclass_can_be_a_callback(train, tmp_path):
    frozen = Frozen("Bob", "out", [1, 2], 3, run="a run")
    train([frozen], epochs=2, model="the model", workdir=tmp_path)
    assert frozen.seen == [(epoch, "Bob", "out", [1, 2], 3, "a run") for epoch in (1, 2)]


def test_a_frozen_dataclass_has_a_schedule_and_a_name_in_messages(train):
    @dataclass(frozen=True)
    class Steps(Callback):
        seen: list[int] = field(default_factory=list)

        def on_trigger(self, run):
            self.seen.append(run.step)

    steps = Steps().when(Every(steps=2))
    train([steps], batches=range(5))
    assert steps.seen == [2, 4]
    assert repr(steps.schedule) == "Every(steps=2)"
    assert names_of([steps, Steps()]) == ["Steps", "Steps#2"]


def test_a_frozen_dataclass_can_pass_options_to_the_base_class():
    @dataclass(frozen=True)
    class Quiet(Callback):
        path: str

        def __post_init__(self):
            super().__init__(name="quiet", on_error="warn", ranks="chief")

        def on_epoch_end(self): ...

    (entry,) = Hooks([Quiet("out")]).entries
    assert (entry.name, entry.on_error, entry.ranks) == ("quiet", "warn", "chief")


def test_a_field_named_like_an_attribute_of_the_run_needs_a_value():
    @dataclass
    class Holds(Callback):
        model: Any
        component: Any

    with pytest.raises(TypeError, match="model"):
        Holds()
    assert Holds("mine", "too").model == "mine"


def test_only_a_name_option_or_class_attribute_names_a_callback():
    class Called(Callback):
        name = "called"

        def on_epoch_end(self): ...

    assert names_of([Owner(), Owner(name="mine"), Frozen("Bob", "out", [], 1)]) == ["Owner", "mine", "Frozen"]
    assert names_of([Called(), Called(name="quiet")]) == ["called", "quiet"]


def test_setting_name_in_a_subclass_keeps_the_identity_of_a_built_in_callback():
    class Mine(callbacks.EarlyStopping):
        def __init__(self):
            super().__init__("loss")
            self.name = "Bob"

    assert names_of([Mine()]) == ["Mine(loss)"]


def test_an_instance_attribute_named_schedule_is_ignored(train):
    seen = []

    class Plan(Callback):
        def __init__(self):
            self.schedule = {3: 0.1}

        def on_trigger(self, run):
            seen.append(run.step)

    plan = Plan().when(Every(steps=2))
    train([plan, CallbackPipeline([Plan()])], batches=range(4))
    assert seen == [2, 4, 4]
    assert plan.schedule == {3: 0.1}


def test_a_schedule_as_a_class_attribute_applies(train):
    seen = []

    class Steps(Callback):
        schedule = Every(steps=2)

        def on_trigger(self, run):
            seen.append(run.step)

    train([Steps()], batches=range(4))
    assert seen == [2, 4]


def test_set_up_fills_only_unset_attributes(train, tmp_path):
    class Half(Callback):
        def __init__(self):
            self.save_path = None

        def on_epoch_end(self): ...

    half = Half()
    train([half], model="the model", workdir=tmp_path)
    assert (half.component, half.save_path) == ("the model", None)


def test_an_attribute_named_run_does_not_receive_points(train):
    @dataclass
    class Tracked(Callback):
        run: Any = None
        epochs: int = 0

        def on_epoch_end(self):
            self.epochs += 1

    tracked, owner = Tracked(), Owner()
    train([tracked, CallbackPipeline([owner])])
    CallbackPipeline([tracked, owner]).run("on_epoch_end", {"run": None})
    assert (tracked.epochs, len(owner.epochs)) == (2, 2)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_keeps_the_identity_but_not_the_run(copied):
    owner = Owner(name="mine").when(Every(steps=2))
    with Loop([owner], model="the model") as run:
        for _ in run.epochs(1):
            pass
        other = copied(owner)
    assert names_of([other]) == ["mine"]
    owner.when(Every(steps=3))
    schedules = [repr(entry.schedule) for entry in Hooks([other, owner]).entries]
    assert schedules == ["Every(steps=2)", "Every(steps=3)"]
    assert (other.name, other.epochs) == ("my name", owner.epochs)
    with pytest.raises(RuntimeError, match="only during a run"):
        _ = other.trainer
