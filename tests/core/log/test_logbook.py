from __future__ import annotations

import threading

import pytest

from hookpoint import Callback, HookpointWarning, LambdaCallback
from hookpoint.core.loop.loop import Loop


@pytest.mark.parametrize(
    "log",
    [
        lambda run: (run.log("loss", 2.0), run.log("acc", 0.5)),
        lambda run: run.log(loss=2.0, acc=0.5),
        lambda run: run.log({"loss": 2.0, "acc": 0.5}),
    ],
    ids=["name and value", "keywords", "mapping"],
)
def test_values_are_logged_in_any_of_three_forms(log, monitor):
    with Loop([monitor]) as run:
        log(run)
    assert dict(run.metrics) == {"loss": 2.0, "acc": 0.5}
    assert monitor.scalars() == [(0, {"loss": 2.0, "acc": 0.5})]


def test_a_metric_name_can_be_any_string():
    with Loop() as run:
        run.log({"val/top-1 error": 0.25})
        run.log("name", 1)
        run.log(value=2)
    assert dict(run.metrics) == {"val/top-1 error": 0.25, "name": 1.0, "value": 2.0}


# The means of passes


def test_the_value_of_an_epoch_is_the_mean_over_its_samples(monitor):
    with Loop([monitor], log_every=0) as run:
        for epoch in run.epochs(2):
            for batch in run.batches([["a", "b", "c"], ["d"]]):
                run.log(loss=epoch * len(batch))
    assert run.monitors.get_history("loss") == [(2, 2.5), (4, 5.0)]
    assert monitor.scalars() == [(2, {"loss": 2.5}), (4, {"loss": 5.0})]


def test_during_a_pass_a_metric_is_the_value_of_this_iteration():
    seen = []
    with Loop() as run:
        for batch in run.batches([1, 2, 3]):
            run.log(loss=batch)
            seen.append(run.metrics["loss"])
    assert seen == [1.0, 2.0, 3.0]
    assert run.metrics["loss"] == 2.0


def test_training_metrics_are_final_at_the_end_of_the_training_pass():
    seen = []
    with Loop([LambdaCallback(on_train_epoch_end=lambda logs: seen.append(dict(logs)))]) as run:
        for batch in run.batches([1, 2, 6]):
            run.log(loss=batch)
    assert seen == [{"loss": 3.0}]


def test_a_value_is_averaged_only_over_iterations_that_log_it():
    with Loop() as run:
        for batch in run.batches([1, 2, 3, 4]):
            if batch % 2 == 0:
                run.log(even=batch)
    assert run.metrics["even"] == 3.0


def test_the_mean_of_a_long_pass_is_exact():
    numbers = list(range(1000))
    with Loop(log_every=7) as run:
        for _ in run.epochs(1):
            for batch in run.batches(numbers):
                run.log(x=batch)
            for batch in run.batches(numbers, mode="val"):
                run.log(x=batch)
    assert run.metrics["x"] == run.metrics["val_x"] == 499.5


def test_a_value_logged_between_iterations_weighs_as_one_sample():
    with Loop([LambdaCallback(on_train_epoch_begin=lambda run: run.log(x=10))]) as run:
        for _ in run.batches([["a", "b", "c"]]):
            run.log(x=2)
    assert run.metrics["x"] == 4.0


# Names in validation and prediction


@pytest.mark.parametrize(
    ("mode", "name", "kept_as"),
    [
        ("train", "loss", "loss"),
        ("val", "loss", "val_loss"),
        ("val", "val_loss", "val_loss"),
        ("val", "val-error-top1", "val-error-top1"),
        ("val", "val/loss", "val/loss"),
        ("val", "validation_loss", "validation_loss"),
        ("val", "value", "val_value"),
        ("pred", "loss", "pred_loss"),
    ],
)
def test_plain_names_get_the_mode_as_prefix_outside_training(mode, name, kept_as):
    with Loop() as run:
        for _ in run.batches("ab", mode=mode):
            run.log({name: 1})
    assert list(run.metrics) == [kept_as]


@pytest.mark.parametrize("put", [lambda run: run.put_scalar, lambda run: run.monitors.put_scalar])
def test_put_scalar_keeps_the_name_as_given(put):
    with Loop() as run:
        for batch in run.batches([1, 3], mode="val"):
            put(run)("loss", batch)
    assert dict(run.metrics) == {"loss": 3.0}


def test_values_logged_at_on_val_epoch_end_get_the_val_prefix():
    class Score(Callback):
        def on_val_epoch_end(self, run, logs):
            run.log("score", 10 * logs["val_loss"])

    with Loop([Score()]) as run:
        for batch in run.batches([1, 2]):
            run.log(loss=100)
            for value in run.batches([batch, batch], mode="val"):
                run.log(loss=value)
            assert run.metrics["val_score"] == 10 * batch
            assert run.metrics.observations("val_score") == batch
    assert run.monitors.get_history("val_score") == [(0, 10.0), (1, 20.0)]
    assert "score" not in run.metrics


def test_validation_inside_an_iteration_does_not_change_training_means(monitor):
    with Loop([monitor], log_every=0) as run:
        for batch in run.batches([1, 3]):
            run.log(loss=batch)
            for value in run.batches([10, 30], mode="val"):
                run.log(loss=value)
            run.log(after=batch)
    assert monitor.scalars("epoch") == [
        (0, {"val_loss": 20.0}),
        (1, {"val_loss": 20.0}),
        (2, {"loss": 2.0, "after": 2.0}),
    ]


def test_after_validation_plain_names_get_no_prefix():
    with Loop() as run:
        for _ in run.epochs(1):
            for _ in run.batches("x", mode="val"):
                run.log(loss=1)
            run.log(loss=2)
    assert dict(run.metrics) == {"val_loss": 1.0, "loss": 2.0}


# Log steps


def test_a_log_step_sends_the_mean_since_the_previous_log_step(monitor):
    with Loop([monitor], log_every=2) as run:
        for batch in run.batches([1, 3, 5, 7, 9]):
            run.log(loss=batch)
    assert monitor.scalars("step") == [(2, {"loss": 2.0}), (4, {"loss": 6.0})]
    assert monitor.scalars("epoch") == [(5, {"loss": 5.0})]


def test_log_steps_are_multiples_of_log_every_across_epochs(monitor):
    with Loop([monitor], log_every=4) as run:
        for _ in run.epochs(3):
            for batch in run.batches([1, 2, 3]):
                run.log(loss=batch)
    assert [step for step, _ in monitor.scalars("step")] == [4, 8]


def test_a_value_logged_before_a_pass_is_sent_separately(monitor):
    with Loop([monitor], log_every=1) as run:
        for _ in run.batches("a"):
            pass
        run.log(x=1)
        for _ in run.batches("bc"):
            run.log(loss=2)
    assert monitor.scalars("value") == [(1, {"x": 1.0})]
    assert monitor.scalars("step") == [(2, {"loss": 2.0}), (3, {"loss": 2.0})]


def test_records_of_means_have_the_mode_of_their_pass(monitor):
    with Loop([monitor], log_every=1) as run:
        run.log(x=1)
        for mode in ("train", "val", "pred"):
            for _ in run.batches("a", mode=mode):
                run.log(x=1)
    modes = [(record.at, record.mode) for record in monitor.records if record.kind == "scalars"]
    assert modes == [("value", None), ("step", "train"), ("epoch", "train"), ("epoch", "val"), ("epoch", "pred")]


def test_without_log_steps_only_epoch_means_are_sent(monitor):
    with Loop([monitor], log_every=0) as run:
        for batch in run.batches(range(200)):
            run.log(loss=batch)
    assert [(record.at, record.step) for record in monitor.records if record.kind == "scalars"] == [("epoch", 200)]


def test_validation_sends_its_means_once_and_no_log_steps(monitor):
    with Loop([monitor], log_every=1) as run:
        for batch in run.batches([1, 2, 3], mode="val"):
            run.log(loss=batch)
    assert [(record.at, dict(record.scalars())) for record in monitor.records if record.kind == "scalars"] == [
        ("epoch", {"val_loss": 2.0})
    ]


def test_values_logged_at_on_epoch_end_have_the_clocks_of_that_epoch(monitor, train):
    log = LambdaCallback(on_epoch_end=lambda run: run.log(total=run.epoch))
    train([log, monitor], epochs=2, batches="ab")
    assert [(one.epoch, one.step, one.at, one.scalars()) for one in monitor.records if one.kind == "scalars"] == [
        (1, 2, "value", {"total": 1.0}),
        (2, 4, "value", {"total": 2.0}),
    ]


def test_an_interrupted_pass_sends_no_mean(monitor):
    loop = Loop([monitor], log_every=2)
    with pytest.raises(ValueError, match="stop"), loop as run:
        for batch in run.batches([1, 3, 5, 7]):
            run.log(loss=batch)
            if batch == 5:
                raise ValueError("stop")
    assert monitor.scalars() == [(2, {"loss": 2.0})]


# Logs


def test_logs_contain_only_metrics_of_the_current_epoch():
    seen = []
    see = LambdaCallback(on_epoch_end=lambda logs: seen.append(dict(logs)))
    with Loop([see]) as run:
        for epoch in run.epochs(3):
            for _ in run.batches("a"):
                run.log(loss=epoch)
                if epoch == 1:
                    run.log(once=1)
    assert seen == [{"loss": 1.0, "once": 1.0}, {"loss": 2.0}, {"loss": 3.0}]
    assert run.metrics["once"] == 1.0


def test_logs_at_on_train_epoch_end_contain_only_training_metrics():
    """Also after a validation in the middle of the epoch, whose values are older than the weights."""
    seen = []

    class Looks(Callback):
        def on_train_epoch_end(self, logs):
            seen.append(("train", dict(logs)))

        def on_val_epoch_end(self, logs):
            seen.append(("val", dict(logs)))

        def on_epoch_end(self, logs):
            seen.append(("epoch", dict(logs)))

    with Loop([Looks()]) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1.0, 3.0]):
                run.log(loss=batch)
                if batch == 1.0:
                    for _ in run.batches([0], "val"):
                        run.log(loss=9.0)
            for _ in run.batches([0], "val"):
                run.log(loss=7.0)
    assert seen == [
        ("val", {"loss": 1.0, "val_loss": 9.0}),
        ("train", {"loss": 2.0}),
        ("val", {"loss": 2.0, "val_loss": 7.0}),
        ("epoch", {"loss": 2.0, "val_loss": 7.0}),
    ]


def test_a_name_with_the_prefix_of_its_mode_gets_no_second_prefix():
    with Loop() as run:
        for _ in run.batches([0], mode="pred"):
            run.log({"pred_score": 1.0, "other": 2.0})
        for _ in run.batches([0], mode="val"):
            run.log({"val-error": 3.0, "pred_score": 4.0})
    assert dict(run.metrics) == {
        "pred_score": 1.0,
        "pred_other": 2.0,
        "val-error": 3.0,
        "val_pred_score": 4.0,
    }


# put_scalar


def test_a_value_put_in_a_pass_keeps_its_step(monitor):
    with Loop([monitor], log_every=2) as run:
        for batch in run.batches([1, 2, 3, 4, 5]):
            run.log(loss=batch)
            if batch % 2 == 0:
                run.put_scalar("twice", 2 * batch)
                assert run.metrics["twice"] == 2 * batch
                assert run.metrics.observations("twice") == batch / 2
    assert monitor.scalars("value") == [(1, {"twice": 4.0}), (3, {"twice": 8.0})]
    assert monitor.scalars("step") == [(2, {"loss": 1.5}), (4, {"loss": 3.5})]
    assert monitor.scalars("epoch") == [(5, {"loss": 3.0})]
    assert run.monitors.get_history("twice") == [(1, 4.0), (3, 8.0)]


def test_a_value_put_at_on_iter_end_has_the_step_of_that_iteration(monitor):
    class Puts(Callback):
        def on_iter_end(self, run):
            run.monitors.put_scalar("square", run.step**2)

    with Loop([Puts(), monitor], log_every=1) as run:
        for _ in run.batches(range(3)):
            pass
    assert monitor.scalars("value") == [(1, {"square": 1.0}), (2, {"square": 4.0}), (3, {"square": 9.0})]
    assert monitor.scalars("step") == monitor.scalars("epoch") == []


def test_a_value_put_twice_between_passes_is_sent_twice(monitor):
    with Loop([monitor]) as run:
        for _ in run.epochs(1):
            run.put_scalar("x", 1)
            run.put_scalar("y", 1)
            run.put_scalar("x", 2)
    assert monitor.scalars("value") == [(0, {"x": 1.0, "y": 1.0}), (0, {"x": 2.0})]


def test_values_put_in_a_validation_pass_are_not_averaged(monitor):
    with Loop([monitor]) as run:
        passed = run.batches([1, 3], mode="val")
        for batch in passed:
            run.put_scalar("error", batch)
            run.log(loss=batch)
    assert monitor.scalars("value") == [(0, {"error": 1.0}), (0, {"error": 3.0})]
    assert {name: float(value) for name, value in passed.results.items()} == {"val_loss": 2.0, "error": 3.0}


def test_a_name_can_be_both_logged_and_put(monitor):
    with Loop([monitor]) as run:
        passed = run.batches([1, 3])
        for batch in passed:
            run.log(x=batch)
            run.put_scalar("x", 10 * batch)
    assert monitor.scalars("value") == [(0, {"x": 10.0}), (1, {"x": 30.0})]
    assert monitor.scalars("epoch") == [(2, {"x": 2.0})]
    assert run.metrics["x"] == float(passed.results["x"]) == 2.0


def test_putting_a_device_tensor_does_not_wait_for_the_device(monitor):
    waited = []

    class OnDevice:
        is_cpu = False

        def detach(self):
            return self

        def __float__(self):
            waited.append(threading.current_thread() is threading.main_thread())
            return 7.0

    with Loop([monitor], log_every=1) as run:
        for _ in run.batches(range(2)):
            run.put_scalar("norm", OnDevice())
        run.monitors.drain()
        assert waited == [False, False]
        assert run.monitors.get_history("norm") == [(0, 7.0), (1, 7.0)]
    assert monitor.scalars() == monitor.scalars("value") == [(0, {"norm": 7.0}), (1, {"norm": 7.0})]


@pytest.mark.parametrize("log", ["log", "put_scalar"])
def test_logging_after_the_run_warns(monitor, log):
    with Loop([monitor]) as run:
        run.log(loss=1)
    expected = rf"^run.{log}: the run has ended, so no monitor receives 'test_accuracy'\. Call run.{log} before the run ends\.$"
    with pytest.warns(HookpointWarning, match=expected) as caught:
        getattr(run, log)("test_accuracy", 0.5)
    assert [warning.filename for warning in caught] == [__file__]
    assert run.metrics["test_accuracy"] == 0.5
    assert monitor.scalars() == [(0, {"loss": 1.0})]
