from __future__ import annotations

import copy
import pickle
import random
import signal
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import hookpoint
from hookpoint import After, At, Callback, Every, If, Once, StopRun, When
from hookpoint.callbacks import ModelSaver
from hookpoint.core.errors import BadLoop, CannotResume, CannotSave, NotFinite, NothingToSaveTo
from hookpoint.core.loop.loop import Loop


class Killed(BaseException):
    """Raised to simulate a killed process: nothing is saved afterwards."""


class Saver(Callback):
    saves = True

    def on_trigger(self, run):
        run.save("saver")


class Rows(Callback):
    """A monitor whose file is truncated to its length in the checkpoint."""

    def __init__(self, disk):
        super().__init__()
        self.disk = disk

    def on_records(self, records):
        for record in records:
            if record.kind == "scalars":
                self.disk.rows.append((record.step, record.epoch, record.at, record.scalars()))

    def on_run_begin(self, run):
        if not run.resuming:
            self.disk.rows.clear()

    def state_dict(self):
        return {"rows": len(self.disk.rows)}

    def load_state_dict(self, state):
        del self.disk.rows[state["rows"] :]


class Weights:
    def __init__(self):
        self.value = 1.0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Shuffled:
    """Batches in a new order in each epoch, each with noise that is drawn when it is read."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        for number in random.sample(range(self.size), self.size):
            yield number + random.random()


class Decides(Callback):
    """Keep a best value and two counts, which are reset when a run or a training epoch begins."""

    def on_run_begin(self, run):
        self.best, self.seen, self.in_epoch = 1e9, 0, 0

    def on_train_epoch_begin(self):
        self.in_epoch = 0

    def on_train_iter_end(self, run):
        self.in_epoch += 1

    def on_epoch_end(self, run):
        self.best = min(self.best, run.metrics["loss"])
        run.log("best", self.best + self.in_epoch)

    def on_trigger(self, run):
        self.seen += 1
        run.log("seen", self.seen)

    def state_dict(self):
        return {"best": self.best, "seen": self.seen, "in_epoch": self.in_epoch}

    def load_state_dict(self, state):
        vars(self).update(state)


class Kills(Callback):
    """Kill the run at its n-th point."""

    def __init__(self, at):
        super().__init__()
        self.left = at

    def run(self, hookpoint=None, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Killed


@contextmanager
def no_ghosts(rows):
    """Keep the monitor thread of a killed run from writing."""
    try:
        yield
    except Killed:
        rows.disk = type(rows.disk)()
        raise


def train(disk, kill_at=0, *, shape="plain", epochs=3, every=None):
    random.seed(7)
    model, extra = Weights(), Weights()
    saver = Saver() if every is None else Saver().when(every)
    callbacks = [Decides().when(Every(iterations=3)), saver, Kills(kill_at), Rows(disk)]
    decides = callbacks[0]

    def learn(run, batch):
        model.value = model.value * 0.9 + batch * random.random()
        run.log(loss=model.value)

    loop = Loop(callbacks, model=model, store=disk, log_every=2, state={"extra": extra})
    with no_ghosts(callbacks[-1]), loop as run:
        random.random()
        extra.value += 1
        if shape == "no epochs":
            for _ in range(epochs):
                for batch in run.batches(random.sample(range(5), 5)):
                    learn(run, batch)
                extra.value += random.random()
        else:
            for epoch in run.epochs(epochs):
                random.random()  # runs again in a resumed epoch, without an effect
                extra.value += epoch
                if shape == "validates first":
                    for batch in run.batches([1.0, 2.0], mode="val"):
                        run.log(loss=batch + random.random())
                order = random.sample(range(5), 5)
                for batch in run.batches(order if shape == "drawn in the body" else Shuffled(5)):
                    learn(run, batch)
                    if shape == "breaks" and run.batch_idx == 3:
                        break
                if shape == "two passes":
                    extra.value *= 2
                    for batch in run.batches(random.sample(range(3), 3)):
                        learn(run, batch)
                extra.value += random.random()
                for batch in run.batches([1.0, 2.0], mode="val"):
                    run.log(loss=model.value + batch * random.random())
    return model.value, extra.value, decides.state_dict(), random.random(), disk.rows


def count_points(disk, shape, every):
    counter = Kills(0)
    train_with = train.__globals__["Kills"]
    try:
        train.__globals__["Kills"] = lambda at: counter
        train(disk, shape=shape, every=every)
    finally:
        train.__globals__["Kills"] = train_with
    return -counter.left


@pytest.mark.parametrize("shape", ["plain", "two passes", "validates first", "no epochs", "breaks", "drawn in the body"])
@pytest.mark.parametrize("every", [Every(steps=2), None], ids=["each second step", "each epoch"])
def test_a_run_killed_at_any_point_resumes_to_the_same_result(shape, every, spread, new_disk):
    whole = train(new_disk(), shape=shape, every=every)
    assert len(whole[-1]) > 5
    points = count_points(new_disk(), shape, every)
    assert points > 50
    for point in spread(range(1, points + 1), 6):
        disk = new_disk()
        with pytest.raises(Killed):
            train(disk, point, shape=shape, every=every)
        assert train(disk, shape=shape, every=every) == whole, f"killed at point {point} of {points}"


def test_a_run_killed_several_times_resumes_to_the_same_result(disk, new_disk):
    whole = train(new_disk(), every=Every(steps=2))
    kills = 0
    for point in [30, 45, 20, 33, 40, 25]:
        try:
            train(disk, point, every=Every(steps=2))
        except Killed:
            kills += 1
    assert kills >= 5
    assert train(disk, every=Every(steps=2)) == whole


@pytest.mark.parametrize(
    "piece", ["clocks", "place", "parts", "callbacks", "logbook", "data", "rng"], ids=lambda piece: f"without {piece}"
)
def test_every_piece_of_the_state_is_needed_to_resume(piece, monkeypatch, disk, new_disk):
    whole = train(new_disk(), every=Every(steps=2))
    first = disk.write
    fresh = []

    def forgetful(state, **given):
        fresh.append(copy.deepcopy(state[piece]))
        return first({**state, piece: fresh[0]}, **given)

    disk.write = forgetful
    with pytest.raises(Killed):
        train(disk, 90, every=Every(steps=2))
    try:
        ended = train(disk, every=Every(steps=2))
    except CannotResume:
        return
    assert ended != whole


@pytest.mark.parametrize("kind", [int, str, torch.tensor, lambda number: (torch.full((3,), number), number / 2)])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_list_that_the_script_shuffles_in_place_warns(in_place, kind, tmp_path, caplog):
    def go(fails_at=None):
        random.seed(0)
        data = [kind(number) for number in range(10)]
        saver = ModelSaver(async_save=False).when(Every(steps=3))
        with hookpoint.Loop([saver], workdir=tmp_path, monitors=[], extra_callbacks=[]) as run:
            for _ in run.epochs(2):
                if in_place:
                    random.shuffle(data)
                for _ in run.batches(data if in_place else random.sample(data, len(data))):
                    if run.iteration == fails_at:
                        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        go(fails_at=14)
    caplog.clear()
    go()
    warned = "the list of training batches differs from the list in the checkpoint" in caplog.text
    assert warned == in_place


def test_a_finished_run_is_not_repeated_but_can_be_extended(capsys, disk, new_disk):
    three = train(disk, epochs=3)
    number = len(disk.checkpoints)
    capsys.readouterr()
    again = train(disk, epochs=3)
    assert again[:3] == three[:3]
    assert len(disk.checkpoints) == number
    assert "run has already finished (3 of 3 epochs)" in capsys.readouterr().err
    assert train(disk, epochs=4) == train(new_disk(), epochs=4)


def test_a_resume_is_printed_and_seen_by_callbacks(capsys, disk):
    seen = []

    class Watches(Callback):
        def on_setup(self, run):
            seen.append(("setup", run.step, run.resuming))

        def on_train_epoch_begin(self, run):
            seen.append(("epoch", run.epoch, run.step, run.resuming))

        def on_load(self, run, path):
            seen.append(("load", path, run.step))

        def on_iter_begin(self, run):
            seen.append((run.batch_idx, run.step, run.resuming))

    def run_it(stop_at=None):
        with Loop([Saver().when(Every(steps=1)), Watches()], store=disk) as run:
            for _ in run.epochs(2):
                for _ in run.batches([1, 2, 3]):
                    if run.step == stop_at:
                        raise Killed

    with pytest.raises(Killed):
        run_it(2)
    seen.clear()
    run_it()
    assert seen[:5] == [("setup", 2, True), ("load", "disk", 2), ("epoch", 1, 2, True), (2, 2, False), ("epoch", 2, 3, False)]
    assert 'Resuming run from disk (epoch 1, step 2). Pass resume="never" to start from scratch.' in capsys.readouterr().err


@pytest.mark.parametrize("where", ["body", "epoch end", "epoch begin", "validation", "run begin"])
def test_a_run_stopped_at_any_point_resumes_to_the_same_result(where, disk, new_disk):
    class Stops(Callback):
        def __init__(self, active):
            super().__init__()
            self.active = active

        def stop(self, run, place):
            if self.active and place == where and run.epoch in (0, 2):
                run.stop("enough")

        def on_run_begin(self, run):
            self.stop(run, "run begin")

        def on_epoch_begin(self, run):
            self.stop(run, "epoch begin")

        def on_train_iter_end(self, run):
            if run.batch_idx == 1:
                self.stop(run, "body")

        def on_val_iter_end(self, run):
            self.stop(run, "validation")

        def on_epoch_end(self, run):
            self.stop(run, "epoch end")

    def run_it(disk, active):
        random.seed(1)
        model = Weights()
        with Loop([Saver(), Stops(active)], model=model, store=disk) as run:
            for _ in run.epochs(4):
                for batch in run.batches(Shuffled(4)):
                    model.value = model.value * 0.5 + batch
                for _ in run.batches([1], mode="val"):
                    pass
        return model.value, run.step

    stopped = run_it(disk, True)
    assert stopped[1] == {"body": 6, "epoch end": 8, "epoch begin": 4, "validation": 8, "run begin": 0}[where]
    assert run_it(disk, False) == run_it(new_disk(), False)


class Counter(Callback):
    """Count the steps; the count is in the state."""

    def __init__(self, name="Counter"):
        super().__init__(name=name)
        self.count = 0

    def on_train_iter_end(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_added_and_removed_callbacks_are_reported_and_no_state_is_dropped(caplog, disk):
    def run_it(names, epochs):
        callbacks = [Counter(name) for name in names]
        with Loop([Saver(), *callbacks], store=disk, model=Weights()) as run:
            for _ in run.epochs(epochs):
                for _ in run.batches([1, 2]):
                    pass
        return {callback.name: callback.count for callback in callbacks}

    assert run_it(["a", "b"], 1) == {"a": 2, "b": 2}
    assert caplog.text == ""
    assert run_it(["b", "c"], 2) == {"b": 4, "c": 2}
    assert caplog.records[0].getMessage() == (
        "the callbacks of this run do not match the checkpoint:\n"
        "  b  restored\n  c  new, starts from scratch\n  a  stored for later"
    )
    caplog.clear()
    assert run_it(["c", "a", "b"], 3) == {"c": 4, "a": 4, "b": 6}
    assert caplog.text == ""


class Forgetful(Callback):
    """The same callback without methods for its state."""

    def __init__(self):
        super().__init__(name="Counter")

    def on_train_iter_end(self):
        pass


class Foreign:
    """A callback that is not derived from Callback."""

    name = "Counter"

    def on_train_iter_end(self):
        pass


class WriteOnly(Forgetful):
    def state_dict(self):
        return {"mine": 1}


@pytest.mark.parametrize("changed", [Forgetful, Foreign])
def test_state_of_a_class_without_state_methods_is_reported_and_kept(changed, caplog, disk):
    def run_it(counter, epochs):
        with Loop([Saver().when(Every(epochs=1)), counter], store=disk, model=Weights()) as run:
            for _ in run.epochs(epochs):
                list(run.batches([1, 2]))
        return counter

    assert run_it(Counter(), 1).count == 2
    run_it(changed(), 2)
    table = "  Saver    restored\n  Counter  stored for later: its class has no load_state_dict"
    assert caplog.records[-1].getMessage() == f"the callbacks of this run do not match the checkpoint:\n{table}"
    run_it(changed(), 3)
    caplog.clear()
    assert run_it(Counter(), 4).count == 4
    assert caplog.text == ""


def test_a_class_that_only_saves_its_state_is_reported_as_not_restored(caplog, disk):
    for epochs in (1, 2):
        with Loop([Saver().when(Every(epochs=1)), WriteOnly()], store=disk) as run:
            for _ in run.epochs(epochs):
                list(run.batches([1, 2]))
    assert "Counter  not restored: its class has no load_state_dict" in caplog.text
    assert disk.state["callbacks"]["Counter"]["state"] == {"mine": 1}


def test_parts_only_in_the_checkpoint_or_the_run_are_reported(caplog, disk):
    def run_it(**state):
        with Loop([Saver()], store=disk, state=state) as run:
            for _ in run.epochs(run.epoch + 1):
                for _ in run.batches([1]):
                    pass

    run_it(one=Weights())
    run_it(two=Weights())
    assert [record.getMessage() for record in caplog.records] == [
        "the checkpoint has state for 'one', which this run does not use",
        "the checkpoint has no state for 'two', which stays unchanged",
    ]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"model": Weights()}, "state: the name 'model' is reserved.\n  rename    it"),
        ([3], 'state must be a dict of objects by name, got [3].\n  write     state={"scheduler": scheduler}'),
        ({"x": 3}, "state['x']: int needs both state_dict and load_state_dict.\n  add       them"),
    ],
)
def test_invalid_state_raises(state, message):
    with pytest.raises(BadLoop) as caught:
        Loop(state=state)
    assert str(caught.value) == message


def test_a_script_with_fewer_passes_than_the_checkpoint_raises(disk):
    def run_it(passes, stop_at=None):
        with Loop([Saver().when(Every(steps=1))], store=disk) as run:
            for _ in run.epochs(1):
                for _ in range(passes):
                    for _ in run.batches([1, 2]):
                        if run.step == stop_at:
                            raise Killed

    with pytest.raises(Killed):
        run_it(2, stop_at=3)
    with pytest.raises(CannotResume) as caught:
        run_it(1)
    assert str(caught.value) == (
        "disk was saved in pass 2 of epoch 1, but this epoch has fewer passes.\n"
        "  run       the script unchanged\n"
        '  start     from scratch with resume="never"'
    )


def steps(disk, *more, number=6):
    with Loop([Saver().when(Every(steps=1)), *more], store=disk) as run:
        for _ in run.batches(range(number)):
            pass
    return run


def test_a_failed_save_is_logged_as_an_event_and_the_run_continues(caplog, disk, monitor):
    disk.fails = [None, OSError(28, "No space left on device"), OSError(5, "Input/output error"), None]
    assert steps(disk, monitor).step == 6
    assert [step for _, step, _ in disk.checkpoints] == [1, 4, 5, 6, 6]  # the last save is at the end of the epoch
    assert "step 2 could not be saved: [Errno 28] No space left on device; the last good checkpoint is disk/1" in caplog.text
    assert [event["in_a_row"] for event in monitor.events("save_failed")] == [1, 2]


def test_the_third_failed_save_in_a_row_ends_the_run(disk):
    disk.fails = [None, *[OSError(28, "No space left on device")] * 3]
    with pytest.raises(CannotSave) as caught:
        steps(disk)
    assert caught.value.errno == 28
    assert str(caught.value) == (
        "step 4 could not be saved: [Errno 28] No space left on device\n"
        "  last      good checkpoint: disk/1\n"
        "  free      disk space, or make the folder writable; then start again to resume"
    )


def test_a_failed_last_save_fails_the_run(disk):
    disk.fails = [*[None] * 5, OSError(28, "No space left on device"), OSError(28, "No space left on device")]
    with pytest.raises(CannotSave, match="step 6 could not be saved"):
        steps(disk)


def test_weights_that_are_not_finite_are_not_saved(caplog, disk):
    disk.fails = [None, NotFinite("weight holds nan")]
    assert steps(disk).step == 6
    assert [step for _, step, _ in disk.checkpoints] == [1, 3, 4, 5, 6, 6]
    assert "step 2 was not saved: weight holds nan; the last good checkpoint is disk/1" in caplog.text


def test_a_saver_without_a_workdir_raises_before_anything_runs():
    with pytest.raises(NothingToSaveTo) as caught:
        Loop([Saver()]).__enter__()
    assert str(caught.value) == 'Saver has nowhere to save to.\n  give      workdir="runs/name"'


def test_on_exception_can_request_a_checkpoint(disk):
    class Keeps(Callback):
        def on_exception(self, run):
            run.save("exception")

    with pytest.raises(ValueError, match="broken"), Loop([Saver(), Keeps()], store=disk) as run:
        for batch in run.batches(range(5)):
            if batch == 3:
                raise ValueError("broken")
    ((state, step, tags),) = disk.checkpoints
    assert (step, tags) == (3, ["exception"])
    place = pickle.loads(state)["place"]
    assert (place["in_epoch"], place["passes"], place["batches"]) == (True, [], 3)


def test_stop_run_raised_before_everything_is_restored_loses_nothing(disk):
    class Refuses(Callback):
        def on_run_begin(self, run):
            raise StopRun("not now")

    def run_it(disk, *more):
        model = Weights()
        with Loop([Saver(), *more], model=model, store=disk) as run:
            for _ in run.epochs(2):
                for batch in run.batches([1.0, 2.0]):
                    model.value += batch
        return model.value

    with pytest.raises(Killed):
        run_it(disk, Kills(24))
    number = len(disk.checkpoints)
    assert number == 1
    assert run_it(disk, Refuses()) == 4.0
    assert len(disk.checkpoints) == number
    assert run_it(disk) == 7.0


def test_the_means_of_a_stopped_pass_continue_after_a_resume(new_disk):
    def run_it(disk, stop_at=None):
        random.seed(3)
        with Loop([Saver(), Rows(disk)], store=disk, log_every=3) as run:
            for _ in run.epochs(2):
                for batch in run.batches(Shuffled(5)):
                    run.log(loss=batch)
                    if run.step + 1 == stop_at:
                        run.stop("enough")
        return disk.rows, run.metrics.observations("loss")

    whole = run_it(new_disk())
    for stop_at in range(1, 11):
        disk = new_disk()
        run_it(disk, stop_at)
        assert run_it(disk) == whole, f"stopped after step {stop_at}"


def test_a_stop_epoch_pending_in_the_checkpoint_applies_after_a_resume(disk):
    seen = []

    class Dies(Callback):
        def on_train_epoch_end(self, run):
            seen.append((run.epoch, run.iteration))
            if len(seen) == 1:
                raise Killed

    def run_it():
        with Loop([Saver().when(Every(steps=2)), Dies()], store=disk) as run:
            for _ in run.epochs(2):
                for _ in run.batches("abcd"):
                    if run.iteration + 1 == 2:
                        run.stop_epoch()
        return run.iteration

    with pytest.raises(Killed):
        run_it()
    assert run_it() == 6
    assert seen == [(1, 2), (1, 2), (2, 6)]


@pytest.fixture
def late_disk(new_disk):
    class LateDisk(new_disk):
        """A disk that reports the result of a save later."""

        def __init__(self):
            super().__init__()
            self.finished = []

        def write(self, state, **given):
            if not given["request"].in_background:
                return super().write(state, **given)
            try:
                self.finished.append(super().write(state, **given))
            except OSError as error:
                self.finished.append(error)
            return None

        def collect(self, *, wait=False):
            if any(isinstance(one, OSError) for one in self.finished):
                raise self.finished.pop(next(number for number, one in enumerate(self.finished) if isinstance(one, OSError)))
            finished, self.finished = self.finished, []
            return finished

    return LateDisk()


@pytest.mark.parametrize("stops", [False, True], ids=["ends", "is stopped"])
def test_a_failed_background_save_does_not_fail_the_last_checkpoint(stops, late_disk, monitor):
    class SavesLate(Callback):
        saves = True

        def on_train_iter_end(self, run):
            run.save("late", in_background=True)
            if stops and run.step == 3:
                run.stop("enough")

    late_disk.fails = [None, None, OSError(28, "No space left on device")]
    with Loop([SavesLate(), monitor], store=late_disk) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(5 if stops else 3)):
                pass
    assert [event["in_a_row"] for event in monitor.events("save_failed")] == [1]
    assert late_disk.checkpoints[-1][1:] == (3, ["stop" if stops else "end"])


class Ticks(Callback):
    def __init__(self):
        super().__init__()
        self.steps = []

    def on_trigger(self, run):
        self.steps.append(run.step)


def fired(disk, schedule, epochs, *, kill_at=None):
    ticks = Ticks().when(schedule)
    with suppress(Killed), Loop([Saver().when(Every(steps=1)), ticks], store=disk, model=Weights()) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(range(10)):
                if run.step == kill_at:
                    raise Killed
    return ticks.steps


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [
        (Every(steps=1000), Every(steps=5), [15, 20]),
        (At(steps=5), Every(steps=5), [15, 20]),
        (Once(steps=3), Every(steps=5), [15, 20]),
        (Once(steps=3), Once(steps=4), [13]),
        (Every(steps=5) | Once(steps=3), Every(steps=7) | Once(steps=3), [14]),
        (Every(steps=5), Every(epochs=1), [20]),
        (Every(steps=5), Every(steps=7) | Every(epochs=1), [14, 20]),
        (Every(steps=7) | Every(epochs=1), Every(steps=5), [15, 20]),
    ],
    ids=repr,
)
def test_a_schedule_changed_since_the_checkpoint_applies(before, after, steps, caplog, disk):
    fired(disk, before, 2, kill_at=12)
    assert fired(disk, after, 2) == steps
    table = f"  Saver  restored\n  Ticks  restored, but its schedule is now {after!r}, not {before!r}"
    assert [record.getMessage() for record in caplog.records] == [
        f"the callbacks of this run do not match the checkpoint:\n{table}"
    ]


@dataclass(eq=False)
class Custom(When):
    """A schedule whose text contains the address of a function."""

    test: Callable[[Any], object]

    def __post_init__(self):
        self.ticks_on = frozenset(["steps"])

    def arm(self):
        return (Once(steps=3) | (Every(steps=2) & If(self.test))).arm()


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda: Once(steps=3) | At(steps=(step for step in (5, 15))), [15]),
        (lambda: Custom(lambda run: run.step % 3 == 0), [18]),
    ],
    ids=["generator", "function"],
)
def test_a_schedule_has_not_changed_if_only_an_address_in_its_text_has(make, steps, caplog, disk):
    before, after = make(), make()
    fired(disk, before, 2, kill_at=12)
    assert fired(disk, after, 2) == steps
    assert caplog.records == []


@pytest.mark.parametrize(
    ("schedule", "steps", "later"),
    [
        (Once(), [13], [31]),
        (Once(steps=5), [13], [31]),
        (Once(steps=15), [15], [31]),
        (Once() | At(steps=17), [13, 17], [31]),
        (At(steps=5), [], []),
        (Every(steps=18), [18], [36]),
    ],
    ids=repr,
)
def test_a_schedule_added_to_a_resumed_run_starts_at_the_resume(schedule, steps, later, disk):
    def train(epochs, *more, kill_at=None):
        with suppress(Killed), Loop([Saver().when(Every(steps=1)), *more], store=disk) as run:
            for _ in run.epochs(epochs):
                for _ in run.batches(range(10)):
                    if run.step == kill_at:
                        raise Killed

    first, second, third = (Ticks().when(schedule) for _ in range(3))
    train(2, kill_at=12)
    train(2, first, kill_at=19)
    train(2, second)
    train(3, Ticks())
    train(4, third)
    assert (first.steps, second.steps, third.steps) == (steps, [], later)


def test_a_checkpoint_without_the_texts_of_schedules_can_be_resumed(disk):
    first = disk.write

    def older(state, **given):
        state = copy.deepcopy(state)
        for saved in state["callbacks"].values():
            saved.pop("when", None)
        return first(state, **given)

    disk.write = older
    assert fired(disk, Every(steps=4), 1) == [4, 8]
    assert fired(disk, Every(steps=4), 2) == [12, 16, 20]
    assert fired(disk, Every(steps=4) | Every(steps=7), 3) == [21, 24, 28]
    assert fired(disk, Every(steps=5), 4) == [35, 40]
    assert fired(disk, Every(epochs=1), 5) == [50]
    assert fired(disk, Every(steps=5) & After(steps=1), 6) == [55, 60]


@pytest.mark.parametrize("number", [2, 3], ids=["in the middle", "last batch"])
@pytest.mark.parametrize("ends", ["stop", "signal"])
def test_a_batch_whose_retry_is_pending_at_a_stop_is_not_lost(ends, number, disk):
    asked, seen, completes = [], [], []

    class Retries(Callback):
        def on_iter_begin(self, run, batch):
            if batch == number and not asked:
                asked.append(run.retry())
                run.stop("why") if ends == "stop" else signal.raise_signal(signal.SIGTERM)

        def on_epoch_end(self, run):
            completes.append(run.epoch_complete)

    for _ in range(2):
        with suppress(SystemExit), Loop([Retries(), Saver()], store=disk) as run:
            for _ in run.epochs(1):
                seen += run.batches([0, 1, 2, 3])
    assert seen == [0, 1, 2, 3]
    assert completes == ([True] if (ends, number) == ("signal", 3) else [False, True])


def test_an_epoch_with_an_incomplete_pass_stays_incomplete_after_a_resume(disk):
    completes = []

    class Completes(Callback):
        def on_epoch_end(self, run):
            completes.append(run.epoch_complete)

    def train(kill_at=None):
        with Loop([Saver().when(Every(steps=1)), Completes()], store=disk) as run:
            for _ in run.epochs(2):
                for batch in run.batches([1, 2, 3]):
                    if run.epoch == 1 and batch == 2:
                        break
                for _ in run.batches([1, 2, 3]):
                    if run.step == kill_at:
                        raise Killed

    with pytest.raises(Killed):
        train(3)
    train()
    assert completes == [False, True]


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_run_stopped_at_on_epoch_begin_resumes_with_the_same_random_numbers(epoch, new_disk):
    def run_it(disk, stops):
        class Stops(Callback):
            def on_epoch_begin(self, run):
                random.random()
                if stops and run.epoch == epoch:
                    run.stop("why")

        random.seed(0)
        seen, extra = [], Weights()
        saver = Saver().when(Every(epochs=5))
        with Loop([saver, Stops()], store=disk, state={"extra": extra}) as run:
            for _ in run.epochs(3):
                extra.value += random.random()
                data = [random.random(), random.random()]
                seen += [(batch, random.random()) for batch in run.batches(data)]
        return seen, extra.value

    whole, disk = run_it(new_disk(), False), new_disk()
    before, _ = run_it(disk, True)
    after, value = run_it(disk, False)
    assert (before + after, value) == whole
