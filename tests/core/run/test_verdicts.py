from __future__ import annotations

import pytest

from hookpoint import Callback, HookpointWarning, LambdaCallback, StopRun, on
from hookpoint.core.errors import BadLoop, OutsideIteration, TooManyRetries
from hookpoint.core.loop.loop import Loop


class Points(Callback):
    """Record every point that fires, except fetches, and run each action once at its point."""

    def __init__(self, **actions):
        self.seen, self.actions = [], actions

    def run(self, hookpoint=None, logs=None):
        if "fetch" not in hookpoint and hookpoint not in ("on_setup", "on_run_begin"):
            self.seen.append(hookpoint.removeprefix("on_"))
            action = self.actions.pop(hookpoint, None)
            if action is not None:
                action(logs["run"])


ITERATION = ["iter_begin", "train_iter_begin", "train_iter_end", "iter_end"]
EPOCH = ["epoch_begin", "train_epoch_begin", *ITERATION, *ITERATION, "train_epoch_end", "epoch_end"]


def train_on_letters(callbacks, *, epochs=2, batches="ab", val="", body=lambda run: None):
    """Train and return the batches that were seen, and the run."""
    seen = []
    with Loop(callbacks) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(batches):
                seen.append(batch)
                body(run)
            if val:
                seen.extend(run.batches(val, mode="val"))
    return "".join(seen), run


# stop


@pytest.mark.parametrize("stop", [lambda run: run.stop("why"), lambda run: run.request_stop()])
@pytest.mark.parametrize(
    ("point", "batches", "complete"),
    [
        ("on_epoch_begin", "", False),
        ("on_train_epoch_begin", "", False),
        ("on_iter_begin", "a", False),
        ("on_train_iter_begin", "a", False),
        ("on_train_iter_end", "a", False),
        ("on_iter_end", "a", False),
        ("on_train_epoch_end", "ab", True),
        ("on_epoch_end", "ab", True),
    ],
)
def test_stop_is_honoured_at_the_next_boundary_and_the_end_points_still_fire(stop, point, batches, complete):
    points = Points(**{point: stop})
    seen, run = train_on_letters([points])
    assert seen == batches
    assert points.seen[-2:] == ["epoch_end", "run_end"]
    assert points.seen.count("epoch_begin") == 1
    assert run.epoch_complete == complete


def test_a_run_stopped_at_on_run_begin_starts_no_epoch():
    points = Points()
    seen, _ = train_on_letters([LambdaCallback(on_run_begin=lambda run: run.stop("no")), points])
    assert (seen, points.seen) == ("", ["run_end"])


def test_a_stopped_run_yields_no_further_batch_in_any_mode():
    with Loop() as run:
        run.stop("enough")
        assert list(run.epochs(3)) == []
        for mode in ("train", "val", "pred"):
            assert list(run.batches("ab", mode=mode)) == []


def test_stop_in_validation_ends_the_pass_and_leaves_the_epoch_incomplete():
    seen, run = train_on_letters([LambdaCallback(on_val_iter_end=lambda run: run.stop("why"))], val="xyz")
    assert (seen, run.epoch, run.epoch_complete) == ("abx", 1, False)


def test_stop_after_all_of_the_validation_leaves_the_epoch_complete():
    seen, run = train_on_letters([LambdaCallback(on_val_epoch_end=lambda run: run.stop("why"))], val="xyz")
    assert (seen, run.epoch, run.epoch_complete) == ("abxyz", 1, True)


def test_a_training_pass_that_a_stop_prevented_leaves_the_epoch_incomplete():
    with Loop() as run:
        for _ in run.epochs(2):
            run.stop("before the first batch")
            assert list(run.batches("ab")) == []
    assert (run.epoch, run.epoch_complete) == (1, False)


def test_only_the_first_reason_is_logged_as_an_event(monitor):
    with Loop([monitor]) as run:
        run.stop("first")
        run.stop("second")
    assert monitor.events("stop") == [{"reason": "first"}]


# StopRun


@pytest.mark.parametrize(
    "point",
    [
        "on_setup",
        "on_run_begin",
        "on_epoch_begin",
        "on_train_epoch_begin",
        "on_iter_begin",
        "on_train_iter_end",
        "on_iter_end",
        "on_train_epoch_end",
        "on_epoch_end",
        "on_run_end",
    ],
)
def test_stop_run_raised_by_a_handler_stops_the_run_without_an_error(point):
    def stop():
        raise StopRun("enough")

    points = Points()
    seen, run = train_on_letters([points, LambdaCallback(**{point: stop})])
    assert points.seen[-1] == "run_end"
    assert "exception" not in points.seen
    assert points.seen.count("epoch_begin") == points.seen.count("epoch_end")
    assert run.epoch <= (2 if point == "on_run_end" else 1)
    assert set(seen) <= set("ab")


def test_stop_run_raised_in_the_body_closes_the_pass_and_the_epoch():
    points = Points()

    def body(run):
        raise StopRun("enough")

    seen, run = train_on_letters([points], body=body)
    assert seen == "a"
    assert points.seen == ["epoch_begin", "train_epoch_begin", *ITERATION, "train_epoch_end", "epoch_end", "run_end"]
    assert not run.epoch_complete


def test_stop_run_stops_the_run_despite_on_error_warn():
    @on("on_train_iter_end", on_error="warn")
    def stop():
        raise StopRun

    seen, _ = train_on_letters([stop])
    assert seen == "a"


def test_stop_run_can_be_raised_outside_an_epoch():
    with Loop() as run:
        raise StopRun
    assert run.epoch == 0


def test_an_error_while_stop_run_closes_the_run_is_raised():
    def fail():
        raise ValueError("broken")

    points = Points()
    with pytest.raises(ValueError, match="broken"), Loop([points, LambdaCallback(on_train_iter_end=fail)]) as run:
        for _ in run.batches("ab"):
            break
        raise StopRun
    assert points.seen[-2:] == ["exception", "run_end"]


# stop_epoch


def test_stop_epoch_ends_only_the_training_of_this_epoch():
    points = Points(on_train_iter_end=lambda run: run.stop_epoch())
    seen, run = train_on_letters([points])
    assert seen == "aab"
    assert points.seen == [
        *["epoch_begin", "train_epoch_begin", *ITERATION, "train_epoch_end", "epoch_end"],
        *EPOCH,
        "run_end",
    ]
    assert run.epoch_complete


def test_stop_epoch_in_training_does_not_skip_validation():
    completes = []
    look = LambdaCallback(on_epoch_end=lambda run: completes.append(run.epoch_complete))
    seen, _ = train_on_letters([Points(on_iter_end=lambda run: run.stop_epoch()), look], val="x")
    assert seen == "axabx"
    assert completes == [False, True]


@pytest.mark.parametrize("point", ["on_val_epoch_begin", "on_val_iter_begin", "on_val_iter_end"])
def test_stop_epoch_in_validation_ends_that_pass_and_the_epoch_is_complete(point):
    seen, run = train_on_letters([Points(**{point: lambda run: run.stop_epoch()})], val="xy", epochs=1)
    assert seen == ("ab" if point == "on_val_epoch_begin" else "abx")
    assert run.epoch_complete


def test_training_continues_after_stop_epoch_in_a_nested_validation():
    seen = []
    with Loop() as run:
        for batch in run.batches("ab"):
            seen.append(batch)
            for value in run.batches("xyz", mode="val"):
                seen.append(value)
                run.stop_epoch()
    assert "".join(seen) == "axbx"
    assert run.epoch_complete


def test_an_epoch_stopped_at_on_epoch_begin_has_no_body():
    points = Points(on_epoch_begin=lambda run: run.stop_epoch())
    seen, _ = train_on_letters([points])
    assert seen == "ab"
    assert points.seen == ["epoch_begin", "epoch_end", *EPOCH, "run_end"]


@pytest.mark.filterwarnings("ignore:run.stop_epoch")
@pytest.mark.parametrize("point", ["on_run_begin", "on_train_iter_end", "on_train_epoch_end", "on_epoch_end"])
def test_stop_epoch_without_run_epochs_does_not_stop_later_epochs(point):
    asked, seen = [], []
    stop = LambdaCallback(**{point: lambda run: asked.append(point) or (len(asked) == 1 and run.stop_epoch())})
    with Loop([stop]) as run:
        for _ in range(3):
            seen += run.batches("ab")
    assert "".join(seen) == ("aabab" if point == "on_train_iter_end" else "ababab")
    assert run.epoch == 3


# skip_batch


@pytest.mark.parametrize("point", ["on_iter_begin", "on_train_iter_begin"])
def test_a_batch_skipped_before_the_body_never_reaches_it(point):
    points = Points(**{point: lambda run: run.skip_batch()})
    seen, run = train_on_letters([points], epochs=1)
    assert seen == "b"
    assert points.seen[2:5] == ["iter_begin", "train_iter_begin", "iter_skip"]
    assert points.seen[5:] == [*ITERATION, "train_epoch_end", "epoch_end", "run_end"]
    assert (run.iteration, run.step, run.samples) == (1, 1, 1)
    assert run.epoch_complete


@pytest.mark.parametrize("others", [[], [LambdaCallback(on_iter_begin=lambda: None)]], ids=["alone", "with a begin handler"])
def test_a_batch_skipped_at_on_batch_fetch_end_never_reaches_the_body(others):
    skip = LambdaCallback(on_batch_fetch_end=lambda run, batch: batch == "a" and run.skip_batch())
    seen, run = train_on_letters([skip, *others], epochs=1)
    assert (seen, run.iteration) == ("b", 1)


def test_a_batch_skipped_by_the_body_is_not_counted():
    points = Points()
    seen, run = train_on_letters([points], epochs=1, body=lambda run: run.batch == "a" and run.skip_batch())
    assert seen == "ab"
    assert points.seen[2:5] == ["iter_begin", "train_iter_begin", "iter_skip"]
    assert run.iteration == 1


def test_on_iter_skip_gets_the_skipped_batch():
    skipped = []
    look = LambdaCallback(
        on_iter_begin=lambda run: run.skip_batch(), on_iter_skip=lambda batch, batch_idx: skipped.append((batch, batch_idx))
    )
    seen, run = train_on_letters([look], epochs=1)
    assert (seen, skipped) == ("", [("a", 0), ("b", 1)])
    assert run.epoch_complete


# skip_backward and skip_step


@pytest.mark.parametrize("what", ["backward", "step"])
def test_the_body_reads_requested_skips_from_run_skipped(what):
    read = []
    ask = LambdaCallback(on_iter_begin=lambda run: getattr(run, f"skip_{what}")())
    points = Points()
    train_on_letters([ask, points], epochs=1, body=lambda run: read.append(run.skipped))
    assert read == [{what}, {what}]
    assert "iter_skip" not in points.seen
    assert points.seen[2:10] == ITERATION * 2


def test_a_requested_skip_applies_to_one_iteration():
    read = []
    train_on_letters([Points(on_iter_begin=lambda run: run.skip_step())], body=lambda run: read.append(run.skipped))
    assert read == [{"step"}, frozenset(), frozenset(), frozenset()]


def test_a_skip_that_the_body_does_not_read_warns():
    ask = Points(on_iter_begin=lambda run: (run.skip_backward(), run.skip_step()))
    with pytest.warns(HookpointWarning) as caught:
        train_on_letters([ask], epochs=1)
    (warning,) = caught
    why = "it was requested too late, or the body of the loop did not read run.skipped"
    assert str(warning.message) == f"skip_backward/step had no effect: {why}"
    assert warning.filename == train_on_letters.__code__.co_filename


def test_a_skip_requested_after_the_body_read_run_skipped_warns():
    def body(run):
        assert not run.skipped
        run.fire("on_too_late")

    with pytest.warns(HookpointWarning, match="skip_step had no effect: it was requested too late"):
        train_on_letters([LambdaCallback(on_too_late=lambda run: run.skip_step())], epochs=1, body=body)


def test_a_skip_that_the_body_has_read_can_be_requested_again(recwarn):
    asks = LambdaCallback(on_iter_begin=lambda run: run.skip_step(), on_again=lambda run: run.skip_step())
    train_on_letters([asks], epochs=1, body=lambda run: (run.skipped, run.fire("on_again")))
    assert not recwarn.list


# retry


def test_a_retried_batch_runs_again_from_its_begin_points():
    points = Points()
    tries = []

    def body(run):
        tries.append((run.batch, run.batch_idx))
        if tries == [("a", 0)]:
            run.retry()

    _, run = train_on_letters([points], epochs=1, body=body)
    assert tries == [("a", 0), ("a", 0), ("b", 1)]
    assert points.seen[2:9] == ["iter_begin", "train_iter_begin", "iter_skip", *ITERATION]
    assert (run.iteration, run.epoch_complete) == (2, True)


def test_a_retry_requested_before_the_body_skips_the_body_of_that_attempt():
    seen, run = train_on_letters([Points(on_iter_begin=lambda run: run.retry())], epochs=1)
    assert (seen, run.iteration) == ("ab", 2)


@pytest.mark.parametrize("allowed", [0, 3])
def test_retries_are_limited_per_batch(allowed):
    tries = []
    with pytest.raises(TooManyRetries) as caught, Loop(max_retries=allowed) as run:
        for _ in run.batches("ab"):
            if run.batch_idx == 1:
                tries.append(run.batch)
                run.retry()
    assert tries == ["b"] * (allowed + 1)
    assert str(caught.value) == (
        f"batch 1: retry {allowed + 1} exceeds the limit of {allowed}.\n"
        f"  allow     max_retries={allowed + 1} in the Runner or Loop"
    )
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("ends_with", ["success", "skip"])
def test_each_batch_has_its_own_retries(ends_with):
    tries = []
    with Loop(max_retries=2) as run:
        for batch in run.batches("abc"):
            tries.append(batch)
            if tries.count(batch) <= 2:
                run.retry()
            elif ends_with == "skip":
                run.skip_batch()
    assert "".join(tries) == "aaabbbccc"


# Too late, or outside an iteration


@pytest.mark.parametrize("verdict", ["skip_batch", "skip_backward", "skip_step", "retry"])
@pytest.mark.parametrize("point", ["on_train_iter_end", "on_iter_end", "on_iter_skip"])
def test_a_verdict_after_the_end_of_the_iteration_raises(verdict, point):
    late = LambdaCallback(**{point: lambda run: getattr(run, verdict)()})
    with pytest.raises(BadLoop) as caught:
        train_on_letters([late], body=lambda run: point == "on_iter_skip" and run.skip_batch())
    assert str(caught.value) == (
        f"run.{verdict}() comes too late: the iteration has ended.\n  call      it before on_train_iter_end"
    )


@pytest.mark.parametrize("verdict", ["skip_batch", "skip_backward", "skip_step", "retry"])
def test_a_verdict_outside_an_iteration_raises(verdict):
    with Loop() as run:
        with pytest.raises(OutsideIteration, match=rf"run\.{verdict}\(\) exists only from on_iter_begin to on_iter_end"):
            getattr(run, verdict)()
        for _ in run.batches("ab"):
            break
        with pytest.raises(OutsideIteration):  # the break has ended the iteration
            getattr(run, verdict)()
    assert run.iteration == 1
