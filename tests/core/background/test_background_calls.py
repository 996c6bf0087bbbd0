"""A callback with `asynchronous = True` is called in the background, in order, with copies of the values it names."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

import hookpoint
from hookpoint import (
    At,
    Callback,
    CallbackPipeline,
    EnableCallbackIf,
    Every,
    HookpointWarning,
    Hooks,
    Loop,
    MainCallback,
    ProxyCallback,
    StopRun,
    errors,
    on,
)
from hookpoint.core.background import background_calls
from hookpoint.core.hooks._asynchronous import DIRECT

MOST_ITERATIONS = 5000


class Reader(Callback):
    """Record what its handlers see, and on which thread."""

    asynchronous = True

    def __init__(self, **options):
        super().__init__(**options)
        self.seen, self.threads = [], set()

    def see(self, value):
        self.seen.append(value)
        self.threads.add(threading.current_thread().name)


class Steps(Reader):
    def on_train_iter_end(self, run):
        self.see(run.step)


def train(callbacks, batches=3, epochs=1, body=lambda run, batch: None, **options):
    with Loop(callbacks, extra_callbacks=[], monitors=[], **options) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(range(batches)):
                body(run, batch)
    return run


def train_until_it_raises(callback):
    """Train until an error from the background arrives; return it and the iteration in which it was raised."""
    with pytest.raises(OSError, match="no printer") as caught, Loop([callback], extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(range(MOST_ITERATIONS)):
            time.sleep(0.0002)
    return caught.value, run.iteration


# Order and values


def test_calls_run_in_order_on_another_thread_and_end_before_the_run():
    class Reads(Steps):
        def on_epoch_end(self, epoch):
            self.see(f"epoch {epoch}")

        def on_run_end(self):
            self.see("end")

    reads = Reads()
    train([reads], epochs=2)
    assert reads.seen == [1, 2, 3, "epoch 1", 4, 5, 6, "epoch 2", "end"]
    assert reads.threads == {"hookpoint Reads"}


def test_handlers_see_the_run_as_it_was_at_the_point():
    gate = threading.Event()
    optimizer = SimpleNamespace(param_groups=[{"params": [object()], "lr": 0.1, "betas": (0.9, 0.99)}])

    class Reads(Reader):
        def on_train_iter_end(self, run, logs, epoch):
            gate.wait()
            assert (epoch, run.mode, run.global_step) == (run.epoch, "train", run.step)
            self.see((run.step, run.iteration, run.batch_idx, run.metrics["loss"], dict(logs), run.hyper["learning_rate"]))

    def body(run, batch):
        run.log(loss=batch * 10)
        run.hyper["learning_rate"] = batch + 1.0

    reads = Reads()
    with Loop([reads], extra_callbacks=[], monitors=[], optimizer=optimizer) as run:
        for batch in run.batches(range(3)):
            body(run, batch)
        gate.set()
    assert reads.seen == [(n + 1, n + 1, n, n * 10, {"loss": n * 10}, n + 1.0) for n in range(3)]


def test_named_values_are_copied_before_training_changes_them():
    gate = threading.Event()

    class Reads(Reader):
        def on_iter_end(self, batch, outputs, loss):
            gate.wait()
            self.see((batch, outputs, loss))

    class Changes(Callback):
        def on_iter_end(self, batch, outputs):
            batch["x"].append("changed")
            outputs.items.clear()

    reads = Reads()
    with Loop([reads, Changes()], extra_callbacks=[], monitors=[]) as run:
        for batch in run.batches([{"x": [1]}, {"x": [2]}]):
            run.outputs, run.loss = SimpleNamespace(items=list(batch["x"])), 0.5
        gate.set()
    assert reads.seen == [({"x": [n]}, SimpleNamespace(items=[n]), 0.5) for n in (1, 2)]


def test_a_value_that_cannot_be_copied_fails_the_callback(caplog):
    class Reads(Reader):
        def on_train_iter_end(self, batch):
            self.see(batch)

    with pytest.raises(errors.BadValue, match="generator cannot be copied"), Loop([Reads()], monitors=[]) as run:
        for _ in run.batches([(x for x in "ab")]):
            pass
    with Loop([Reads(on_error="warn")], monitors=[]) as run:
        for _ in run.batches([(x for x in "ab")]):
            pass
    assert "Reads failed at on_train_iter_end: BadValue: generator cannot be copied" in caplog.text


def test_points_before_training_are_called_directly_with_the_objects_of_the_run():
    class Reads(Reader):
        def on_setup(self, run):
            self.see(run.model)

        def on_run_begin(self, run):
            self.see(run.step)

    reads = Reads()
    train([reads], model="a model")
    assert reads.seen == ["a model", 0]
    assert reads.threads == {threading.current_thread().name}
    assert DIRECT == ("on_setup", "on_run_begin")


def test_schedules_pipelines_wrappers_and_marks_work_in_the_background():
    class Triggered(Reader):
        def on_trigger(self, run):
            self.see(run.step)

        @on("on_train_iter_end", when=At(steps=[3]))
        def third(self, run):
            self.see("third")

    by_steps, gated, at_epochs = Triggered(), Steps(), Triggered(name="at_epochs")
    only_even = EnableCallbackIf(gated, lambda run: run.current_iteration % 2 == 0)
    train([CallbackPipeline([by_steps.when(Every(steps=2)), only_even]), at_epochs], batches=4, epochs=2)
    assert by_steps.seen == [2, "third", 4, 6, 8]
    assert gated.seen == [2, 4, 6, 8]
    assert at_epochs.seen == ["third", 4, 8]


def test_a_wrapped_callback_with_tensorpack_methods_is_called():
    class Old(Reader):
        def _trigger_epoch(self):
            self.see((self.epoch_num, self.global_step))

    class Wrapped(ProxyCallback): ...

    old = Old()
    train([Wrapped(old)], epochs=2)
    assert old.seen == [(1, 3), (2, 6)]


def test_custom_points_get_copies_but_calls_outside_a_run_are_direct():
    class Reads(Reader):
        def on_words(self, words, run=None):
            self.see((list(words), run and run.step))

    reads, words = Reads(), ["a"]
    with Loop([reads], extra_callbacks=[], monitors=[]) as run:
        run.fire("on_words", words=words)
        words.append("b")
    assert reads.seen == [(["a"], 0)]
    assert reads.threads == {"hookpoint Reads"}
    alone = Reads()
    Hooks([alone]).fire_payload("on_words", {"words": words})
    assert alone.seen == [(["a", "b"], None)]
    assert alone.threads == {threading.current_thread().name}


def test_an_asynchronous_callback_runs_only_on_its_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    chief, everywhere = Steps(ranks="chief"), Steps()
    hooks = Hooks([chief, everywhere], rank=1, local_rank=1, is_in_team=True)
    assert [entry.subject for entry in hooks.entries] == [everywhere]


# A background callback can only read


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda run: run.stop("why"), "Reads is asynchronous and can only read: run.stop is not available"),
        (lambda run: run.save(), "run.save is not available"),
        (lambda run: run.skip_batch(), "run.skip_batch is not available"),
        (lambda run: run.log(x=1), "run.log is not available"),
        (lambda run: hookpoint.log("x", 1), "run.log is not available"),
        (lambda run: run.request_stop(), "run.request_stop is not available"),
        (lambda run: run.model, "uses run.model, which may have changed by the time an asynchronous callback runs"),
        (lambda run: run.store, "uses run.store, which may have changed"),
        (lambda run: run.batch, "uses run.batch, which is copied only for handlers that name it"),
        (lambda run: run.nothing, "uses run.nothing, which does not exist"),
        (lambda run: setattr(run, "epoch", 3), "run.epoch is read-only"),
        (lambda run: run.hyper.update(lr=0.1), r"run.hyper\['lr'\] is read-only in an asynchronous callback"),
        (lambda run: run.metrics["los"], "there is no metric 'los'"),
        (lambda run: (_ for _ in ()).throw(StopRun("enough")), "raised StopRun; an asynchronous callback can only read"),
        (lambda run: exit(), "raised SystemExit; an asynchronous callback can only read"),
        (lambda run: next(iter(())), "raised StopIteration"),
    ],
)
def test_anything_but_reading_the_run_raises(use, text):
    class Reads(Reader):
        def on_train_iter_end(self, run):
            use(run)

    with pytest.raises(errors.HookpointError, match=text) as caught:
        train([Reads()], batches=1)
    assert caught.value.__notes__ == ["in callback Reads at on_train_iter_end (step 1, rank 0), in the background"]


def refused(**attributes):
    base = attributes.pop("base", Callback)
    return type("Mine", (base,), {"asynchronous": True, "on_epoch_end": lambda self: None, **attributes})()


class OverridesRun(CallbackPipeline):
    def run(self, hookpoint=None, logs=None): ...


class Overrides(ProxyCallback):
    def on_epoch_end(self, run): ...


@pytest.mark.parametrize(
    ("callback", "text"),
    [
        (refused(saves=True), "requests saves (saves)"),
        (refused(may_skip=True), "requests verdicts (may_skip)"),
        (refused(collective=True), "communicates with other ranks (collective)"),
        (refused(writes=("x",)), "logs metrics (writes)"),
        (refused(may_write=("x",)), "logs metrics (may_write)"),
        (refused(actions=("on_epoch_end",)), "can be called by commands (actions)"),
        (refused(base=MainCallback), "is the MainCallback"),
        (refused(on_records=lambda self, records: None), "is a monitor, which is called in the background anyway"),
        (refused(on_iter_error=lambda self, error: None), "handles on_iter_error, where a callback decides"),
        (refused(on_sample=lambda self, sample: None), "handles on_sample, which is called in the process that loads the data"),
        (refused(_before_run=lambda self, ctx: ["loss"]), "defines _before_run or _after_run"),
        (refused(run=lambda self, hookpoint=None, logs=None: None), "receives its points through an overridden run()"),
        (OverridesRun([refused()]), "receives its points through an overridden run()"),
        (Overrides(refused()), "is in Overrides, which overrides on_epoch_end"),
        (refused(base=CallbackPipeline, on_epoch_end=None), None),
    ],
)
def test_a_callback_that_does_more_than_read_raises_at_compile_time(callback, text):
    if isinstance(callback, CallbackPipeline) and text is None:
        callback, text = type(callback)([Callback()]), "Mine is a pipeline and cannot set asynchronous."
    with pytest.raises(errors.CompileError) as caught:
        Hooks([callback])
    assert text in str(caught.value)


def test_a_returned_value_is_reported_once():
    class Reads(Reader):
        def on_train_iter_end(self):
            return False

    with pytest.warns(HookpointWarning, match="Reads.on_train_iter_end returned False, which is ignored") as caught:
        train([Reads()])
    assert len(caught) == 1


# Failures


def test_an_error_is_raised_at_the_next_boundary_and_the_end_points_still_run():
    class Fails(Reader):
        def on_train_iter_end(self, run):
            self.see(run.step)
            if run.step == 2:
                raise OSError("no printer")

        def on_run_end(self):
            self.see("end")

    fails = Fails()
    error, iteration = train_until_it_raises(fails)
    assert error.__notes__ == ["in callback Fails at on_train_iter_end (step 2, rank 0), in the background"]
    assert iteration < MOST_ITERATIONS
    assert fails.seen == [1, 2, "end"]


def test_an_error_in_the_last_call_is_raised_when_the_run_ends():
    class Fails(Reader):
        def on_run_end(self):
            raise OSError("no printer")

    with pytest.raises(OSError, match="no printer"):
        train([Fails()])


def test_on_error_policies_apply_in_the_background(caplog):
    class Fails(Reader):
        def on_train_iter_end(self, run):
            self.see(run.step)
            raise OSError("no printer")

        def on_run_end(self):
            self.see("end")

    disabled, warned = Fails(on_error="disable", name="disabled"), Fails(on_error="warn", name="warned")
    train([disabled, warned], batches=5)
    assert (disabled.seen, warned.seen) == ([1, "end"], [1, 2, 3, "end"])
    assert "warned failed at on_train_iter_end: OSError: no printer (3 times in a row); it is disabled" in caplog.text


def test_on_exception_is_called_in_the_background_before_the_run_ends():
    class Reads(Reader):
        def on_exception(self, error):
            self.see(repr(error))

    reads = Reads()
    with pytest.raises(ZeroDivisionError):
        train([reads], body=lambda run, batch: 1 / 0)
    assert reads.seen == ["ZeroDivisionError('division by zero')"]


# Limits


def test_a_full_queue_makes_the_run_wait_and_loses_no_calls():
    steps = Steps()
    steps.see = lambda value: (time.sleep(0.0001), steps.seen.append(value))
    train([steps], batches=background_calls.CAPACITY * 5)
    assert steps.seen == list(range(1, background_calls.CAPACITY * 5 + 1))


class Gated(Steps):
    """Steps whose calls wait for the gate."""

    def __init__(self, **options):
        super().__init__(**options)
        self.gate, self.begun = threading.Event(), threading.Event()

    def see(self, value):
        self.begun.set()
        self.gate.wait()
        super().see(value)


class Outside(Gated):
    outside = True


def train_while_the_gate_is_closed(steps, batches, *, opens=True):
    with Loop([steps], extra_callbacks=[], monitors=[]) as run:
        for batch in run.batches(range(batches)):
            if batch == 1:
                steps.begun.wait()
        if opens:
            steps.gate.set()


def test_an_outside_callback_drops_its_oldest_calls_and_counts_them(caplog):
    steps, last = Outside(), background_calls.CAPACITY + 5
    train_while_the_gate_is_closed(steps, last)
    assert steps.seen == [1, *range(6, last + 1)]
    assert [record.message for record in caplog.records] == ["Outside was too slow: 4 of its calls were dropped"]


def test_a_blocked_callback_is_reported_once_and_never_waited_for_again(caplog, monkeypatch):
    monkeypatch.setattr(background_calls, "CALL_SECONDS", 0.0)
    steps, last = Gated(), background_calls.CAPACITY + 5
    train_while_the_gate_is_closed(steps, last)
    blocked, dropped = (record.message for record in caplog.records)
    assert blocked.startswith(f"Gated is blocked: a call has not returned for 0 s ({__file__}:")
    assert dropped == "Gated was too slow: 4 of its calls were dropped"
    assert steps.seen == [1, *range(6, last + 1)]


def test_calls_that_do_not_return_in_time_are_counted_at_the_end(caplog, monkeypatch):
    monkeypatch.setattr(background_calls, "CALL_SECONDS", 0.01)
    steps = Gated()
    train_while_the_gate_is_closed(steps, 3, opens=False)
    steps.gate.set()
    assert f"Gated was too slow: 3 of its calls did not end within 0.01 s ({__file__}:" in caplog.text


# State


class Kept:
    """A store that keeps the states in memory."""

    def __init__(self):
        self.states = {}

    def save(self, state, *, step, tags):
        self.states[step] = state["callbacks"]["Counts"]["state"]
        return str(step)


class Counts(Steps):
    """Count the calls. Each takes longer than an iteration."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def on_train_iter_end(self, run):
        time.sleep(0.0005)
        self.calls += 1
        self.see(run.step)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def test_a_checkpoint_contains_the_state_after_all_calls_so_far():
    store = Kept()
    train([Counts()], batches=6, store=store, body=lambda run, batch: run.save())
    assert store.states == {step: {"calls": step} for step in range(1, 7)}


def test_a_resumed_run_continues_with_the_saved_state(tmp_path):
    class Stops(Callback):
        def on_train_iter_end(self, run):
            if run.step == 4:
                run.stop("enough")

    def resumed(callbacks):
        counts = Counts()
        saver = hookpoint.callbacks.ModelSaver().when(Every(steps=2))
        train([counts, saver, *callbacks], batches=10, workdir=tmp_path)
        return counts

    assert resumed([Stops()]).seen == [1, 2, 3, 4]
    second = resumed([])
    assert (second.seen, second.calls) == ([5, 6, 7, 8, 9, 10], 10)


def test_the_state_of_a_blocked_callback_is_left_out(monkeypatch, caplog):
    monkeypatch.setattr(background_calls, "CALL_SECONDS", 0.0)
    store = Kept()

    class Blocked(Counts):
        name, gate = "Counts", threading.Event()

        def on_train_iter_end(self, run):
            self.gate.wait()

    counts = Blocked()
    with Loop([counts], extra_callbacks=[], monitors=[], store=store) as run:
        for _ in run.batches(range(1)):
            run.save()
        counts.gate.set()
    assert store.states == {1: {}}
    assert "checkpoints do not contain its state" in caplog.text


# Reports


def test_explain_marks_calls_in_the_background():
    class Reads(Steps):
        def on_run_begin(self): ...

    assert Hooks([Reads(), Steps()]).explain() == (
        "point              callback  when                       why here\n"
        "-----------------  --------  -------------------------  ----------\n"
        "on_run_begin       Reads     always                     list order\n"
        "on_train_iter_end  Reads     always, in the background  list order\n"
        "                   Steps     always, in the background  list order"
    )


def test_an_asynchronous_callback_does_not_change_the_code_that_calls_others():
    class Plain(Callback):
        def on_train_iter_end(self, run, batch): ...

    alone = Hooks([Plain()]).dispatch("on_train_iter_end", mode="train")
    beside = Hooks([Plain(), refused()]).dispatch("on_train_iter_end", mode="train")
    assert alone.__code__.co_code == beside.__code__.co_code
