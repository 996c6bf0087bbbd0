"""ignite as a host: tests beyond the conformance suite."""

from __future__ import annotations

import inspect
import signal

import pytest

pytest.importorskip("ignite", reason="ignite is not installed: make test-adapters")

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import RunningAverage
from tests.adapters.hosts.ignite import UNAVAILABLE, engines
from tests.adapters.record import TRAIN, VAL, Net, Record

from hookpoint import Callback, LambdaCallback, adapters, on
from hookpoint import callbacks as cb
from hookpoint.core.errors import BadArgument
from hookpoint.core.loop.host import NotUnderHost
from hookpoint.storage.checkpoint.state_bytes import MAGIC


class Training:
    """A trainer that validates after each epoch, with callbacks attached."""

    def __init__(self, *callbacks, fail_at=None, validate=True, **options):
        self.model = Net(fail_at)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.trainer, self.evaluator = engines(self.model, self.optimizer)
        objects = {"model": self.model, "optimizer": self.optimizer, "evaluators": {"val": self.evaluator}}
        self.adapter = adapters.ignite(self.trainer, list(callbacks), **objects, **options)
        if validate:
            self.trainer.add_event_handler(Events.EPOCH_COMPLETED, self.validate)

    def validate(self, engine=None):
        self.evaluator.run(VAL)

    def run(self, epochs=2):
        self.trainer.run(TRAIN, max_epochs=epochs)
        return self


def points(record):
    return [row[0] for row in record.rows]


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_exception_handlers_are_called_as_often_as_without_callbacks(is_swallowed):
    def calls(attach):
        training, seen = Training(fail_at=1), []
        if not attach:
            training.adapter.detach()

        def handle(engine, error):
            seen.append(error)
            if not is_swallowed:
                raise error

        training.trainer.add_event_handler(Events.EXCEPTION_RAISED, handle)
        try:
            training.run(1)
        except ValueError as error:
            seen.append(error)
        return list(map(str, seen))

    assert calls(attach=True) == calls(attach=False)


def test_an_error_swallowed_by_a_handler_does_not_fail_the_run():
    record = Record(UNAVAILABLE)
    training = Training(record, fail_at=1)
    training.trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: None)
    training.run(2)
    assert "on_exception" not in points(record)
    assert points(record)[-1] == "on_run_end"


def test_a_callback_error_ends_the_run_even_if_a_handler_swallows_it():
    def fail(run):
        if run.iteration == 2:
            raise KeyError("mine")

    record = Record(UNAVAILABLE)
    training = Training(record, on("on_train_iter_end")(fail))
    training.trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: None)
    training.run(2)
    assert points(record)[-2:] == ["on_exception", "on_run_end"]
    assert points(record).count("on_run_end") == 1


def test_an_interrupted_engine_continues_the_same_run():
    whole, record = Record(UNAVAILABLE), Record(UNAVAILABLE)
    Training(whole).run()
    training = Training(record)
    training.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), lambda engine: engine.interrupt())
    training.run()
    assert points(record)[-1] == "on_iter_end"
    training.run()
    assert record.rows == whole.rows


def needs(method, argument):
    """Skip a test if this version of ignite has no such argument."""
    if argument not in inspect.signature(method).parameters:
        pytest.skip(f"this version of ignite has no {argument}")


def test_a_run_ends_even_if_the_engine_skips_completed():
    needs(Engine.terminate, "skip_completed")
    record = Record(UNAVAILABLE)
    training = Training(record)
    training.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=4), lambda engine: engine.terminate(skip_completed=True))
    training.run()
    assert record.rows[-1][:4] == ("on_run_end", 2, 4, 4)


def test_an_epoch_that_skips_epoch_completed_ends_before_the_next():
    needs(Engine.terminate_epoch, "skip_epoch_completed")
    record = Record(UNAVAILABLE)
    training = Training(record)
    training.trainer.add_event_handler(
        Events.ITERATION_COMPLETED(once=1), lambda engine: engine.terminate_epoch(skip_epoch_completed=True)
    )
    training.run()
    assert points(record).count("on_epoch_end") == 2
    assert record.rows[-1][:4] == ("on_run_end", 2, 4, 4)


@pytest.mark.parametrize("point", ["on_epoch_begin", "on_train_epoch_begin", "on_train_iter_begin", "on_train_iter_end"])
def test_stop_epoch_ends_the_training_of_the_epoch(point):
    def leave(run):
        if run.epoch == 1 and run.iteration == (point == "on_train_iter_end"):
            run.stop_epoch()

    record = Record(UNAVAILABLE)
    Training(record, on(point)(leave)).run()
    assert points(record).count("on_val_epoch_end") == 2
    done = 3 + ("iter" in point)
    assert record.rows[-1][:4] == ("on_run_end", 2, done, done)


@pytest.mark.parametrize("point", ["on_run_begin", "on_epoch_begin", "on_train_epoch_begin"])
def test_a_stop_before_the_first_batch_runs_no_iteration(point):
    record = Record(UNAVAILABLE)
    Training(record, on(point)(lambda run: run.stop("enough"))).run()
    assert "on_iter_begin" not in points(record)
    assert points(record)[-1] == "on_run_end"


def test_stop_epoch_during_a_validation_ends_the_validation():
    record = Record(UNAVAILABLE)
    training = Training(record, on("on_val_iter_end")(lambda run: run.stop_epoch()), validate=False)
    training.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: training.evaluator.run(VAL * 3))
    training.run(2)
    assert points(record).count("on_val_iter_end") == 2
    assert [len(row) for row in record.rows if row[0] == "on_epoch_end"] == [8, 8]  # with val_loss


@pytest.mark.parametrize(
    ("change", "transform", "known"),
    [
        (lambda loss: loss, None, True),
        (torch.tensor, None, True),
        (lambda loss: {"loss": loss, "more": "text"}, None, True),
        (lambda loss: ("prediction", loss), None, False),
        (lambda loss: ("prediction", loss), lambda output: output[1], True),
    ],
)
def test_the_loss_is_read_from_the_output_of_the_engine(change, transform, known):
    seen, values = [], iter([0.5, 0.25, 0.125])
    trainer = Engine(lambda engine, batch: change(next(values)))
    note = on("on_train_iter_end")(lambda run: seen.append((run.loss, run.step)))
    adapters.ignite(trainer, [note], output_transform=transform)
    trainer.run(TRAIN, max_epochs=1)
    assert seen == list(zip([0.5, 0.25, 0.125] if known else [None] * 3, [1, 2, 3], strict=True))  # without an optimizer


def test_metrics_of_the_trainer_are_metrics_of_the_run():
    values = []
    training = Training(on("on_train_epoch_end")(lambda run: values.append(run.metrics["smoothed"])))
    RunningAverage(output_transform=lambda loss: loss).attach(training.trainer, "smoothed")
    training.run()
    assert values[-1] == training.trainer.state.metrics["smoothed"]


def test_the_name_of_an_evaluator_is_part_of_its_metrics_names():
    values = {}
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer, clean = engines(model, optimizer)
    _, noisy = engines(model, optimizer)
    adapters.ignite(
        trainer,
        [LambdaCallback(on_epoch_end=lambda run: values.update(run.logs))],
        optimizer=optimizer,
        evaluators={"val": clean, "noisy": noisy},
    )
    for evaluator in (clean, noisy):
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine, evaluator: evaluator.run(VAL), evaluator)
    trainer.run(TRAIN, max_epochs=1)
    assert values["val_loss"] == values["val_noisy_loss"] > 0


def test_an_evaluation_after_the_training_does_not_belong_to_the_run():
    record = Record(UNAVAILABLE)
    training = Training(record)
    training.trainer.add_event_handler(Events.COMPLETED, training.validate)
    training.run(1)
    assert points(record).count("on_val_epoch_end") == 1
    assert points(record)[-1] == "on_run_end"


def test_a_failed_validation_whose_error_is_caught_does_not_disturb_the_run():
    record, training = Record(UNAVAILABLE), None

    def validate(engine):
        with pytest.raises(TypeError):
            training.evaluator.run([None])

    training = Training(record, validate=False)
    training.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=1), validate)
    training.run(1)
    assert record.rows[-1][:4] == ("on_run_end", 1, 3, 3)
    assert points(record).count("on_train_iter_end") == 3


def test_a_stopped_engine_that_runs_again_continues_the_clocks():
    record = Record(UNAVAILABLE)
    training = Training(record, on("on_epoch_end")(lambda run: run.stop("enough") if run.epoch == 2 else None)).run(4)
    assert record.rows[-1][:4] == ("on_run_end", 2, 6, 6)
    training.run(4)
    assert record.rows[-1][:4] == ("on_run_end", 4, 12, 12)


def test_state_in_a_checkpoint_has_hookpoints_encoding(tmp_path):
    training = Training(cb.EarlyStopping("val_loss"))
    saver = Checkpoint({"hookpoint": training.adapter}, DiskSaver(str(tmp_path)), filename_pattern="{name}.pt")
    training.trainer.add_event_handler(Events.COMPLETED, saver)
    assert training.adapter.state_dict() == {}
    training.run(1)
    (path,) = tmp_path.iterdir()
    found = torch.load(path, weights_only=True)
    assert found["state"].startswith(MAGIC)
    assert training.adapter.state_dict()["state"].startswith(MAGIC)  # also after the run


@pytest.mark.parametrize("is_loaded", [True, False])
def test_an_engine_that_resumes_without_the_state_of_the_adapter_warns(tmp_path, is_loaded, caplog):
    def made():
        record = Record(UNAVAILABLE)
        training = Training(record)
        return training, record, {"trainer": training.trainer, "hookpoint": training.adapter}

    first, _, objects = made()
    first.trainer.add_event_handler(Events.EPOCH_COMPLETED(once=1), Checkpoint(objects, DiskSaver(str(tmp_path))))
    first.run(2)
    (path,) = tmp_path.iterdir()
    saved = torch.load(path, weights_only=True)
    second, record, objects = made()
    for name in objects if is_loaded else ["trainer"]:
        objects[name].load_state_dict(saved[name])
    second.run(2)
    assert record.rows[-1][:4] == ("on_run_end", 2, 6, 6)
    warned = [one.message for one in caplog.records if one.name == "hookpoint"]
    assert ["ignite starts at iteration 3 without the state" in text for text in warned] == ([] if is_loaded else [True])


def test_an_empty_state_starts_a_run_from_the_beginning():
    record = Record(UNAVAILABLE)
    training = Training(record)
    training.adapter.load_state_dict({})
    training.run(1)
    assert record.rows[0][:4] == ("on_run_begin", 0, 0, 0)


def test_unsupported_features_of_ignite_raise():
    def refused(**methods):
        return type("Refused", (Callback,), methods)()

    for callback, text in [
        (cb.ModelSaver(), r"ModelSaver saves checkpoints, which ignite does not support: .*ignite\.handlers\.Checkpoint"),
        (
            refused(on_backward_end=lambda self, run: None),
            "Refused: ignite has no on_backward_end: the backward pass is inside",
        ),
        (refused(on_iter_begin=lambda self, run: None, may_skip=True), "Refused skips batches, which ignite does not support"),
    ]:
        with pytest.raises(NotUnderHost, match=text):
            Training(callback)
    with pytest.raises(NotUnderHost, match=r"run\.skip_step\(\) does not work under ignite: it performs every step"):
        Training(on("on_train_iter_begin")(lambda run: run.skip_step())).run()
    with pytest.raises(BadArgument, match="Linear is not an ignite Engine: it has no add_event_handler"):
        adapters.ignite(torch.nn.Linear(1, 1), [])


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_and_signal_handlers_are_removed_after_training(fails):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    training = Training(cb.GradientStats(every=1), cb.SwapEMAWeights(0.9), fail_at=1 if fails else None)

    def handlers():
        engines = (training.trainer, training.evaluator)
        return [len(listed) for engine in engines for listed in engine._event_handlers.values() if listed]

    added = handlers()
    with training.adapter:
        try:
            training.run()
        except ValueError:
            assert fails
        assert handlers() == added
    for engine in (training.trainer, training.evaluator):
        assert "run" not in vars(engine)
    assert not training.optimizer._optimizer_step_pre_hooks
    assert not training.optimizer._optimizer_step_post_hooks
    assert not training.model._forward_hooks
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
