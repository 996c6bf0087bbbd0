from __future__ import annotations

import pytest

from hookpoint.core import errors
from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.lambda_callback import LambdaCallback
from hookpoint.core.callback.on import on
from hookpoint.core.callback.periodic import EnableCallbackIf
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule.when import After, At, Every


class Reader(Callback):
    reads = ("acc",)

    def on_trigger(self): ...


class Validation(Callback):
    reads = ("val_acc",)

    def on_trigger(self): ...


def logs(epoch, name="acc"):
    """Return a user callback that logs a metric from this epoch on."""
    return LambdaCallback(on_trigger=lambda run: run.log({name: 1.0})).when(After(epochs=epoch))


def last_epoch(callbacks, *, epochs=9, each=lambda run: None, batches=2):
    """Run a loop in which each epoch logs a loss; return its last epoch, and whether a metric was missing."""
    with Loop(callbacks) as run:
        try:
            for _ in run.epochs(epochs):
                for _ in run.batches(range(batches)):
                    run.log(loss=1.0)
                each(run)
        except errors.MissingMetric:
            return run.epoch, True
    return run.epoch, False


def test_a_metric_that_the_first_epoch_did_not_log_raises_at_its_end():
    with pytest.raises(errors.MissingMetric) as caught, Loop([Reader()]) as run:
        for _ in run.epochs(50):
            run.log(loss=1, accu=2)
    assert run.epoch == 1
    assert run.epoch_complete
    assert str(caught.value) == (
        "Reader reads 'acc', which nothing has logged by the end of epoch 1.\n"
        "  known     accu, loss\n"
        '  log       run.log({"acc": value}) before it is read\n'
        "  read      'accu'\n"
        "  add       .when(Every(epochs=k)) to it, if the metric is logged only every k epochs"
    )
    assert caught.value.name == "acc"


def test_a_metric_missing_in_the_last_epoch_only_warns(train, caplog):
    assert train([Reader()], body=lambda run: run.log(loss=1)).epoch == 1
    assert [line.partition("\n")[0] for line in caplog.messages] == [
        "Reader reads 'acc', which nothing has logged by the end of epoch 1."
    ]


def test_a_missing_metric_is_detected_in_a_loop_without_epochs(caplog):
    with Loop([Reader()]) as run:
        for _ in run.batches(range(3)):
            run.log(loss=1)
    assert "Reader reads 'acc'" in caplog.text

    def several(run, name):
        for _ in range(3):
            for _ in run.batches(range(3)):
                run.log(loss=1)
            run.log({name: 1})  # after the epoch's end, and before the next one

    with Loop([Reader()]) as run:
        several(run, "acc")
    with pytest.raises(errors.MissingMetric), Loop([Reader()]) as run:
        several(run, "acv")
    assert run.epoch == 1


def test_an_incomplete_epoch_is_not_checked(train, caplog):
    with Loop([Reader()]) as run:
        for epoch in run.epochs(3):
            for _ in run.batches(range(3)):
                break
            else:
                pytest.fail("it breaks")
            if epoch == 3:
                run.log(acc=1)
    assert run.epoch == 3
    assert caplog.messages == []


def test_a_stopped_run_does_not_warn(train, caplog):
    train([Reader()], epochs=9, body=lambda run: run.stop("enough"))
    assert caplog.messages == []


def test_a_run_without_epochs_does_not_warn(caplog):
    with Loop([Reader()]) as run:
        for _ in run.epochs(0):
            pytest.fail("there are none")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("schedule", "ends"),
    [
        (Every(epochs=3), 3),
        (At(epochs=[4]), 4),
        (After(epochs=2), 2),
        (Every(steps=1), 1),
        (Every(steps=5), 3),
        (Every(epochs=2) | Every(steps=100), 2),
        (At(steps=[5]) & After(epochs=1), 3),
    ],
)
def test_a_missing_metric_raises_when_its_reader_is_first_due(schedule, ends):
    assert last_epoch([Reader().when(schedule)]) == (ends, True)
    assert last_epoch([Reader().when(schedule), logs(1)]) == (9, False)


def test_a_missing_metric_of_a_conditional_reader_only_warns(caplog):
    assert last_epoch([EnableCallbackIf(Reader(), lambda run: False)]) == (9, False)
    assert "Reader reads 'acc'" in caplog.text


@pytest.mark.parametrize(("name", "result"), [("acc", (9, False)), ("acv", (3, True))])
def test_a_missing_metric_raises_only_after_every_callback_has_run(name, result):
    assert last_epoch([Reader(), logs(3, name)]) == result
    function = on("on_epoch_end", when=Every(epochs=3))(lambda run: run.log({name: 1}))
    assert last_epoch([Reader(), function]) == result
    assert last_epoch([function, Reader()]) == result


def test_only_declared_writers_of_the_metric_delay_the_error():
    class Writer(Callback):
        writes = ("acc",)

        def on_trigger(self, run): ...

    seldom = LambdaCallback(on_trigger=lambda run: None).when(Every(epochs=7))
    assert last_epoch([Reader(), seldom]) == (7, True)
    assert last_epoch([Reader(), Writer().when(Every(epochs=3)), seldom]) == (3, True)
    assert last_epoch([Reader().when(Every(epochs=2)), Writer(), seldom]) == (2, True)


def test_a_missing_metric_declared_in_may_write_only_warns(caplog):
    class Sometimes(Callback):
        may_write = ("acc",)

        def on_epoch_end(self): ...

    assert last_epoch([Reader(), Sometimes()]) == (9, False)
    assert "Reader reads 'acc'" in caplog.text


# Validation


def test_a_validation_metric_raises_only_after_the_first_validation():
    def validate(name):
        def each(run):
            if run.epoch % 3 == 0:
                for _ in run.batches(range(2), mode="val"):
                    run.log({name: 1.0})

        return each

    assert last_epoch([Validation()], each=validate("acc")) == (9, False)
    assert last_epoch([Validation()], each=validate("acv")) == (3, True)


def test_a_validation_without_a_pass_delays_the_error():
    def measure(name):
        return lambda run: run.log({name: 1.0}) if run.epoch % 3 == 0 else None

    assert last_epoch([Validation()], each=measure("val_acc")) == (9, False)
    assert last_epoch([Validation()], each=measure("val_acv")) == (3, True)


@pytest.mark.parametrize("prefix", ["eval_", "test/", "dev-", "valid_"])
def test_other_evaluations_every_few_epochs_delay_the_error(prefix):
    def measure(name):
        def each(run):
            run.log(val_loss=1.0)
            if run.epoch % 3 == 0:
                run.log({prefix + name: 1.0})

        return each

    reader = type("Evaluation", (Callback,), {"reads": (f"{prefix}acc",), "on_epoch_end": lambda self: None})
    assert last_epoch([reader()], each=measure("acc")) == (9, False)
    assert last_epoch([reader()], each=measure("acv")) == (3, True)


def test_a_loop_that_never_validates_warns_after_its_first_epoch(caplog):
    said = []
    assert last_epoch([Validation()], each=lambda run: said.append(len(caplog.messages))) == (9, False)
    assert said == [0] + [1] * 8
    assert caplog.messages[0] == "Validation reads 'val_acc', but no validation has run yet"
    assert caplog.messages[1].startswith("Validation reads 'val_acc', which nothing has logged by the end of epoch 9.")


def test_a_callback_that_logs_in_validation_delays_the_error():
    class Measures(Callback):
        def on_val_epoch_end(self, run):
            run.put_scalar(self.metric, 1.0)

    def each(run):
        if run.epoch % 3 == 0:
            for _ in run.batches(range(2), mode="val"):
                pass

    Measures.metric = "acc"
    assert last_epoch([Reader(), Measures()], each=each) == (9, False)
    Measures.metric = "acv"
    assert last_epoch([Reader(), Measures()], each=each) == (3, True)


# Misspelled names


@pytest.mark.parametrize(
    ("reads", "writes", "meant"),
    [
        ("los", "loss", "loss"),
        ("val_loss", "val-loss", "val-loss"),
        ("loss_val", "val_loss", "val_loss"),
        ("Acc", "acc", "acc"),
    ],
)
@pytest.mark.parametrize("declared", ["writes", "may_write"])
def test_a_misspelled_metric_warns_when_the_run_begins(reads, writes, meant, declared, caplog):
    one, other = Callback(), Callback()
    one.reads = (reads,)
    setattr(other, declared, (writes,))
    loop = Loop([one, other])
    assert caplog.messages == []
    with loop as run:
        said = list(caplog.messages)
        for _ in run.epochs(2):
            run.log({reads: 1.0})
    assert said == [f"Callback reads '{reads}', which nothing logs; did you mean '{meant}'?"]


@pytest.mark.parametrize(
    ("reads", "writes"), [("top1", "top5"), ("acc", "loss"), ("loss", "val_loss"), ("kl_1_2", "kl_2_1"), ("acc", "acc1")]
)
def test_other_metric_names_are_not_reported_as_misspelled(reads, writes, caplog):
    one, other = Callback(), Callback()
    one.reads, other.writes = (reads,), (writes,)
    with Loop([one, other]):
        assert caplog.messages == []


def test_a_metric_with_a_writer_is_not_reported_as_misspelled(caplog):
    one, other = Callback(), Callback()
    one.reads, other.writes = ("los",), ("loss", "los")
    with Loop([one, other]):
        assert caplog.messages == []
