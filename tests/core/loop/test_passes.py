from __future__ import annotations

import weakref
from contextlib import nullcontext

import pytest

from hookpoint import Callback, LambdaCallback
from hookpoint.core.errors import BadLoop
from hookpoint.core.loop.loop import Loop


class Points(Callback):
    """Record every point that fires, and its mode."""

    def __init__(self):
        self.seen = []

    def run(self, hookpoint=None, logs=None):
        self.seen.append((hookpoint, logs["run"].mode))

    @property
    def names(self):
        return [name for name, _ in self.seen if "fetch" not in name][2:-1]


def iteration(mode):
    return ["on_iter_begin", f"on_{mode}_iter_begin", f"on_{mode}_iter_end", "on_iter_end"]


def of_pass(mode, iterations):
    return [f"on_{mode}_epoch_begin", *iteration(mode) * iterations, f"on_{mode}_epoch_end"]


# Loaders


class Sequence:
    """Iterable through __getitem__, without __iter__ and without a length."""

    def __getitem__(self, index):
        return "ab"[index]


class Shy:
    """Has a __len__ that raises."""

    def __iter__(self):
        return iter("ab")

    def __len__(self):
        raise TypeError("unknown")


@pytest.mark.parametrize("loader", ["ab", ["a", "b"], iter("ab"), (c for c in "ab"), {"a": 1, "b": 2}, Sequence(), Shy()])
@pytest.mark.parametrize("mode", ["train", "val", "pred"])
def test_any_iterable_is_accepted_as_a_loader(loader, mode):
    if mode != "train" and hasattr(loader, "__next__"):
        loader = iter("ab")
    points = Points()
    with Loop([points]) as run:
        for _ in run.epochs(1):
            assert list(run.batches(loader, mode=mode)) == ["a", "b"]
    assert points.names == ["on_epoch_begin", *of_pass(mode, 2), "on_epoch_end"]
    assert run.epoch_complete


@pytest.mark.filterwarnings("ignore:this train pass has no batches")
@pytest.mark.parametrize("loader", ["", iter("")], ids=["sized", "unsized"])
@pytest.mark.parametrize("mode", ["train", "val", "pred"])
def test_an_empty_loader_makes_a_pass_without_iterations(loader, mode):
    points = Points()
    with Loop([points]) as run:
        for _ in run.epochs(1):
            assert list(run.batches(loader, mode=mode)) == []
    assert points.names == ["on_epoch_begin", *of_pass(mode, 0), "on_epoch_end"]
    assert run.epoch_complete


def test_none_and_false_are_valid_batches():
    with Loop() as run:
        assert list(run.batches([None, False, 0])) == [None, False, 0]
    assert run.iteration == 3


def test_batches_have_the_length_of_a_sized_loader():
    with Loop() as run:
        assert len(run.batches("abc")) == 3
        with pytest.raises(TypeError):
            len(run.batches(iter("abc")))


def test_batches_that_are_never_iterated_open_no_pass():
    points = Points()
    with Loop([points]) as run:
        run.batches("ab")
    assert points.names == []


def test_exhausted_batches_yield_nothing_more():
    with Loop() as run:
        batches = run.batches("ab")
        assert list(batches) == ["a", "b"]
        assert list(batches) == []
    assert run.epoch == 1


# Fetching


def test_fetch_points_fire_around_the_loader_with_the_next_index():
    seen = []

    def loader():
        for batch in "ab":
            seen.append(("loading", batch))
            yield batch

    look = LambdaCallback(
        on_batch_fetch_begin=lambda batch_idx: seen.append(("begin", batch_idx)),
        on_batch_fetch_end=lambda batch, batch_idx: seen.append(("end", batch, batch_idx)),
    )
    with Loop([look]) as run:
        for _ in run.batches(loader()):
            pass
    assert seen == [
        *[("begin", 0), ("loading", "a"), ("end", "a", 0)],
        *[("begin", 1), ("loading", "b"), ("end", "b", 1)],
        *[("begin", 2), ("end", None, 2)],
    ]


@pytest.mark.parametrize("edge", ["begin", "end"])
def test_each_fetch_point_fires_without_a_handler_for_the_other(edge):
    seen = []
    with Loop([LambdaCallback(**{f"on_batch_fetch_{edge}": lambda batch_idx: seen.append(batch_idx)})]) as run:
        assert list(run.batches("ab")) == ["a", "b"]
    assert seen == [0, 1, 2]


def test_a_batch_can_be_replaced_at_on_batch_fetch_end():
    upper = LambdaCallback(on_batch_fetch_end=lambda run, batch: setattr(run, "batch", batch and batch.upper()))
    with Loop([upper]) as run:
        assert list(run.batches("ab")) == ["A", "B"]


def test_a_stop_while_a_batch_is_fetched_begins_no_iteration():
    points = Points()
    stop = LambdaCallback(on_batch_fetch_end=lambda run: run.stop("why"))
    with Loop([stop, points]) as run:
        assert list(run.batches("ab")) == []
    assert "on_iter_begin" not in points.names
    assert not run.epoch_complete


# Batches without epochs


def test_a_training_pass_outside_epochs_is_an_epoch():
    points = Points()
    with Loop([points]) as run:
        for number in (1, 2):
            for _ in run.batches("ab"):
                assert run.epoch == number
            assert run.epoch_complete
    assert points.names == ["on_epoch_begin", *of_pass("train", 2), "on_epoch_end"] * 2
    assert run.max_epochs is None


def test_an_epoch_can_have_several_training_passes():
    points = Points()
    with Loop([points]) as run:
        for _ in run.epochs(1):
            for _ in run.batches("a"):
                pass
            for _ in run.batches("b"):
                pass
    assert points.names == ["on_epoch_begin", *of_pass("train", 1), *of_pass("train", 1), "on_epoch_end"]
    assert run.iteration == 2


# Nested passes


def test_validation_inside_an_iteration_restores_the_iteration():
    with Loop() as run:
        for batch in run.batches("ab"):
            run.loss = batch
            for value in run.batches("xyz", mode="val"):
                assert (run.mode, run.batch, run.loss) == ("val", value, None)
                run.loss = value
            assert (run.mode, run.batch, run.loss, run.batch_idx) == ("train", batch, batch, "ab".index(batch))


@pytest.mark.parametrize(("point", "runs"), [("on_iter_end", True), ("on_train_epoch_end", False)])
def test_validation_in_the_iteration_that_requests_a_stop_still_runs(point, runs):
    seen = []

    def validate(run):
        if run.mode == "train":
            seen.extend(run.batches("xy", mode="val"))

    stop = LambdaCallback(on_train_iter_end=lambda run: run.stop("enough"))
    with Loop([stop, LambdaCallback(**{point: validate})]) as run:
        seen += [batch for _ in run.epochs(2) for batch in run.batches("ab")]
    assert seen == (["x", "y", "a"] if runs else ["a"])
    assert run.epoch_complete is False


def test_validation_inside_an_iteration_fires_only_its_own_points():
    points = Points()
    with Loop([points]) as run:
        for _ in run.batches("a"):
            for _ in run.batches("x", mode="val"):
                pass
    train, val = iteration("train"), of_pass("val", 1)
    expected = ["on_epoch_begin", "on_train_epoch_begin", *train[:2], *val, *train[2:], "on_train_epoch_end", "on_epoch_end"]
    assert points.names == expected


@pytest.mark.parametrize("point", ["on_train_epoch_begin", "on_train_iter_begin", "on_train_iter_end", "on_train_epoch_end"])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_callback_can_validate_and_break_at_any_training_point(point, breaks):
    def validate(run):
        for value in run.batches([1, 3], mode="val"):
            run.log(score=value)
            if breaks:
                break

    points = Points()
    with Loop([points, LambdaCallback(**{point: validate})]) as run:
        for _ in run.epochs(1):
            for batch in run.batches("ab"):
                assert (run.mode, run.batch) == ("train", batch)
                run.log(loss=1)
    assert [(name, mode) for name, mode in points.seen if "_train_" in name] == [
        (name, "train") for name in of_pass("train", 2) if "_train_" in name
    ]
    assert points.names.count("on_val_epoch_begin") == points.names.count("on_val_epoch_end") >= 1
    assert points.seen[-2] == ("on_epoch_end", None)
    assert dict(run.metrics) == {"val_score": 1.0 if breaks else 2.0, "loss": 1.0}
    assert run.epoch_complete


def test_a_break_out_of_validation_leaves_the_epoch_complete():
    with Loop() as run:
        for _ in run.epochs(1):
            for _ in run.batches("ab"):
                for _ in run.batches("xyz", mode="val"):
                    break
            for _ in run.batches("xyz", mode="val"):
                break
    assert run.epoch_complete


def test_a_break_out_of_training_from_inside_validation_closes_both():
    points = Points()
    with Loop([points]) as run:
        for _ in run.epochs(1):
            for _ in run.batches("ab"):
                values = run.batches("xy", mode="val")
                next(values)
                break
    assert points.names == [
        *["on_epoch_begin", "on_train_epoch_begin", "on_iter_begin", "on_train_iter_begin"],
        *of_pass("val", 1),
        *["on_train_iter_end", "on_iter_end", "on_train_epoch_end", "on_epoch_end"],
    ]


def test_a_new_training_pass_closes_the_open_pass():
    points = Points()
    with Loop([points]) as run:
        for _ in run.epochs(1):
            kept = run.batches("ab")
            next(kept)
            for _ in run.batches("c"):
                pass
            with pytest.raises(BadLoop, match="was closed by another pass"):
                list(kept)
    assert points.names == ["on_epoch_begin", *of_pass("train", 1), *of_pass("train", 1), "on_epoch_end"]
    assert not run.epoch_complete


def test_prediction_can_run_inside_validation():
    with Loop() as run:
        for _ in run.batches("a", mode="val"):
            assert list(run.batches("xy", mode="pred")) == ["x", "y"]
            assert run.batch == "a"


class Numbers:
    """A loader with a weak reference to its iterator."""

    def __iter__(self):
        iterator = (number for number in range(3))
        self.iterator = weakref.ref(iterator)
        return iterator


@pytest.mark.parametrize("fails", [True, False])
def test_the_iterator_is_freed_with_its_pass_even_if_a_traceback_is_held(fails):
    loader = Numbers()
    with pytest.raises(ZeroDivisionError) if fails else nullcontext() as caught, Loop([]) as run:
        batches = run.batches(loader)
        for _ in batches:
            assert loader.iterator() is not None
            if fails:
                raise ZeroDivisionError
    assert loader.iterator() is None
    assert batches is not None
    assert (caught is not None) == fails


# Progress


class Unsized:
    def __iter__(self):
        return iter(range(3))


class CannotTell(Unsized):
    def __len__(self):
        raise TypeError("this kind of data has no length")


def test_progress_counts_finished_batches():
    seen = []
    with Loop() as run:
        assert run.progress is None
        for _ in run.epochs(1):
            assert run.progress is None
            seen += [run.progress for _ in run.batches(range(3))]
            assert run.progress is None
    assert run.progress is None
    assert seen == [("train", 0, 3), ("train", 1, 3), ("train", 2, 3)]


def test_progress_is_that_of_the_innermost_pass():
    seen = []
    with Loop() as run:
        for batch in run.batches(range(2)):
            if batch == 1:
                for _ in run.batches(range(5), mode="val"):
                    seen.append(run.progress)
                    break
                run.log(x=1)
                seen.append(run.progress)
    assert seen == [("val", 0, 5), ("train", 1, 2)]


def test_progress_is_complete_at_the_end_of_a_pass():
    class Look(Callback):
        def on_train_epoch_begin(self, run):
            self.begin = run.progress

        def on_train_epoch_end(self, run):
            self.end = run.progress

    look = Look()
    with Loop([look]) as run:
        for _ in run.batches(range(4)):
            pass
    assert (look.begin, look.end) == (("train", 0, 4), ("train", 4, 4))


@pytest.mark.parametrize("loader", [Unsized(), CannotTell(), iter(range(3))], ids=["none", "raises", "iterator"])
def test_progress_has_no_total_if_the_loader_has_no_length(loader):
    with Loop() as run:
        for batch in run.batches(loader):
            assert run.progress == ("train", batch, None)
            if batch == 1:
                run.stop()
    assert run.iteration == 2
    assert run.epoch_complete is False
