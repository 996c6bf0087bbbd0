"""fastai as a host: tests beyond the conformance suite."""

from __future__ import annotations

import pickle
import signal

import pytest

pytest.importorskip("fastai.callback.training", reason="fastai is not installed: make test-adapters")

from fastai.callback.core import Callback as TheirCallback
from fastai.callback.core import CancelFitException
from fastai.callback.training import ShortEpochCallback
from fastai.optimizer import SGD
from tests.adapters.hosts.fastai import UNAVAILABLE, learner_of
from tests.adapters.record import LEARNING_RATE, Net, Record
from tests.adapters.scripts import Fit, OurRunner

from hookpoint import Callback, LambdaCallback, adapters, on
from hookpoint import callbacks as cb
from hookpoint.core.loop.host import NotUnderHost


def fitted(*callbacks, epochs=2, more=(), options=None, **learner):
    learner = learner_of(adapters.fastai(list(callbacks), **(options or {})), *more, **learner)
    learner.fit(epochs)
    return learner


def points(record):
    return [row[0] for row in record.rows]


@pytest.mark.filterwarnings("ignore:skip_backward had no effect")  # too late at the last two points
@pytest.mark.parametrize("skip", ["skip_batch", "skip_backward", "skip_step"])
@pytest.mark.parametrize("point", ["on_train_iter_begin", "on_backward_begin", "on_backward_end", "on_step_begin"])
def test_skips_have_the_same_effect_as_in_a_runner(skip, point):
    def act(reached, run):
        if reached == point and run.epoch == 1 and run.batch_idx == 1:
            getattr(run, skip)()

    theirs, ours = Record(UNAVAILABLE, act), Record(UNAVAILABLE, act)
    learner = fitted(theirs)
    model = OurRunner().fit([ours], Fit())
    assert theirs.rows == ours.rows
    assert [weight.tolist() for weight in learner.model.parameters()] == [weight.tolist() for weight in model.parameters()]
    assert ("on_iter_skip" in points(ours)) == (skip == "skip_batch")
    is_computed = skip != "skip_batch" or point != "on_train_iter_begin"
    assert len(learner.recorder.losses) == 5 + is_computed  # fastai does not count the batch either


@pytest.mark.parametrize("error", [KeyError("mine"), ValueError(), CancelFitException("not ours")])
def test_the_error_of_a_callback_propagates_unchanged(error):
    def fail(run):
        raise error

    args, record = error.args, Record(UNAVAILABLE)
    if isinstance(error, CancelFitException):
        fitted(record, on("on_train_iter_end")(fail))  # fastai treats it as a request to end the fit
    else:
        with pytest.raises(type(error)) as caught:
            fitted(record, on("on_train_iter_end")(fail))
        assert caught.value is error
    assert error.args == args
    assert points(record)[-2:] == ["on_exception", "on_run_end"]


def test_errors_of_the_learner_reach_callbacks_only_in_a_with_statement():
    record = Record(UNAVAILABLE)
    adapter = adapters.fastai([record])
    learner = learner_of(adapter, model=Net(1))
    with pytest.raises(ValueError, match="the host fails"):
        learner.fit(1)
    assert "on_exception" not in points(record)
    learner.model.fail_at = None
    learner.fit(1)  # the run that fastai abandoned ends now
    assert [point for point in points(record) if point in ("on_run_begin", "on_exception", "on_run_end")] == [
        "on_run_begin",
        "on_exception",
        "on_run_end",
        "on_run_begin",
        "on_run_end",
    ]
    learner.model.fail_at, learner.model.batches = 1, 0
    with pytest.raises(ValueError, match="the host fails"), adapter:
        learner.fit(1)
    assert points(record)[-2:] == ["on_exception", "on_run_end"]


def test_the_learning_rate_finder_does_not_start_a_run():
    schedule = pytest.importorskip("fastai.callback.schedule")
    record = Record(UNAVAILABLE)
    learner = learner_of(adapters.fastai([record]))
    learner.fit(1, cbs=[schedule.LRFinder(num_it=3)])
    assert record.rows == []


class Validating(TheirCallback):
    """A fastai callback that validates and predicts during a fit."""

    def after_train(self):
        self.learn.validate()
        self.learn.get_preds()


def test_a_validation_by_a_fastai_callback_does_not_disturb_the_run():
    plain, record = Record(UNAVAILABLE), Record(UNAVAILABLE)
    fitted(plain)
    fitted(record, more=[Validating()])
    assert record.rows == plain.rows


def test_validate_and_get_preds_fire_the_points_of_their_pass():
    record = Record(UNAVAILABLE)
    learner = learner_of(adapters.fastai([record]))
    learner.validate()
    assert points(record)[0] == "on_val_epoch_begin"
    assert points(record)[-1] == "on_val_epoch_end"
    learner.get_preds()
    assert points(record)[-1] == "on_pred_epoch_end"
    assert not {"on_run_begin", "on_epoch_begin"} & set(points(record))


class Stopping(TheirCallback):
    order = 63  # the order of fastai's EarlyStoppingCallback

    def after_epoch(self):
        raise CancelFitException


def test_a_fastai_callback_that_ends_the_fit_leaves_a_complete_epoch():
    seen = []
    fitted(LambdaCallback(on_epoch_end=lambda run: seen.append((run.epoch, run.epoch_complete))), more=[Stopping()])
    assert seen == [(1, True)]


def test_a_fastai_callback_can_end_the_training_of_an_epoch():
    record = Record(UNAVAILABLE)
    fitted(record, more=[ShortEpochCallback(0.3, short_valid=False)])
    assert points(record).count("on_train_iter_end") == points(record).count("on_train_iter_begin") == 4
    assert points(record).count("on_val_epoch_end") == 2


def mean_error(predicted, target):
    return (predicted - target).abs().mean()


def test_metrics_of_the_learner_have_hookpoint_names():
    values = {}
    learner = fitted(LambdaCallback(on_epoch_end=lambda run: values.update(run.metrics)), metrics=[mean_error])
    assert values["val_mean_error"] == learner.final_record[2]
    assert values["val_loss"] == pytest.approx(learner.final_record[1])
    assert not [name for name in values if name.startswith(("valid", "train"))]


@pytest.mark.parametrize("options", [{}, {"opt_func": SGD}], ids=["torch", "fastai"])
def test_the_learning_rate_can_be_set_for_torch_and_fastai_optimizers(options):
    rates = []

    def lower(run):
        if run.iteration == 2:
            run.hyper["learning_rate"] = 0.01

    learner = fitted(
        on("on_train_iter_begin")(lower), on("on_step_end")(lambda run: rates.append(run.hyper["lr"])), epochs=1, **options
    )
    assert rates == [LEARNING_RATE, LEARNING_RATE, 0.01]
    assert learner.opt.hypers[-1]["lr"] == 0.01


def test_parameter_groups_keep_the_ratio_of_their_learning_rates():
    learner = fitted(
        on("on_run_begin")(lambda run: run.hyper.set("learning_rate", 0.01)),
        epochs=1,
        opt_func=SGD,
        splitter=lambda model: [[model.weight], [model.bias]],
        lr=slice(0.02, 0.04),
    )
    assert [group["lr"] for group in learner.opt.hypers] == pytest.approx([0.005, 0.01])


def test_a_learner_with_callbacks_can_be_pickled():
    learner = fitted(cb.EarlyStopping("val_loss"))
    again = pickle.loads(pickle.dumps(learner.cbs[-1]))
    assert type(again) is TheirCallback


def test_a_later_start_without_state_sets_the_clocks_and_warns(tmp_path, caplog):
    record = Record(UNAVAILABLE)
    learner = learner_of(adapters.fastai([record], workdir=tmp_path))
    learner.fit(3, start_epoch=2)
    assert record.rows[0][:4] == ("on_run_begin", 2, 6, 6)
    assert record.rows[-1][:4] == ("on_run_end", 3, 9, 9)
    assert "does not exist, but fastai starts epoch 3: callbacks start from scratch" in caplog.text


def test_a_later_start_without_a_workdir_warns(caplog):
    learner_of(adapters.fastai([Record(UNAVAILABLE)])).fit(3, start_epoch=2)
    assert "fastai starts epoch 3, but without workdir=, the state of hookpoint's callbacks was not saved" in caplog.text


def test_unsupported_features_of_fastai_raise():
    for callback, text in [
        (cb.ModelSaver(), "ModelSaver saves checkpoints, which fastai does not support: .*SaveModelCallback"),
        (type("Fetching", (Callback,), {"on_batch_fetch_end": lambda self, run: None})(), "fastai has no on_batch_fetch_end"),
    ]:
        with pytest.raises(NotUnderHost, match=text):
            adapters.fastai([callback])
    with pytest.raises(NotUnderHost, match=r"run\.retry\(\) does not work under fastai: it proceeds to the next batch"):
        fitted(on("on_train_iter_begin")(lambda run: run.retry()))


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_and_signal_handlers_are_removed_after_training(fails):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with_all = [cb.GradientStats(every=1), cb.SwapEMAWeights(0.9)]
    adapter = adapters.fastai(with_all)
    learner = learner_of(adapter, model=Net(1 if fails else None))
    try:
        with adapter:
            learner.fit(2)
    except ValueError:
        assert fails
    assert not learner.opt.opt._optimizer_step_pre_hooks
    assert not learner.opt.opt._optimizer_step_post_hooks
    assert not learner.model._forward_hooks
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
