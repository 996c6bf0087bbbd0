"""tensorpack callbacks run unchanged: underscore methods, self.trainer, and its wrappers."""

from __future__ import annotations

import pytest

from hookpoint import Callback, CallbackFactory, EnableCallbackIf, PeriodicCallback, PeriodicTrigger, errors
from hookpoint.core.loop.loop import Loop


def train(callbacks, *, epochs=2, steps=3, **given):
    with Loop(callbacks, **given) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(range(steps)):
                run.log(cost=float(batch))
    return run


class EveryName(Callback):
    def __init__(self):
        self.seen = []

    def _setup_graph(self):
        self.seen.append("_setup_graph")

    def _before_train(self):
        self.seen.append("_before_train")

    def _before_epoch(self):
        self.seen.append(f"_before_epoch {self.epoch_num}")

    def _before_run(self):
        self.seen.append(f"_before_run {self.local_step}")

    def _after_run(self):
        self.seen.append(f"_after_run {self.local_step}")

    def _trigger_step(self):
        self.seen.append(f"_trigger_step {self.global_step}")

    def _after_epoch(self):
        self.seen.append("_after_epoch")

    def _trigger_epoch(self):
        self.seen.append(f"_trigger_epoch {self.epoch_num}")

    def _after_train(self):
        self.seen.append("_after_train")


class Count(Callback):
    """Record when it is triggered, without a schedule of its own."""

    def __init__(self):
        self.triggered = []
        self.epochs = []

    def _before_epoch(self):
        self.epochs.append(self.epoch_num)

    def _trigger(self):
        self.triggered.append((self.epoch_num, self.global_step))


def test_every_name_is_called_in_order():
    callback = EveryName()
    train([callback], epochs=1, steps=2)
    assert callback.seen == [
        "_setup_graph",
        "_before_train",
        "_before_epoch 1",
        *("_before_run 0", "_after_run 0", "_trigger_step 1"),
        *("_before_run 1", "_after_run 1", "_trigger_step 2"),
        "_after_epoch",
        "_trigger_epoch 1",
        "_after_train",
    ]


def test_trigger_runs_at_the_end_of_each_epoch():
    callback = Count()
    train([callback])
    assert callback.triggered == [(1, 3), (2, 6)]


def test_trigger_is_not_called_if_trigger_epoch_is_defined():
    class Both(Count):
        def _trigger_epoch(self):
            self.triggered.append("epoch")

    callback = Both()
    train([callback])
    assert callback.triggered == ["epoch", "epoch"]


def test_self_trainer_is_the_run():
    seen = []

    class Look(Callback):
        def _before_train(self):
            seen.append((self.trainer.model, self.trainer.is_chief))

        def _trigger_epoch(self):
            monitors = self.trainer.monitors
            monitors.put_scalar("twice", 2 * monitors.get_latest("cost"))
            seen.append(monitors.get_history("twice"))

    callback = Look()
    train([callback], model="net")
    assert seen == [("net", True), [(3, 2.0)], [(3, 2.0), (6, 2.0)]]
    with pytest.raises(errors.OutsideRun, match=r"Look\.trainer exists only during a run"):
        callback.trainer  # noqa: B018


def test_underscore_names_are_handlers_only_without_parameters():
    class Helper(Callback):
        def _trigger(self, value):
            raise AssertionError("no handler: it takes a value")

        def _before_epoch(self, context):
            raise AssertionError("no handler: it takes a context")

    with pytest.raises(errors.NotACallback) as caught:
        train([Helper()])
    assert str(caught.value) == (
        "Helper: a run calls none of its methods.\n"
        "  rename    _trigger(self, value) -> on_trigger(self, run)\n"
        "            _before_epoch(self, context) -> on_train_epoch_begin(self, run)"
    )
    Helper._after_train = lambda self: None
    train([Helper()])


def test_after_train_runs_for_all_callbacks_after_an_error():
    seen = []

    class Fails(Callback):
        def _after_train(self):
            seen.append("fails")
            raise ValueError("cannot clean up")

    class Works(Callback):
        def _after_train(self):
            seen.append("works")

    with pytest.raises(RuntimeError, match="diverged") as raised, Loop([Fails(), Works()]) as run:
        for _ in run.batches([1]):
            raise RuntimeError("diverged")
    assert seen == ["fails", "works"]
    assert raised.value.__notes__ == ["on_run_end failed too: ValueError: cannot clean up"]


def test_callbacks_run_in_the_order_of_the_list():
    order = []

    class Named(Callback):
        def _trigger_epoch(self):
            order.append(self.name)

    callbacks = [Named(name=name) for name in ("saver", "best", "inference")]
    train(callbacks, epochs=1)
    assert order == ["saver", "best", "inference"]
    assert [callback.name for callback in callbacks] == ["saver", "best", "inference"]


def test_a_reader_listed_before_its_writer_runs_after_it():
    """tensorpack's example lists MinSaver before the InferenceRunner whose result it reads."""
    seen = []

    class MinSaver(Callback):
        reads = ("val-error-top1",)

        def _trigger(self):
            seen.append(self.trainer.monitors.get_latest("val-error-top1"))

    class InferenceRunner(Callback):
        writes = ("val-error-top1",)

        def _trigger(self):
            self.trainer.monitors.put_scalar("val-error-top1", 1 / self.epoch_num)

    train([MinSaver(), InferenceRunner()])
    assert seen == [1.0, 0.5]


# Wrappers


def test_periodic_trigger_triggers_every_k_steps():
    callback = Count()
    train([PeriodicTrigger(callback, every_k_steps=2)])
    assert callback.triggered == [(1, 2), (2, 4), (2, 6)]
    assert callback.epochs == [1, 2]


def test_periodic_trigger_triggers_every_k_epochs():
    callback = Count()
    train([PeriodicTrigger(callback, every_k_epochs=2)], epochs=4)
    assert callback.triggered == [(2, 6), (4, 12)]


def test_periodic_trigger_combines_steps_and_epochs():
    callback = Count()
    train([PeriodicTrigger(callback, every_k_steps=4, every_k_epochs=2)])
    assert callback.triggered == [(2, 4), (2, 6)]


def test_periodic_trigger_can_trigger_before_training():
    callback = Count()
    train([PeriodicTrigger(callback, every_k_epochs=1, before_train=True)])
    assert callback.triggered == [(0, 0), (1, 3), (2, 6)]
    only_before = Count()
    train([PeriodicTrigger(only_before, before_train=True)])
    assert only_before.triggered == [(0, 0)]


def test_periodic_trigger_without_a_period_raises():
    with pytest.raises(errors.BadSchedule, match="PeriodicTrigger: no period given"):
        PeriodicTrigger(Count())


def test_periodic_callback_limits_epoch_and_step_points_to_the_period():
    by_epoch, by_step = Count(), EveryName()
    train([PeriodicCallback(by_epoch, every_k_epochs=2), PeriodicCallback(by_step, every_k_steps=3)], epochs=4, steps=2)
    assert by_epoch.epochs == [2, 4]
    assert by_epoch.triggered == [(2, 4), (4, 8)]
    assert [line for line in by_step.seen if line.startswith("_trigger_step")] == ["_trigger_step 3", "_trigger_step 6"]
    assert [line for line in by_step.seen if line.startswith("_before_run")] == ["_before_run 0", "_before_run 1"]
    assert by_step.seen[:2] == ["_setup_graph", "_before_train"]
    assert by_step.seen[-1] == "_after_train"


def test_enable_callback_if_skips_epochs_where_the_condition_is_false():
    callback = EveryName()
    train([EnableCallbackIf(callback, lambda trainer: trainer.epoch_num > 1)], epochs=2, steps=1)
    assert callback.seen == [
        *("_setup_graph", "_before_train", "_before_epoch 2", "_before_run 0", "_after_run 0", "_trigger_step 2"),
        *("_after_epoch", "_trigger_epoch 2", "_after_train"),
    ]


def test_callback_factory_calls_its_functions():
    seen = []
    factory = CallbackFactory(
        setup_graph=lambda self: seen.append("setup"),
        before_train=lambda self: seen.append("before"),
        trigger=lambda self: seen.append((self.epoch_num, self.global_step, self.trainer.metrics["cost"])),
        after_train=lambda self: seen.append("after"),
    )
    train([factory])
    assert seen == ["setup", "before", (1, 3, 1.0), (2, 6, 1.0), "after"]


def test_callback_factory_can_be_triggered_by_steps():
    steps = []
    train([PeriodicTrigger(CallbackFactory(trigger=lambda self: steps.append(self.global_step)), every_k_steps=2)])
    assert steps == [2, 4, 6]
