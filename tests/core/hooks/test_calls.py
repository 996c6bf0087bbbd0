"""When triggers run, and when a metric that is read must exist."""

from __future__ import annotations

import pytest

from hookpoint import After, At, Callback, EnableCallbackIf, Every, If, Once, PeriodicTrigger, errors, on


class Trigger(Callback):
    def __init__(self):
        self.seen = []

    def on_trigger(self, run):
        self.seen.append((run.epoch, run.step))


# Triggers


def test_a_trigger_without_a_schedule_runs_at_the_end_of_each_epoch(train):
    trigger = Trigger()
    train([trigger], epochs=2, batches=[1, 2])
    assert trigger.seen == [(1, 2), (2, 4)]


def test_a_trigger_runs_only_for_complete_epochs(train):
    trigger, by_epoch = Trigger(), Trigger().when(Every(epochs=1))

    def body(run):
        if run.epoch == 2:
            run.stop_epoch()

    train([trigger, by_epoch], epochs=3, batches=[1, 2], body=body)
    assert [epoch for epoch, _ in trigger.seen] == [epoch for epoch, _ in by_epoch.seen] == [1, 3]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Every(steps=2), [(1, 2), (2, 4), (2, 6)]),
        (Every(iterations=3), [(1, 3), (2, 6)]),
        (Every(epochs=2), [(2, 6)]),
        (At(epochs=[1]), [(1, 3)]),
        (At(steps=[1, 5]), [(1, 1), (2, 5)]),
        (Every(samples=4), [(2, 4)]),
        (Once(), [(1, 1)]),
        (Every(steps=2) | At(epochs=1), [(1, 2), (1, 3), (2, 4), (2, 6)]),
        (Every(steps=1) & After(epochs=1), [(2, 4), (2, 5), (2, 6)]),
        (If(lambda run: run.epoch == 2), [(2, 6)]),
    ],
    ids=repr,
)
def test_a_schedule_sets_when_the_trigger_runs(train, schedule, expected):
    trigger = Trigger()
    train([trigger.when(schedule)], epochs=2, batches=[1, 2, 3])
    assert trigger.seen == expected


def test_a_schedule_moves_only_the_trigger(train):
    said = []

    class Two(Trigger):
        def on_epoch_end(self):
            said.append("epoch")

    two = Two().when(Every(steps=2))
    train([two], epochs=2, batches=[1, 2])
    assert said == ["epoch", "epoch"]
    assert two.seen == [(1, 2), (2, 4)]


def test_two_callbacks_can_share_a_schedule(train):
    schedule = Every(steps=2)
    first, second = Trigger().when(schedule), Trigger().when(schedule)
    train([first, second], batches=range(4))
    assert first.seen == second.seen == [(1, 2), (1, 4)]


def test_triggers_run_in_list_order_among_the_handlers_of_their_point(train):
    said = []

    class Says(Callback):
        def on_trigger(self):
            said.append(self.name)

    class Ends(Callback):
        def on_iter_end(self):
            said.append(self.name)

    train([Says(name="a").when(Every(steps=1)), Ends(name="b"), Says(name="c").when(Every(iterations=1))])
    assert said == ["a", "b", "c"]


def test_a_mark_can_schedule_a_trigger(train):
    seen = []

    class Marked(Callback):
        @on("on_trigger", when=Every(steps=2))
        def act(self, run):
            seen.append(run.step)

    train([Marked()], batches=range(5))
    assert seen == [2, 4]


def test_tensorpack_trigger_epoch_replaces_trigger_at_the_end_of_an_epoch(train):
    said = []

    class Both(Callback):
        def _trigger_epoch(self):
            said.append("epoch")

        def _trigger(self):
            said.append("trigger")

    train([Both()])
    assert said == ["epoch"]
    train([PeriodicTrigger(Both(), every_k_steps=1)])
    assert said == ["epoch", "trigger", "epoch"]


def test_on_trigger_is_called_in_addition_to_tensorpack_trigger_epoch(train):
    said = []

    class Both(Callback):
        def _trigger_epoch(self):
            said.append("epoch")

        def on_trigger(self):
            said.append("trigger")

    train([Both()])
    assert sorted(said) == ["epoch", "trigger"]


def test_a_trigger_can_also_run_before_training_and_by_hand(train):
    before, by_hand = Trigger(), Trigger().when(Every(steps=100))
    train([PeriodicTrigger(before, every_k_epochs=1, before_train=True)], batches=[1, 2])
    assert before.seen == [(0, 0), (1, 2)]
    train([by_hand], batches=[1, 2], body=lambda run: run.fire("on_trigger"))
    assert by_hand.seen == [(1, 0), (1, 1)]


def test_a_predicate_applies_to_every_point_except_run_begin_and_end(train):
    said = []

    class Says(Callback):
        def on_run_begin(self):
            said.append("begin")

        def on_epoch_end(self, epoch):
            said.append(epoch)

        def on_run_end(self):
            said.append("end")

    train([EnableCallbackIf(Says(), lambda run: run.epoch == 2)], epochs=3)
    assert said == ["begin", 2, "end"]


# Metrics that are read


class Writer(Callback):
    """Logs a metric at the end of the given epochs."""

    writes = ("acc",)

    def __init__(self, *epochs):
        self.epochs = epochs

    def on_trigger(self, run):
        if run.epoch in self.epochs:
            run.log(acc=run.epoch / 10)


class Reader(Callback):
    reads = ("acc",)

    def __init__(self):
        self.seen = []

    def on_epoch_end(self, run):
        self.seen.append(run.metrics.get("acc"))


def test_a_reader_sees_the_metric_that_its_writer_logged(train):
    reader = Reader()
    train([reader, Writer(1, 2)], epochs=2)
    assert reader.seen == [0.1, 0.2]


def test_begin_points_of_a_writer_do_not_count_as_logging(train):
    class Ready(Callback):
        def on_setup(self): ...
        def on_run_begin(self): ...
        def on_epoch_begin(self): ...
        def on_train_epoch_begin(self): ...
        def on_iter_begin(self): ...

    class ReadyWriter(Ready, Writer): ...

    class ReadyReader(Ready, Reader): ...

    reader = ReadyReader()
    train([reader, ReadyWriter(1, 2)], epochs=2)
    assert reader.seen == [0.1, 0.2]


def test_a_reader_with_on_error_warn_is_called_without_the_metric(train, caplog):
    reader = Reader()
    reader.on_error = "warn"
    train([reader, Writer(2)], epochs=2)
    assert reader.seen == [None, 0.2]
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("Reader reads 'acc'")


def test_a_metric_that_its_writer_did_not_log_raises(train):
    with pytest.raises(errors.MissingMetric) as caught:
        train([Writer(), Reader()], epochs=2, body=lambda run: run.log(loss=1))
    assert str(caught.value) == (
        "Reader reads 'acc', which Writer declares but did not log.\n"
        "  known     loss\n"
        '  log       run.log({"acc": value}) before it is read'
    )
    assert caught.value.name == "acc"
    assert caught.value.__notes__ == ["in callback Reader at on_epoch_end (step 1, rank 0)"]


def test_a_metric_can_be_missing_before_its_writer_has_run(train):
    reader = Reader()
    train([Writer(2).when(Every(epochs=2)), reader], epochs=2)
    assert reader.seen == [None, 0.2]


def test_a_value_from_an_earlier_epoch_is_not_missing(train):
    reader = Reader()
    train([Writer(1), reader], epochs=2)
    assert reader.seen == [0.1, 0.1]


def test_a_metric_logged_by_the_loop_body_needs_no_declared_writer(train):
    reader = Reader()
    train([reader], body=lambda run: run.log(acc=0.5))
    assert reader.seen == [0.5]


def test_a_failed_run_raises_its_own_error_not_a_missing_metric(train):
    def body(run):
        raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError, match="boom"):
        train([Reader()], body=body)
