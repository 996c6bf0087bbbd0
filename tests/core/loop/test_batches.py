"""The generated iterations of a pass, compared step by step with the plain `Machine.iterate`."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import islice
from types import SimpleNamespace

import pytest

from hookpoint import Callback, Every, HookpointWarning, LambdaCallback
from hookpoint.core.errors import BadLoop, OutsideIteration, TooManyRetries
from hookpoint.core.loop import batches
from hookpoint.core.loop.loop import Loop
from hookpoint.core.loop.machine import Machine
from hookpoint.core.points import POINTS
from hookpoint.core.run.run import now_of
from hookpoint.core.team.team import Team

ALL = [point.name for point in POINTS if not point.main_only and not point.in_data and point.name != "on_records"]
OF_ITERATIONS = [name for name in ALL if "_iter_" in name or "_fetch_" in name]


class Optimizer:
    """An optimizer with step hooks that can accumulate: only every `accumulate`-th call steps."""

    def __init__(self, accumulate=1):
        self.hooks, self.calls, self.accumulate = [], 0, accumulate

    def register_step_pre_hook(self, hook):
        return self.register_step_post_hook(lambda *args: None)

    def register_step_post_hook(self, hook):
        self.hooks.append(hook)
        return LambdaHandle(lambda: self.hooks.remove(hook))

    def step(self):
        self.calls += 1
        if self.calls % self.accumulate == 0:
            for hook in self.hooks:
                hook(self, (), {})


class LambdaHandle:
    def __init__(self, remove):
        self.remove = remove


class Twins(Team):
    """A team of two ranks that always do the same."""

    size = data_size = 2

    def gather(self, value):
        return [value, value]

    def sums(self, values):
        return [2 * value for value in values]

    def to_chief(self, data):
        return [data, data]


class Store:
    """A store that records the clocks of each state."""

    def __init__(self, seen):
        self.seen = seen

    def save(self, state, *, step, tags):
        self.seen.append(("saved", step, sorted(tags), state["clocks"]["iteration"], state["place"].get("batches")))
        return f"step-{step}"


class Watch(Callback):
    """Record every point of a run: its clocks, its batch, and the metrics so far."""

    def __init__(self, seen, points=ALL):
        self.seen = seen
        for point in points:
            setattr(self, point, self.note(point))
        super().__init__()

    def note(self, point):
        def on_point(run):
            now = now_of(run)
            values = dict(run.metrics)
            here = (run.mode, run.epoch, run.step, run.iteration, run.samples, run.current_iteration, run.progress)
            batch = tuple(getattr(now, name, None) for name in ("batch", "batch_idx", "samples", "has_ended"))
            self.seen.append((point, *here, *batch, values))

        return on_point


def ask(point, verdict, *, at):
    """Return a callback that requests a verdict at a point, at these iterations."""
    waiting = list(at)

    def on_point(run):
        if run.mode == "train" and waiting and run.iteration == waiting[0]:
            waiting.pop(0)
            getattr(run, verdict)()

    return LambdaCallback(**{point: on_point})


def train(seen, callbacks=(), *, optimizer=None, body=lambda run: None, leaves=False, nests=False, **options):
    """Train two epochs, with a validation after each, and record what the body sees."""
    with Loop(list(callbacks), optimizer=optimizer, **options) as run:
        for _ in run.epochs(2):
            for batch in run.batches([[1, 2], [3], [4, 5, 6], [7], [8]]):
                seen.append(("body", batch, run.batch, run.batch_idx, run.iteration, run.step, run.progress))
                run.log(loss=float(sum(batch)), scale=2)
                if optimizer is not None:
                    optimizer.step()
                if nests:
                    for inner in run.batches("xy", mode="val"):
                        run.log(loss=1.0)
                        seen.append(("inner", inner, run.metrics["val_loss"], run.metrics["loss"]))
                        if nests == "left":
                            break
                body(run)
                if leaves and run.iteration == 3:
                    break
            for batch in run.batches(["a", "b"], mode="val"):
                run.log(loss=len(batch) / 3)
                seen.append(("val", batch, run.iteration))
    seen.append(dict(run.metrics))
    seen.append({name: run.monitors.get_history(name) for name in run.metrics})
    seen.append((run.step, run.iteration, run.samples, run.stop_reason))


CASES = {
    "nothing": {},
    "everybody listens": {"points": ALL},
    "iterations are watched": {"points": OF_ITERATIONS},
    "only the end of an iteration": {"points": ["on_iter_end"]},
    "only the begin of an iteration": {"points": ["on_train_iter_begin"]},
    "no log steps": {"points": ALL, "log_every": 0},
    "a log step every second step": {"points": ALL, "log_every": 2},
    "skip": {"points": ALL, "asks": [("on_iter_begin", "skip_batch", [1, 4])]},
    "skip, nobody listens": {"asks": [("on_train_iter_begin", "skip_batch", [1, 4])]},
    "retry": {"points": ALL, "asks": [("on_iter_begin", "retry", [2, 2, 6])]},
    "stop the epoch": {"points": ALL, "asks": [("on_iter_end", "stop_epoch", [2])]},
    "stop": {"points": ALL, "asks": [("on_train_iter_end", "stop", [3])]},
    "stop while a batch is fetched": {"asks": [("on_batch_fetch_end", "stop_epoch", [2])]},
    "break": {"points": ALL, "leaves": True},
    "break, nobody listens": {"leaves": True},
    "a validation in each iteration": {"points": ALL, "nests": True},
    "a validation that is left": {"nests": "left"},
    "the optimizer reports steps": {"points": ALL, "optimizer": 1},
    "accumulation": {"points": ALL, "optimizer": 2, "log_every": 2},
    "accumulation and saves": {"optimizer": 3, "saves": True},
    "saves": {"points": ALL, "saves": True},
    "a function counts samples": {"points": ALL, "samples": lambda batch: 10},
    "a team": {"points": ALL, "team": Twins, "log_every": 2},
    "a team, nobody listens": {"team": Twins, "optimizer": 1},
    "a schedule": {"asks": [], "schedule": True, "log_every": 2},
}


def story(case):
    """Return everything that a run of this case shows."""
    seen: list = []
    case = dict(case)
    callbacks = [ask(point, verdict, at=at) for point, verdict, at in case.pop("asks", ())]
    if case.pop("schedule", False):
        callbacks.append(LambdaCallback(on_trigger=lambda run: seen.append(("due", run.step))).when(Every(steps=3)))
    if case.pop("saves", False):
        case["store"] = Store(seen)
        callbacks.append(LambdaCallback(on_iter_end=lambda run: run.save("each") if run.iteration % 2 else None))
    points = case.pop("points", None)
    if points is not None:
        callbacks.append(Watch(seen, points))
    if "optimizer" in case:
        case["optimizer"] = Optimizer(case["optimizer"])
    train(seen, callbacks, **case)
    return seen


@pytest.mark.parametrize("name", CASES)
def test_generated_iterations_behave_like_the_plain_machine(monkeypatch, name):
    decided = story(CASES[name])
    monkeypatch.setattr(batches, "iterations", Machine.iterate)
    plain = story(CASES[name])
    for number, (one, other) in enumerate(zip(decided, plain, strict=False)):
        assert one == other, number
    assert len(decided) == len(plain) > 10


@pytest.mark.parametrize(
    ("name", "error"), [("on_iter_begin", KeyError), ("on_iter_end", KeyError), ("on_iter_end", StopIteration)]
)
def test_errors_in_generated_iterations_are_those_of_the_plain_machine(monkeypatch, name, error):
    def fail(run):
        raise error("no")

    def failure():
        seen: list = []
        with pytest.raises((error, RuntimeError)) as raised:
            train(seen, [LambdaCallback(**{name: fail}), Watch(seen)])
        return (
            seen,
            type(raised.value),
            str(raised.value),
            raised.value.__notes__ if hasattr(raised.value, "__notes__") else None,
        )

    decided = failure()
    monkeypatch.setattr(batches, "iterations", Machine.iterate)
    assert decided == failure()


def test_batches_can_be_taken_with_next_and_a_for_loop():
    with Loop([]) as run:
        loop = run.batches("abcdef")
        taken = [next(loop)]
        for batch in loop:
            taken.append(batch)
            if batch == "b":
                taken.append(next(loop))
                assert run.batch == "c"
            if batch == "d":
                break
        taken += list(loop)
    assert taken == list("abcdef")
    assert run.iteration == 6


@pytest.mark.parametrize("taken_from", [iter, lambda loop: loop])
def test_a_pass_continues_after_a_caught_error_of_the_loader(taken_from):
    class Flaky:
        """An iterator that fails once, at its second batch."""

        def __init__(self):
            self.number = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.number += 1
            if self.number == 2:
                raise OSError("a lost connection")
            if self.number > 4:
                raise StopIteration
            return self.number

    taken, completed = [], []
    with Loop([LambdaCallback(on_epoch_end=lambda run: completed.append(run.epoch_complete))]) as run:
        iterator = taken_from(run.batches(Flaky()))
        while True:
            try:
                taken.append(next(iterator))
            except OSError:
                continue
            except StopIteration:
                break
    assert (taken, completed, run.iteration) == ([1, 3, 4], [True], 3)


@pytest.mark.parametrize("total", [None, 4])
def test_an_epoch_is_incomplete_if_an_error_ended_its_loader(total):
    class Ends:
        def __iter__(self):
            yield from "ab"
            raise OSError("a lost connection")

    loader = Ends() if total is None else type("Sized", (Ends,), {"__len__": lambda self: total})()
    taken, completed = [], []
    with Loop([LambdaCallback(on_epoch_end=lambda run: completed.append(run.epoch_complete))]) as run:
        iterator = iter(run.batches(loader))
        for _ in range(4):
            with suppress(OSError):
                taken.append(next(iterator, None))
    assert (taken, completed) == (["a", "b", None], [False])


def test_an_iteration_starts_clean_after_a_failed_iteration_end():
    losses, taken, fails = [], [], iter([False, True])

    def fail(run):
        if next(fails, False):
            raise OSError("a full disk")

    def skip(run):
        losses.append(run.loss)
        if run.batch == "c":
            run.skip_batch()

    with Loop([LambdaCallback(on_train_iter_begin=skip, on_train_iter_end=fail)]) as run:
        iterator = iter(run.batches("abcd"))
        for _ in range(5):
            try:
                taken.append(next(iterator, None))
                run.loss = 1.0
            except OSError:
                continue
            except OutsideIteration:
                break
    assert (taken, losses, run.iteration) == (["a", "b", "d", None], [None] * 4, 3)


def test_a_batch_retried_too_often_is_skipped_if_the_caller_continues():
    taken, caught = [], []
    with Loop([LambdaCallback(on_iter_begin=lambda run: run.retry() if run.batch == "b" else None)], max_retries=1) as run:
        iterator = iter(run.batches("abc"))
        for _ in range(4):
            try:
                taken.append(next(iterator, None))
            except TooManyRetries as error:
                caught.append(str(error))
    assert (taken, len(caught), run.iteration) == (["a", "c", None], 1, 2)


@pytest.mark.parametrize("closes", [False, True])
def test_a_pass_held_by_a_variable_stays_open_after_a_break(closes):
    taken, ended = [], []
    with Loop([LambdaCallback(on_train_epoch_end=lambda run: ended.append(run.iteration))]) as run:
        for _ in run.epochs(1):
            batches = run.batches("abcd")
            for batch in batches:
                taken.append(batch)
                if batch == "b":
                    break
            if closes:
                batches.close()
            run.log(other=1)
            assert ended == [2] * closes
            taken += list(batches)
    assert ("".join(taken), ended) == (("ab", [2]) if closes else ("abcd", [4]))


def test_a_pass_cannot_be_iterated_again_in_the_next_epoch():
    with pytest.raises(BadLoop, match="has ended in epoch 1, so epoch 2 would get no batches"), Loop([]) as run:
        batches_of_all_epochs = run.batches("ab")
        for _ in run.epochs(2):
            for _ in batches_of_all_epochs:
                pass
    assert (run.epoch, run.iteration) == (2, 2)


def test_two_passes_cannot_be_interleaved():
    with pytest.raises(BadLoop, match="was closed by another pass or by the end of its epoch"), Loop([]) as run:
        for _ in run.epochs(1):
            for _ in zip(run.batches("ab"), run.batches("xy"), strict=True):
                pass


def test_an_iterator_over_a_pass_ends_with_its_epoch():
    with pytest.raises(BadLoop, match="was closed by another pass or by the end of its epoch"), Loop([]) as run:
        iterator = iter(run.batches("abcdef"))
        for _ in run.epochs(2):
            for _ in islice(iterator, 2):
                pass
    assert (run.epoch, run.iteration) == (2, 2)


def test_iterating_over_a_finished_pass_yields_nothing():
    with Loop([]) as run:
        for _ in run.epochs(2):
            loop = run.batches("ab")
            assert [list(loop), list(loop)] == [["a", "b"], []]
    assert run.iteration == 4


def test_explain_shows_the_iterations_once_a_pass_has_begun():
    loop = Loop([LambdaCallback(on_train_iter_end=lambda run: None)])
    assert "The source is generated when a pass begins" in loop.hooks.explain(step=True)
    with loop as run:
        for _ in run.batches("ab"):
            pass
        for _ in run.batches("ab", mode="val"):
            pass
    text = run.hooks.explain(step=True)
    assert text.startswith(run.hooks.explain())
    training, validation = text.split("The iterations of a train pass:")[1].split("The iterations of a val pass:")
    assert "end = pass_.end\n" in training
    assert "clocks.iteration += 1" in training
    assert "clocks" not in validation
    assert "pass_.end" not in validation
    assert "agreement" not in text


def opcodes():
    """Return how many opcodes hookpoint executes in one iteration without callbacks."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode" and "hookpoint" in frame.f_code.co_filename
        return trace

    with Loop([], log_every=1000) as run:
        iterator = iter(run.batches([SimpleNamespace(shape=(2, 3))] * 30))
        for _ in range(20):
            next(iterator)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            next(iterator)
            next(iterator)
        finally:
            sys.settrace(before)
    return count / 2


def test_generated_iterations_execute_fewer_opcodes(monkeypatch):
    decided = opcodes()
    monkeypatch.setattr(batches, "iterations", Machine.iterate)
    assert 0 < decided < 0.8 * opcodes()


@pytest.mark.parametrize("mode", ["train", "val"])
def test_a_used_up_iterator_warns(mode):
    letters = iter("ab")
    with Loop([]) as run:
        assert list(run.batches(letters, mode=mode)) == ["a", "b"]
        with pytest.warns(
            HookpointWarning, match=f"^this {mode} pass has no batches: an earlier pass has used up the iterator"
        ):
            assert list(run.batches(letters, mode=mode)) == []


@pytest.mark.parametrize("empty", [[], ""], ids=["list", "text"])
def test_training_on_nothing_warns(empty):
    with Loop([]) as run:
        with pytest.warns(HookpointWarning, match="^this train pass has no batches: the loader yields nothing"):
            assert list(run.batches(empty)) == []
        assert list(run.batches(empty, mode="val")) == []
        assert list(run.batches([1])) == [1]


def test_an_iterator_that_has_more_batches_can_be_read_in_several_passes():
    letters = iter("abc")
    with Loop([]) as run:
        for _ in run.epochs(2):
            for letter in run.batches(letters):
                if letter == "b":
                    break
    assert (run.iteration, letter) == (3, "c")
