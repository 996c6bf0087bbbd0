from __future__ import annotations

import pickle
import re
import warnings

import pytest

from hookpoint import Callback, Every, Hooks, LambdaCallback, Replace, on
from hookpoint.core.data.data_points import BatchPlace, DataPoints
from hookpoint.core.data.data_settings import DataSettings
from hookpoint.core.errors import (
    BadLoop,
    BadSchedule,
    BadValue,
    HookpointWarning,
    NotACallback,
    OutsideRun,
    UnknownArgument,
    UnknownPoint,
)
from hookpoint.core.loop.loop import Loop

PLACE = BatchPlace(epoch=3, mode="train", batch_idx=5, settings={"strength": 0.5})


def fire_sample(points, sample=1, worker=None):
    return points.fire("on_sample", sample, {**PLACE.offered(worker), "index": 7})


def fire_batch(points, batch=(1, 2), worker=None):
    return points.fire("on_batch_made", batch, {**PLACE.offered(worker), "indices": [7, 8]})


class Double(Callback):
    def on_sample(self, sample):
        return Replace(2 * sample)


class Everything(Callback):
    def __init__(self):
        self.seen = []

    def on_sample(self, sample, index, epoch, mode, batch_idx, settings, worker):
        self.seen.append((sample, index, epoch, mode, batch_idx, dict(settings), worker))

    def on_batch_made(self, batch, *, indices, worker, epoch=None, other="default"):
        self.seen.append((batch, indices, worker, epoch, other))


def test_handlers_get_the_arguments_they_name():
    everything = Everything()
    points = DataPoints([everything])
    assert fire_sample(points, worker=1) == 1
    assert fire_batch(points) == (1, 2)
    assert everything.seen == [(1, 7, 3, "train", 5, {"strength": 0.5}, 1), ((1, 2), [7, 8], None, 3, "default")]


def test_each_handler_gets_the_result_of_the_previous_handler():
    everything = Everything()
    points = DataPoints([Double(), everything, LambdaCallback(on_sample=lambda sample: Replace(None)), Double2()])
    assert fire_sample(points, 4) == "was None"
    assert everything.seen[0][0] == 8


class Double2(Callback):
    def on_sample(self, sample):
        return Replace(f"was {sample}")


def test_functions_and_a_single_callback_are_accepted():
    @on("on_sample")
    def negative(sample):
        return Replace(-sample)

    assert fire_sample(DataPoints([negative])) == -1
    assert fire_sample(DataPoints(Double())) == 2


def test_listens_tells_which_points_have_handlers():
    points = DataPoints([Double()])
    assert (points.listens(), points.listens("on_sample"), points.listens("on_batch_made")) == (True, True, False)
    assert not DataPoints([]).listens()


def test_settings_are_read_only_in_handlers():
    def write(settings):
        settings["strength"] = 1.0

    with pytest.raises(TypeError, match="does not support item assignment"):
        fire_sample(DataPoints([LambdaCallback(on_sample=write)]))


def test_declared_order_applies_as_in_a_run():
    class First(Double2):
        before = ("Double",)

    assert fire_sample(DataPoints([Double(), First()])) == "was 1was 1"


@pytest.mark.parametrize("name", ["on_sampel", "on_batch_mad"])
def test_a_misspelled_point_raises(name):
    with pytest.raises(UnknownPoint, match=f"{name} is not a point. Did you mean on_(sample|batch_made)"):
        DataPoints([type("Slip", (Callback,), {name: lambda self, sample: None})()])


@pytest.mark.parametrize(("name", "ours"), [("ds_step_end", "on_batch_made"), ("sync_epoch_begin", "on_epoch_begin")])
def test_a_mindspore_point_raises_with_the_name_to_use(name, ours):
    theirs = type("Theirs", (Callback,), {name: lambda self, ds_run_context: None})
    for compile_list in (DataPoints, Hooks):
        with pytest.raises(UnknownPoint, match=f"Theirs.{name} is another trainer's name for {ours}"):
            compile_list([theirs()])
    assert Hooks([type("Own", (theirs,), {"points": (name,), "on_epoch_end": lambda self: None})()]).entries


def test_an_unknown_argument_raises_with_the_provided_arguments():
    class Asks(Callback):
        def on_sample(self, sample, run): ...

    for compile_list in (DataPoints, Hooks):
        with pytest.raises(UnknownArgument) as caught:
            compile_list([Asks()])
        assert str(caught.value) == (
            "Asks.on_sample takes 'run', which this point does not provide.\n"
            "  provided  batch_idx, epoch, index, mode, sample, settings, worker\n"
            "  default   write 'run=None' if another trainer passes it"
        )


def test_a_callback_without_a_data_point_raises():
    class ShardedPlaceholder(Callback):
        def on_epoch_end(self): ...

    message = (
        "ShardedPlaceholder has neither on_sample nor on_batch_made, the only points of a loader.\n"
        "  give      it to the Runner or the Loop"
    )
    with pytest.raises(NotACallback, match=f"^{re.escape(message)}$"):
        DataPoints([Double(), ShardedPlaceholder()])
    with pytest.raises(NotACallback, match="is a class; expected an instance"):
        DataPoints([Double])


def test_a_schedule_at_a_data_point_raises():
    class Sometimes(Callback):
        @on("on_sample", when=Every(steps=2))
        def change(self, sample): ...

    with pytest.raises(BadSchedule, match=r"Sometimes.on_sample has a schedule.*no clock(.|\n)*test +the arguments epoch or"):
        DataPoints([Sometimes()])


def test_returning_a_value_without_replace_raises():
    class Forgets(Callback):
        def on_sample(self, sample):
            return sample + 1

    with pytest.raises(BadValue) as caught:
        fire_sample(DataPoints([Forgets()]))
    assert str(caught.value) == ("Forgets.on_sample returned int, which has no effect.\n  write     return Replace(value)")


class Fails(Callback):
    def __init__(self, error, **options):
        super().__init__(**options)
        self.error = error

    def on_sample(self):
        raise self.error

    def on_batch_made(self):
        raise self.error


def test_an_error_names_the_callback_sample_batch_and_worker():
    points = DataPoints([Double(), Fails(ValueError("no"))])
    with pytest.raises(ValueError, match="no") as caught:
        fire_sample(points, worker=1)
    assert caught.value.__notes__ == ["in callback Fails at on_sample (index 7, batch 5 of epoch 3, worker 1)"]
    points = DataPoints([Fails(ValueError("no"))])
    with pytest.raises(ValueError, match="no") as caught:
        fire_batch(points)
    assert caught.value.__notes__ == ["in callback Fails at on_batch_made (batch 5 of epoch 3, in the main process)"]


def test_stop_iteration_in_a_handler_becomes_a_runtime_error():
    with pytest.raises(RuntimeError, match=r"StopIteration was raised in callback Fails at on_sample \(index 7"):
        fire_sample(DataPoints([Fails(StopIteration())]))


def test_on_error_warn_tolerates_failures_then_disables_the_callback(caplog):
    points = DataPoints([Fails(ValueError("no"), on_error="warn"), Double()])
    assert [fire_sample(points) for _ in range(4)] == [2, 2, 2, 2]
    assert "Fails failed at on_sample: ValueError: no" in caplog.text
    assert "it is disabled" in caplog.text


def test_unpickled_data_points_are_compiled_again():
    points = pickle.loads(pickle.dumps(DataPoints([Double(), Double2()])))
    assert fire_sample(points) == "was 2"


def test_a_callback_in_a_worker_has_no_run():
    double = Double()
    with Loop([double]):
        assert double.epoch_num == 0
        DataPoints([double]).leave_run()
        with pytest.raises(OutsideRun):
            double.epoch_num  # noqa: B018


# In a run


class Loader(list):
    """A loader whose samples are passed to callbacks."""

    def __init__(self, batches, callbacks, settings=None):
        super().__init__(batches)
        self.data_points = DataPoints(callbacks)
        self.settings = DataSettings(settings)


class Both(Callback):
    def on_sample(self, sample): ...
    def on_epoch_end(self): ...


def test_a_data_handler_without_a_hooked_loader_warns(train):
    message = "Both.on_sample is never called: pass Both to a HookedLoader too"
    with pytest.warns(HookpointWarning, match=f"^{re.escape(message)}$"):
        train([Both()], batches=[1, 2])
    with pytest.warns(HookpointWarning, match="Both.on_sample is never called"):
        train([Both()], batches=Loader([1], [Double()]))


def test_a_run_handler_given_only_to_a_loader_warns(train):
    message = "Both.on_epoch_end is never called: pass Both to the run too"
    with pytest.warns(HookpointWarning, match=f"^{re.escape(message)}$"):
        train([], batches=Loader([1], [Both()]))


def test_a_callback_in_both_lists_does_not_warn(train):
    both = Both()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train([both], batches=Loader([1], [both]))
        loader = Loader([1], [both])  # for a validation, perhaps
        train([both])
    assert loader


def test_explain_lists_data_points():
    assert [line.split("  ")[0] for line in Hooks([Both()]).explain().splitlines()[2:]] == ["on_epoch_end", "on_sample"]
    assert "in a HookedLoader" in Hooks([Both()]).explain()


def test_a_callback_that_overrides_run_gets_no_data_points():
    class All(Callback):
        def run(self, hookpoint=None, logs=None): ...

    assert Hooks([All()]).calls("on_sample") == ()


class Saves(Callback):
    saves = True

    def on_epoch_end(self, run):
        run.save("epoch")


def test_settings_missing_from_the_checkpoint_raise(train, new_disk):
    loader = Loader([1], [Double()], {"strength": 0.5})
    with pytest.raises(BadLoop) as caught:
        train([Saves()], batches=loader, store=new_disk())
    assert str(caught.value) == (
        "the loader's settings (strength) would not be in the checkpoint.\n"
        '  give      state={"data": loader.settings} to the Runner or the Loop'
    )
    train([], batches=loader, store=new_disk())  # nothing saves
    train([Saves()], batches=Loader([1], [Double()]), store=new_disk())


def test_settings_nested_in_the_state_are_saved(train, disk):
    loader = Loader([1], [Double()], {"strength": 0.5})
    train([Saves()], batches=loader, store=disk, state={"data": [loader.settings]})
    assert disk.state["parts"]["data"] == {"0": {"values": {"strength": 0.5}, "of_pass": {}}}
