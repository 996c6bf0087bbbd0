from __future__ import annotations

import signal

import pytest

import hookpoint
from hookpoint import Callback, CallbackPipeline, LambdaCallback, StopRun, current_run
from hookpoint import callbacks as cb
from hookpoint.core.errors import BadLoop, NotACallback, OutsideRun
from hookpoint.core.loop.loop import Loop


class Points(Callback):
    """Record every point that fires; raise at the points in `fails`."""

    def __init__(self, **fails):
        self.seen, self.fails = [], fails

    def run(self, hookpoint=None, logs=None):
        self.seen.append(hookpoint)
        if hookpoint in self.fails:
            raise self.fails[hookpoint]


ITERATION = ["on_iter_begin", "on_train_iter_begin", "on_train_iter_end", "on_iter_end"]
VAL_ITERATION = ["on_iter_begin", "on_val_iter_begin", "on_val_iter_end", "on_iter_end"]
FETCH = ["on_batch_fetch_begin", "on_batch_fetch_end"]


def without_fetches(points):
    return [point for point in points.seen if "fetch" not in point]


def failing(point, error=None, **options):
    def fail():
        raise error or ValueError(point)

    return LambdaCallback(**{point: fail}, **options)


# A whole run


def test_a_run_fires_its_points_in_the_order_of_the_table():
    points = Points()
    with Loop([points]) as run:
        for _ in run.epochs(1):
            for _ in run.batches("a"):
                pass
            for _ in run.batches("b", mode="val"):
                pass
    assert points.seen == [
        "on_setup",
        "on_run_begin",
        "on_epoch_begin",
        *["on_train_epoch_begin", *FETCH, *ITERATION, *FETCH, "on_train_epoch_end"],
        *["on_val_epoch_begin", *FETCH, *VAL_ITERATION, *FETCH, "on_val_epoch_end"],
        "on_epoch_end",
        "on_run_end",
    ]


@pytest.mark.parametrize("mode", ["val", "pred"])
def test_validation_and_prediction_do_not_open_an_epoch(mode):
    points = Points()
    with Loop([points]) as run:
        assert list(run.batches("a", mode=mode)) == ["a"]
    assert without_fetches(points)[2:-1] == [
        f"on_{mode}_epoch_begin",
        *["on_iter_begin", f"on_{mode}_iter_begin", f"on_{mode}_iter_end", "on_iter_end"],
        f"on_{mode}_epoch_end",
    ]
    assert run.epoch == 0


def test_setup_gets_the_model_and_the_workdir_before_on_setup():
    class Setup(Callback):
        def on_setup(self):
            self.had = (self.component, self.save_path)

    top, inner = Setup(), Setup()
    with Loop([top, CallbackPipeline([inner])], model="model", workdir="runs/x"):
        assert top.had == inner.had == ("model", "runs/x")


def test_mistakes_in_callbacks_raise_before_anything_runs():
    with pytest.raises(NotACallback, match="Points is a class; expected an instance"):
        Loop([Points])


def test_the_list_of_callbacks_is_copied_and_never_modified():
    first, second = Points(), Points()
    callbacks = [first]
    loop = Loop(callbacks)
    callbacks.append(second)
    for _ in range(2):
        with loop:
            pass
    assert second.seen == []
    assert first.seen.count("on_run_end") == 2
    assert callbacks == [first, second]


def test_callbacks_can_be_a_generator_or_a_single_callback():
    points = Points()
    for callbacks in ((one for one in [points]), points, CallbackPipeline([points])):
        with Loop(callbacks):
            pass
    assert points.seen.count("on_run_end") == 3


# Entering and leaving


def test_a_loop_can_be_entered_again_for_a_fresh_run():
    loop = Loop()
    with loop as first:
        for batch in first.batches([1, 2]):
            first.log(loss=batch)
        first.stop("enough")
    with loop as second:
        for _ in second.epochs(1):
            pass
    assert first is not second
    assert (first.epoch, first.step, second.epoch, second.step) == (1, 2, 1, 0)
    assert dict(second.metrics) == {}


def test_a_running_loop_cannot_be_entered():
    loop = Loop()
    with loop, pytest.raises(OutsideRun) as caught:
        loop.__enter__()
    assert str(caught.value) == "this loop is already running.\n  create    a second Loop for a run inside this run"


@pytest.mark.parametrize("use", [lambda run: run.epochs(1), lambda run: run.batches("a"), lambda run: run.stop_epoch()])
def test_using_a_run_after_its_end_raises(use):
    with Loop() as run:
        pass
    with pytest.raises(OutsideRun) as caught:
        use(run)
    assert str(caught.value) == "this loop is not running.\n  enter     with Loop(...) as run: and use run inside"
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("name", ["epochs", "batches", "log", "step", "hyper"])
def test_an_attribute_of_the_run_raises_on_the_loop(name):
    loop = Loop()
    with pytest.raises(OutsideRun) as caught:
        getattr(loop, name)
    belongs = f"'{name}' belongs to the run, not to the Loop."
    assert str(caught.value) == f"{belongs}\n  enter     with Loop(...) as run: and use run.{name}"
    assert not hasattr(loop, name)


@pytest.mark.parametrize("name", ["model", "rate"])
def test_an_error_in_a_property_of_a_subclass_is_not_hidden(name):
    class Mine(Loop):
        @property
        def model(self):
            return self.missing

        rate = model

    with pytest.raises(AttributeError, match=r"^'Mine' object has no attribute 'missing'$"):
        getattr(Mine(), name)


@pytest.mark.parametrize("name", ["epoch_s", "_loop", "__len__"])
def test_any_other_missing_attribute_of_a_loop_raises_attribute_error(name):
    with pytest.raises(AttributeError, match=f"^'Loop' object has no attribute '{name}'$"):
        getattr(Loop(), name)


@pytest.mark.parametrize("take", [lambda run: run.epochs(3), lambda run: run.batches("abc")])
def test_an_iterator_that_outlives_its_run_raises(take):
    loop = Loop()
    with loop as run:
        kept = take(run)
        next(kept)
    with pytest.raises(OutsideRun):
        next(kept)


def test_batches_kept_from_an_earlier_run_raise_in_the_next_run():
    loop = Loop()
    with loop as run:
        kept = run.batches("abc")
        next(kept)
    with loop as run:
        with pytest.raises(OutsideRun):
            next(kept)
        assert run.iteration == 0


def test_loops_can_be_nested():
    outer_points, inner_points = Points(), Points()
    with Loop([outer_points]) as outer:
        for _ in outer.batches("ab"):
            with Loop([inner_points]) as inner:
                for _ in inner.batches("x"):
                    pass
            assert outer.batch in "ab"
    assert (outer.iteration, inner.iteration) == (2, 1)
    assert inner_points.seen.count("on_run_end") == 2
    assert outer_points.seen.count("on_run_end") == 1


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: Loop(log_every=-1), "log_every must be an integer >= 0, got -1."),
        (lambda: Loop(log_every="5"), "log_every must be an integer >= 0, got '5'."),
        (lambda: Loop(log_every=2.5), "log_every must be an integer >= 0, got 2.5."),
        (lambda: Loop(hang_report_seconds="5"), "hang_report_seconds must be a number > 0 or None, got '5'."),
        (lambda: Loop(max_retries=-1), "max_retries must be an integer >= 0, got -1."),
        (lambda: Loop(max_retries=None), "max_retries must be an integer >= 0, got None."),
        (
            lambda: in_run(lambda run: run.epochs(-1)),
            "run.epochs: number must be an integer >= 0 or None, got -1.",
        ),
        (
            lambda: in_run(lambda run: run.epochs(True)),
            "run.epochs: number must be an integer >= 0 or None, got True.",
        ),
        (
            lambda: in_run(lambda run: run.epochs("3")),
            "run.epochs: number must be an integer >= 0 or None, got '3'.",
        ),
        (
            lambda: in_run(lambda run: run.batches("ab", mode="test")),
            "run.batches: unknown mode 'test'.\n  choose    'train', 'val', 'pred'",
        ),
        (
            lambda: in_run(lambda run: run.batches(5)),
            "run.batches: expected an iterable such as a loader or a list, got 5.",
        ),
    ],
)
def test_invalid_arguments_raise(use, message):
    with pytest.raises(BadLoop) as caught:
        use()
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)


def in_run(use):
    with Loop() as run:
        use(run)


# Exceptions


@pytest.mark.parametrize("error", [ValueError("body"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_exception_in_the_body_fires_only_on_exception_and_on_run_end(error):
    points, seen = Points(), []
    look = LambdaCallback(on_exception=lambda error: seen.append(error))
    with pytest.raises(type(error)) as caught, Loop([points, look]) as run:
        for _ in run.epochs(2):
            for _ in run.batches("ab"):
                points.seen.clear()
                raise error
    assert caught.value is error
    assert seen == [error]
    assert points.seen == ["on_exception", "on_run_end"]
    assert not run.epoch_complete
    assert run.mode is None
    assert current_run() is None


def test_an_exception_closes_the_open_pass():
    kept = []
    with pytest.raises(ValueError, match="body"), Loop() as run:
        for _ in run.epochs(2):
            kept.append(run.batches("ab"))
            next(kept[0])
            raise ValueError("body")
    assert (run.mode, hasattr(run, "batch")) == (None, False)
    with pytest.raises(OutsideRun):
        next(kept[0])


@pytest.mark.parametrize("point", ["on_setup", "on_run_begin"])
def test_an_error_before_the_body_ends_the_run(point):
    points = Points()
    with pytest.raises(ValueError, match=point) as caught, Loop([points, failing(point, name="bad")]):
        pytest.fail("the body must not run")
    assert points.seen[-2:] == ["on_exception", "on_run_end"]
    assert caught.value.__notes__ == [f"in callback bad at {point} (step 0, rank 0)"]
    assert current_run() is None


@pytest.mark.parametrize(
    "point",
    [
        "on_epoch_begin",
        "on_train_epoch_begin",
        "on_batch_fetch_begin",
        "on_batch_fetch_end",
        "on_iter_begin",
        "on_train_iter_begin",
        "on_train_iter_end",
        "on_iter_end",
        "on_train_epoch_end",
        "on_epoch_end",
    ],
)
def test_an_error_in_a_handler_ends_the_run_with_a_note(point):
    points = Points()
    with pytest.raises(ValueError, match=point) as caught, Loop([points, failing(point, name="bad")]) as run:
        for _ in run.epochs(2):
            for _ in run.batches("ab"):
                pass
    assert points.seen[-3:] == [point, "on_exception", "on_run_end"]
    assert caught.value.__notes__ == [f"in callback bad at {point} (step {run.step}, rank 0)"]


def test_an_error_in_a_handler_after_a_break_is_raised():
    with pytest.raises(ValueError, match="on_train_iter_end"), Loop([failing("on_train_iter_end")]) as run:
        for _ in run.batches("ab"):
            break


def test_an_error_in_the_loader_ends_the_run():
    def loader():
        yield "a"
        raise OSError("gone")

    points = Points()
    with pytest.raises(OSError, match="gone"), Loop([points]) as run:
        for _ in run.batches(loader()):
            pass
    assert points.seen[-3:] == ["on_batch_fetch_begin", "on_exception", "on_run_end"]
    assert run.iteration == 1


def test_a_loader_that_fails_to_start_ends_the_run():
    class Broken:
        def __iter__(self):
            raise OSError("gone")

    points = Points()
    with pytest.raises(OSError, match="gone"), Loop([points]) as run:
        for _ in run.batches(Broken()):
            pass
    assert points.seen[-3:] == ["on_train_epoch_begin", "on_exception", "on_run_end"]


def test_an_exception_caught_inside_the_run_ends_a_pass_like_a_break():
    points = Points()
    with Loop([points]) as run:
        for _ in run.epochs(2):
            try:
                for batch in run.batches("ab"):
                    if run.epoch == 1:
                        raise ValueError(batch)
            except ValueError:
                pass
    assert points.seen.count("on_epoch_end") == 2
    assert "on_exception" not in points.seen
    assert run.iteration == 3


def test_stop_iteration_in_a_handler_becomes_a_runtime_error():
    with pytest.raises(RuntimeError) as caught, Loop([failing("on_iter_begin", StopIteration(), name="bad")]) as run:
        for _ in run.batches("ab"):
            pass
    assert str(caught.value) == "StopIteration was raised in callback bad at on_iter_begin (step 0, rank 0)"
    assert isinstance(caught.value.__cause__, StopIteration)


# on_run_end


def test_an_error_at_on_run_end_is_raised_after_all_callbacks():
    points = Points()
    with pytest.raises(ValueError, match="on_run_end") as caught, Loop([failing("on_run_end", name="bad"), points]):
        pass
    assert points.seen[-1] == "on_run_end"
    assert "on_exception" not in points.seen
    assert caught.value.__notes__ == ["in callback bad at on_run_end (step 0, rank 0)"]


def test_several_errors_at_on_run_end_are_raised_as_a_group():
    points = Points()
    first, second = failing("on_run_end", ValueError("one")), failing("on_run_end", OSError("two"))
    with pytest.raises(ExceptionGroup) as caught, Loop([first, points, second]):
        pass
    assert caught.value.message == "callbacks failed at on_run_end"
    assert [str(error) for error in caught.value.exceptions] == ["one", "two"]
    assert points.seen[-1] == "on_run_end"


def test_an_error_at_on_run_end_does_not_mask_the_original_error():
    with pytest.raises(ValueError, match="body") as caught, Loop([failing("on_run_end", OSError("end"))]):
        raise ValueError("body")
    assert caught.value.__notes__ == ["on_run_end failed too: OSError: end"]


def test_an_error_at_on_exception_is_logged_and_the_others_are_called(caplog):
    points = Points()
    with pytest.raises(ValueError, match="body"), Loop([failing("on_exception", OSError("second")), points]):
        raise ValueError("body")
    assert points.seen[-2:] == ["on_exception", "on_run_end"]
    assert caplog.messages == ["on_exception failed"]


def test_an_error_at_on_run_end_of_a_stopped_run_is_still_raised():
    with pytest.raises(OSError, match="end"), Loop([failing("on_run_end", OSError("end"))]):
        raise StopRun


# What a break leaves behind


def test_a_break_ends_the_iteration_and_an_incomplete_epoch():
    points, complete = Points(), []
    look = LambdaCallback(on_epoch_end=lambda run: complete.append(run.epoch_complete))
    with Loop([points, look]) as run:
        for epoch in run.epochs(2):
            for _ in run.batches("ab"):
                if epoch == 1:
                    break
    first = ["on_epoch_begin", "on_train_epoch_begin", *ITERATION, "on_train_epoch_end", "on_epoch_end"]
    second = ["on_epoch_begin", "on_train_epoch_begin", *ITERATION, *ITERATION, "on_train_epoch_end", "on_epoch_end"]
    assert without_fetches(points) == ["on_setup", "on_run_begin", *first, *second, "on_run_end"]
    assert complete == [False, True]
    assert run.iteration == 3


def test_continue_does_not_change_the_points():
    points = Points()
    with Loop([points]) as run:
        for _ in run.batches("ab"):
            if run.batch == "a":
                continue
    assert points.seen.count("on_train_iter_end") == 2
    assert run.epoch_complete


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.log(x=1),
        lambda run: run.put_scalar("x", 1),
        lambda run: run.put_text("x", "y"),
        lambda run: run.put_event("x"),
        lambda run: run.fire("on_mine"),
        lambda run: run.stop_epoch(),
        lambda run: run.stop("why"),
        lambda run: run.batches("x", mode="val"),
        lambda run: run.epochs(5),
    ],
)
def test_the_next_call_of_the_run_closes_a_pass_left_by_break(call):
    points = Points()
    with Loop([points]) as run:
        for _ in run.epochs(1):
            for _ in run.batches("ab"):
                break
            assert points.seen[-1] == "on_train_iter_begin"
            points.seen.clear()
            call(run)
            assert points.seen[:3] == ["on_train_iter_end", "on_iter_end", "on_train_epoch_end"]


def test_an_epoch_left_by_break_closes_at_the_next_call_or_the_run_end():
    points = Points()
    with Loop([points]) as run:
        for _ in run.epochs(5):
            break
        assert points.seen[-1] == "on_epoch_begin"
        run.log(x=1)
        assert points.seen[-1] == "on_epoch_end"
        for _ in run.epochs(5):
            for _ in run.batches("ab"):
                break
            break
    assert points.seen[-5:] == ["on_train_iter_end", "on_iter_end", "on_train_epoch_end", "on_epoch_end", "on_run_end"]
    assert (run.epoch, run.epoch_complete) == (2, False)


def test_handlers_can_use_the_run_while_a_pass_left_by_break_is_closed():
    points = Points()
    use = LambdaCallback(
        on_iter_end=lambda run: run.log(x=1), on_val_epoch_end=lambda run: run.log(x=1), on_epoch_end=lambda run: run.log(x=1)
    )
    with Loop([use, points]) as run:
        for _ in run.epochs(2):
            for _ in run.batches("ab"):
                break
            for _ in run.batches("xy", mode="val"):
                break
            if run.epoch == 2:
                break
    epoch = [
        *["on_epoch_begin", "on_train_epoch_begin", *ITERATION, "on_train_epoch_end"],
        *["on_val_epoch_begin", *VAL_ITERATION, "on_val_epoch_end", "on_epoch_end"],
    ]
    assert without_fetches(points)[2:-1] == epoch * 2


def test_begin_gets_the_run_before_the_first_point():
    points = Points()

    def begin(run):
        assert points.seen == []
        run.max_epochs = 2

    with Loop([points], begin=begin) as run:
        assert run.max_epochs == 2
    assert points.seen == ["on_setup", "on_run_begin", "on_run_end"]


def test_an_error_in_begin_ends_the_run():
    points = Points()

    def begin(run):
        raise ValueError("no")

    loop = Loop([points], begin=begin)
    with pytest.raises(ValueError, match="no"):
        loop.__enter__()
    assert points.seen == ["on_exception", "on_run_end"]


def test_a_failed_run_with_unreadable_state_is_cleaned_up(monkeypatch):
    """For example after a device failed: the first error is raised, and the signal handlers are restored."""

    class Keeps:
        def save(self, state, *, step, tags): ...

    class Fails:
        is_cpu, ndim, shape = False, 0, ()

        def detach(self):
            return self

        def __float__(self):
            raise RuntimeError("the device is gone")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="body"), Loop([], store=Keeps()) as run:
        for _ in run.epochs(1):
            for _ in run.batches([1]):
                run.log(loss=Fails())
            raise ValueError("body")
    assert signal.getsignal(signal.SIGTERM) is before
    assert current_run() is None


def test_stop_run_raised_at_on_load_stops_the_run(tmp_path):
    def train(*callbacks):
        with hookpoint.Loop([cb.ModelSaver(), *callbacks], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
            for _ in run.epochs(2 if not callbacks else 5):
                for _ in run.batches([1]):
                    pass
        return run

    def stop(run):
        raise StopRun("enough")

    train()
    run = train(LambdaCallback(on_load=stop))
    assert (run.epoch, run.stop_reason) == (2, "enough")
