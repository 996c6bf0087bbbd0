"""cinnamon's callbacks run as its documentation shows them: guard pairs, manual hookpoints, pipelines, outer routines."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import hookpoint
from hookpoint import Callback, Every, guard, run_each
from hookpoint.core.loop.loop import Loop


class GuardPair(Callback):
    """Record the three hookpoints of a guard: begin, end and error."""

    def __init__(self, seen: list[str], label: str = "") -> None:
        self.seen = seen
        self.label = label

    def on_hookpoint_begin(self) -> None:
        self.seen.append(f"{self.label}begin")

    def on_hookpoint_end(self) -> None:
        self.seen.append(f"{self.label}end")

    def on_hookpoint_error(self, error: BaseException) -> None:
        self.seen.append(f"{self.label}error {error}")


class Everything(Callback):
    """Record the name of every hookpoint that fires."""

    def __init__(self) -> None:
        self.hookpoints: list[str] = []

    def run(self, hookpoint: str | None = None, logs: Any = None) -> None:
        assert hookpoint is not None
        self.hookpoints.append(hookpoint)


@guard("on_hookpoint")
def my_function(*args, callbacks, **kwargs):
    return args, kwargs


@guard("on_hookpoint")
def failing(error, callbacks=None):
    raise error


# Guard hookpoints


def test_guard_fires_exactly_begin_and_end():
    everything = Everything()
    assert my_function(1, 2, callbacks=everything, key=3) == ((1, 2), {"key": 3})
    assert everything.hookpoints == ["on_hookpoint_begin", "on_hookpoint_end"]


def test_guard_fires_exactly_begin_and_error_and_keeps_the_error():
    everything, error = Everything(), ValueError("no")
    with pytest.raises(ValueError, match=r"^no$") as raised:
        failing(error, callbacks=everything)
    assert raised.value is error
    assert not hasattr(error, "__notes__")
    assert everything.hookpoints == ["on_hookpoint_begin", "on_hookpoint_error"]


def test_guard_fires_around_each_call():
    seen: list[str] = []
    my_function(callbacks=GuardPair(seen))
    with pytest.raises(KeyError):
        failing(KeyError("lost"), GuardPair(seen))
    assert seen == ["begin", "end", "begin", "error 'lost'"]


def test_callbacks_may_be_passed_by_position():
    seen: list[str] = []

    @guard("on_hookpoint")
    def by_position(x, callbacks=None):
        return x

    assert by_position(1, GuardPair(seen)) == 1
    assert seen == ["begin", "end"]


def test_without_callbacks_the_function_is_just_called():
    assert my_function(1, callbacks=None) == ((1,), {})


def test_the_decorated_function_keeps_its_name_and_signature():
    assert my_function.__name__ == "my_function"
    assert str(inspect.signature(my_function)) == "(*args, callbacks, **kwargs)"


def test_handlers_may_take_logs_as_in_cinnamon():
    seen = []

    class Look(Callback):
        def on_hookpoint_begin(self, logs=None):
            seen.append(sorted(logs))

        def on_hookpoint_end(self, logs=None):
            seen.append(logs["result"])

    my_function(7, callbacks=Look())
    assert seen == [["args", "callbacks", "kwargs", "run"], ((7,), {})]


def test_guard_without_a_name_is_named_after_the_function():
    everything = Everything()

    @guard
    def tokenize(text, *, callbacks=None):
        return text.split()

    tokenize("a b", callbacks=everything)
    assert everything.hookpoints == ["on_tokenize_begin", "on_tokenize_end"]


def test_any_name_can_be_a_hookpoint():
    everything = Everything()

    class Odd(Callback):
        def on_the_seventh_day(self, logs):
            everything.hookpoints.append(f"rested {logs['hours']}")

    Odd().run(hookpoint="on_the_seventh_day", logs={"hours": 24})
    assert everything.hookpoints == ["rested 24"]


# Manual hookpoints


def test_a_manual_hookpoint_calls_the_method_of_its_name():
    seen = []

    class Mine(Callback):
        def on_hookpoint(self):
            seen.append("called")

        def on_other(self, words, logs):
            seen.append((words, logs))

    callback = Mine()
    callback.run(hookpoint="on_hookpoint")
    callback.run(hookpoint="on_other", logs={"words": 3})
    callback.run(hookpoint="on_nothing_of_mine")
    assert seen == ["called", (3, {"words": 3})]


def test_a_manual_hookpoint_without_a_name_raises():
    with pytest.raises(TypeError, match="must be the name of a point"):
        Callback().run()


# Pipelines: the class as cinnamon's documentation prints it, on the user's own Pipeline


class Pipeline:
    def __init__(self, components):
        self.components = components

    def get_pipeline(self):
        return self.components


class CallbackPipeline(Pipeline, Callback):
    def setup(self, component: Any, save_path: Path):
        callbacks = self.get_pipeline()
        for callback in callbacks:
            callback.setup(component=component, save_path=save_path)

    def run(self, hookpoint: str | None = None, logs: dict[str, Any] | None = None):
        components = self.get_pipeline()
        for component in components:
            component.run(hookpoint=hookpoint, logs=logs)


class OnOurs(hookpoint.CallbackPipeline):
    """The same two methods, on top of hookpoint's get_pipeline()."""

    def setup(self, component: Any, save_path: Path):
        callbacks = self.get_pipeline()
        for callback in callbacks:
            callback.setup(component=component, save_path=save_path)

    def run(self, hookpoint: str | None = None, logs: Any = None):
        components = self.get_pipeline()
        for component in components:
            component.run(hookpoint=hookpoint, logs=logs)


pipelines = pytest.mark.parametrize("pipeline", [hookpoint.CallbackPipeline, CallbackPipeline, OnOurs])


@pipelines
def test_pipeline_in_a_guard_runs_in_order(pipeline):
    seen: list[str] = []
    callbacks = pipeline([GuardPair(seen, "first "), GuardPair(seen, "second ")])
    my_function(callbacks=callbacks)
    assert seen == ["first begin", "second begin", "first end", "second end"]


@pipelines
def test_pipeline_fires_error_in_order(pipeline):
    seen: list[str] = []
    with pytest.raises(ValueError, match="no"):
        failing(ValueError("no"), callbacks=pipeline([GuardPair(seen, "1 "), GuardPair(seen, "2 ")]))
    assert seen == ["1 begin", "2 begin", "1 error no", "2 error no"]


@pipelines
def test_pipeline_forwards_a_manual_hookpoint(pipeline):
    seen: list[str] = []
    pipeline([GuardPair(seen, "1 "), GuardPair(seen, "2 ")]).run(hookpoint="on_hookpoint_begin")
    assert seen == ["1 begin", "2 begin"]


@pipelines
def test_pipeline_setup_reaches_every_callback(pipeline):
    children = [Callback(), Callback()]
    pipeline(children).setup(component="model", save_path=Path("runs"))
    assert [(child.component, child.save_path) for child in children] == [("model", Path("runs"))] * 2


@pipelines
def test_pipelines_nest(pipeline):
    seen: list[str] = []
    inner = pipeline([GuardPair(seen, "2 "), GuardPair(seen, "3 ")])
    outer = pipeline([GuardPair(seen, "1 "), pipeline([inner]), GuardPair(seen, "4 ")])
    my_function(callbacks=outer)
    assert seen == [f"{number} {what}" for what in ("begin", "end") for number in (1, 2, 3, 4)]


@pipelines
def test_callbacks_of_a_pipeline_work_in_a_loop(pipeline):
    class Watch(Callback):
        def __init__(self):
            self.seen = []

        def on_run_begin(self, run):
            self.seen.append(("begin", self.component, self.save_path, run.name))

        def on_iter_end(self, batch, loss):
            self.seen.append((batch, loss))

        def on_epoch_end(self, epoch, logs):
            self.seen.append((epoch, dict(logs)))

        def on_told(self, words):
            self.seen.append(words)

    callbacks = [Watch(), Watch()]
    with Loop([pipeline(callbacks)], model="model", workdir="runs", name="mine") as run:
        for _ in run.epochs(1):
            for batch in run.batches([1.0, 2.0]):
                run.loss = batch * 10
                run.log(loss=run.loss)
        run.fire("on_told", words="so")
    expected = [("begin", "model", "runs", "mine"), (1.0, 10.0), (2.0, 20.0), (1, {"loss": 15.0}), "so"]
    assert [callback.seen for callback in callbacks] == [expected, expected]


class Steps(Callback):
    """Record the step of each trigger, and save the list in the checkpoint."""

    def __init__(self):
        self.steps = []

    def on_trigger(self, run):
        self.steps.append(run.step)

    def state_dict(self):
        return {"steps": self.steps}


class Records(Callback):
    def __init__(self):
        self.losses = []

    def on_records(self, records):
        self.losses += [record.values["loss"] for record in records if "loss" in record.values]


def losses_of(callbacks, *, epochs=2):
    with Loop(callbacks) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(range(2)):
                pass
            run.log(loss=run.epoch)
    return run


@pipelines
def test_each_child_of_a_pipeline_follows_its_own_schedule(pipeline):
    each_epoch, third = Steps(), Steps().when(Every(steps=3))
    run = losses_of([pipeline([each_epoch, pipeline([third])])])
    assert (each_epoch.steps, third.steps) == ([2, 4], [3])
    assert run.hooks.state_dict()["Steps#2"]["state"] == {"steps": [3]}


@pipelines
def test_the_schedule_of_a_pipeline_applies_to_its_children(pipeline):
    steps = Steps()
    losses_of([pipeline([steps]).when(Every(steps=3))])
    assert steps.steps == [3]
    with pytest.raises(hookpoint.errors.NoTrigger):
        losses_of([pipeline([Records()]).when(Every(steps=3))])


@pipelines
def test_monitors_in_a_pipeline_get_records(pipeline):
    records = Records()
    losses_of([pipeline([records])])
    assert records.losses == [1.0, 2.0]


def test_a_custom_pipeline_may_hold_objects_that_are_not_callbacks():
    class Stages(Pipeline, Callback):
        def run(self, hookpoint=None, logs=None): ...

    losses_of([Stages(["tokenize", object()])])


def test_triggers_go_through_an_overridden_run_method():
    class Closed(CallbackPipeline):
        def run(self, hookpoint=None, logs=None):
            if hookpoint != "on_trigger" or logs["run"].epoch == 2:
                super().run(hookpoint, logs)

    class Old(Callback):
        def __init__(self):
            self.seen = []

        def _trigger(self):
            self.seen.append("trigger")

        def _trigger_epoch(self):
            self.seen.append("epoch")

    steps, old = Steps(), Old()
    losses_of([Closed([steps, old])], epochs=3)
    assert steps.steps == [4]
    assert old.seen == ["epoch"] * 3


def test_main_callback_and_wrappers_work_in_a_custom_pipeline():
    class Main(hookpoint.MainCallback): ...

    seen = []
    second = hookpoint.PeriodicCallback(
        hookpoint.LambdaCallback(on_epoch_end=lambda run: seen.append(run.epoch)), every_k_epochs=2
    )
    main, steps = Main(), Steps()
    late = hookpoint.EnableCallbackIf(steps, lambda run: run.epoch > 2)
    run = losses_of([CallbackPipeline([main, second, late])], epochs=4)
    assert run.hooks.main is main
    assert seen == [2, 4]
    assert steps.steps == [6, 8]


# Outer routines: hookpoints around seeds and folds


def test_run_each_fires_hookpoints_around_seeds_and_folds():
    seen = []

    class Routine(Callback):
        def on_seeds_begin(self, items):
            seen.append(("seeds", items))

        def on_seed_begin(self, seed):
            seen.append(("seed", seed))

        def on_fold_end(self, fold, index):
            seen.append(("fold", fold, index))

        def on_seeds_end(self):
            seen.append("done")

    callback = Routine()
    for _ in run_each("seed", [7, 8], callback):
        for _ in run_each("fold", "ab", callback):
            pass
    folds = [("fold", "a", 0), ("fold", "b", 1)]
    assert seen == [("seeds", [7, 8]), ("seed", 7), *folds, ("seed", 8), *folds, "done"]


def test_run_each_fires_its_end_after_a_break():
    everything = Everything()
    for _ in run_each("seed", [7, 8], everything):
        break
    assert everything.hookpoints == ["on_seeds_begin", "on_seed_begin", "on_seed_end", "on_seeds_end"]
