"""Whatever a user's loops do, the points that fire form a sequence that the table of points allows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookpoint import Callback, StopRun
from hookpoint.core.loop.loop import Loop

pytestmark = [
    pytest.mark.filterwarnings("ignore:run.stop_epoch"),  # the plans also call it where no epoch is open
    pytest.mark.filterwarnings("ignore:this train pass has no batches"),
]


class Boom(Exception):
    pass


@dataclass
class BatchPlan:
    """What the body of an iteration does: nothing, or one of the actions; and a validation pass inside it."""

    action: str = ""
    inner: PassPlan | None = None


@dataclass
class PassPlan:
    mode: str
    batches: list[BatchPlan]
    sized: bool = True


@dataclass
class EpochPlan:
    passes: list[PassPlan]
    leaves: bool = False


@dataclass
class Plan:
    epochs: list[EpochPlan]
    handlers: dict[int, str] = field(default_factory=dict)


BODY_ACTIONS = ["", "", "", "", "continue", "break", "stop", "stop_epoch", "skip_batch", "retry", "raise", "StopRun", "caught"]
HANDLER_ACTIONS = ["stop", "stop_epoch", "skip_batch", "retry", "raise", "StopRun"]

inner_passes = st.builds(
    PassPlan, st.sampled_from(["val", "pred"]), st.lists(st.builds(BatchPlan, st.sampled_from(BODY_ACTIONS)), max_size=3)
)
batches = st.builds(BatchPlan, st.sampled_from(BODY_ACTIONS), st.none() | inner_passes)
passes = st.builds(
    PassPlan, st.sampled_from(["train", "train", "val", "pred"]), st.lists(batches, max_size=4), sized=st.booleans()
)
epochs = st.builds(EpochPlan, st.lists(passes, max_size=3), leaves=st.sampled_from([False, False, False, True]))
plans = st.builds(
    Plan,
    st.lists(epochs, max_size=4),
    st.dictionaries(st.integers(0, 120), st.sampled_from(HANDLER_ACTIONS), max_size=3),
)


class Recorder(Callback):
    """Record every point that fires, and perform the planned actions at some of them."""

    def __init__(self, handlers: dict[int, str]) -> None:
        self.events: list[str] = []
        self.modes: list[str | None] = []
        self._handlers = handlers
        self._calls = 0

    def run(self, hookpoint=None, logs=None):
        run = logs["run"]
        self.events.append(hookpoint)
        self.modes.append(run.mode)
        action = self._handlers.get(self._calls, "")
        self._calls += 1
        if action == "stop":
            run.stop()
            self.events.append("STOP")
            self.modes.append(None)
        elif action == "stop_epoch":
            run.stop_epoch()
        elif action in ("skip_batch", "retry"):
            if hookpoint in ("on_iter_begin", "on_train_iter_begin", "on_val_iter_begin", "on_pred_iter_begin"):
                getattr(run, action)()
        elif action == "raise":
            raise Boom(hookpoint)
        elif action == "StopRun":
            raise StopRun


def drive(plan: Plan) -> tuple[Recorder, BaseException | None]:
    recorder = Recorder(plan.handlers)
    retried: set[int] = set()
    try:
        with Loop([recorder]) as run:
            queue = list(plan.epochs)
            for _ in run.epochs(len(queue)):
                epoch = queue[run.epoch - 1]
                for one in epoch.passes:
                    run_pass(run, one, recorder, retried)
                if epoch.leaves:
                    break
    except BaseException as error:
        return recorder, error
    return recorder, None


def run_pass(run, plan: PassPlan, recorder: Recorder, retried: set[int]) -> None:
    source = plan.batches if plan.sized else iter(plan.batches)
    for batch in run.batches(source, mode=plan.mode):
        if batch.inner is not None:
            run_pass(run, batch.inner, recorder, retried)
        run.log(loss=1.0)
        if batch.action == "continue":
            continue
        if batch.action == "break":
            break
        if batch.action == "stop":
            run.stop("enough")
            recorder.events.append("STOP")
            recorder.modes.append(None)
        elif batch.action == "stop_epoch":
            run.stop_epoch()
        elif batch.action == "skip_batch":
            run.skip_batch()
        elif batch.action == "retry" and id(batch) not in retried:
            retried.add(id(batch))
            run.retry()
        elif batch.action == "raise":
            raise Boom("body")
        elif batch.action == "StopRun":
            recorder.events.append("STOP")
            recorder.modes.append(None)
            raise StopRun
        elif batch.action == "caught":
            with contextlib.suppress(Boom):
                raise Boom("caught")


PASSES = ("train", "val", "pred")


def check(recorder: Recorder, error: BaseException | None) -> None:
    """Walk the events with a stack of open levels; raise AssertionError at an event that the table of points forbids."""
    events = [event for event in recorder.events if event != "STOP"]
    modes = [mode for event, mode in zip(recorder.events, recorder.modes, strict=True) if event != "STOP"]
    assert events[0] == "on_setup"
    assert events.count("on_run_end") == 1
    assert events[-1] == "on_run_end"
    failed = error is not None and "on_exception" in events
    if failed:
        assert events[-2:] == ["on_exception", "on_run_end"]
        events, modes = events[:-2], modes[:-2]
    else:
        assert "on_exception" not in events
        events, modes = events[:-1], modes[:-1]
    stack: list[str] = []
    for event, mode in zip(events[1:], modes[1:], strict=True):
        step(stack, event, mode)
    if not failed and "StopRun" not in str(type(error)):
        assert [level for level in stack if level != "run"] == []


def step(stack: list[str], event: str, mode: str | None) -> None:
    top = stack[-1] if stack else ""
    kind = event.removeprefix("on_")
    if event == "on_run_begin":
        assert stack == []
        stack.append("run")
    elif event == "on_epoch_begin":
        assert top == "run"
        stack.append("epoch")
    elif event == "on_epoch_end":
        assert stack.pop() == "epoch"
    elif kind in [f"{name}_epoch_begin" for name in PASSES]:
        name = kind.split("_")[0]
        assert top == "epoch" if name == "train" else top in ("run", "epoch") or top.endswith(" iteration body")
        assert mode == name
        stack.append(name)
    elif kind in [f"{name}_epoch_end" for name in PASSES]:
        assert stack.pop() == mode == kind.split("_")[0]
    elif event == "on_batch_fetch_begin":
        assert top == mode
        stack.append("fetch")
    elif event == "on_batch_fetch_end":
        assert stack.pop() == "fetch"
    elif event == "on_iter_begin":
        assert top == mode
        stack.append(f"{mode} iteration")
    elif kind in [f"{name}_iter_begin" for name in PASSES]:
        assert stack.pop() == f"{mode} iteration"
        assert kind.split("_")[0] == mode
        stack.append(f"{mode} iteration body")
    elif kind in [f"{name}_iter_end" for name in PASSES]:
        assert stack.pop() == f"{mode} iteration body"
        assert kind.split("_")[0] == mode
        stack.append(f"{mode} iteration ending")
    elif event == "on_iter_end":
        assert stack.pop() == f"{mode} iteration ending"
    elif event == "on_iter_skip":
        assert stack.pop() == f"{mode} iteration body"
    else:
        raise AssertionError(f"{event} after {top}")


@settings(max_examples=6 * settings.default.max_examples, deadline=None)
@given(plans)
def test_points_fire_in_an_allowed_order(plan):
    recorder, error = drive(plan)
    assert error is None or isinstance(error, Boom), error
    if any("StopRun" in action for action in plan.handlers.values()):
        return  # a handler that raises StopRun cuts off its own point; the tests below cover this case
    check(recorder, error)


@settings(max_examples=6 * settings.default.max_examples, deadline=None)
@given(plans)
def test_a_stopped_run_starts_no_further_iteration(plan):
    recorder, _ = drive(plan)
    if "STOP" in recorder.events:
        after = recorder.events[recorder.events.index("STOP") :]
        started = [event for event in after if event in ("on_iter_begin", "on_epoch_begin")]
        assert started == []


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(plans)
def test_every_run_ends_with_on_run_end_outside_any_pass(plan):
    recorder, error = drive(plan)
    events = [event for event in recorder.events if event != "STOP"]
    assert events.count("on_run_end") == 1
    assert events[-1] == "on_run_end"
    assert ("on_exception" in recorder.events) == (isinstance(error, Boom) and not failed_at_the_end(error))
    assert recorder.modes[-1] is None


def failed_at_the_end(error: BaseException) -> bool:
    return str(error) in ("on_run_end", "on_exception")
