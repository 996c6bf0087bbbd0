from __future__ import annotations

import json
import math
import threading
from functools import partial

import pytest
import torch

import hookpoint
from hookpoint import Callback, EnableCallbackIf, Every
from hookpoint.callbacks import InferenceRunner, MaxSaver, MinSaver, ModelCheckpoint, ModelSaver, TopKSaver
from hookpoint.core.errors import BadArgument, MissingMetric
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule.moment import Moment
from hookpoint.storage.disk._fs_calls import intercepted


class Events(Callback):
    def __init__(self):
        self.best = []

    def on_records(self, records):
        self.best += [record.values["best"] for record in records if "best" in record.values]


def bests(disk):
    return [step for step, tags in disk.saved if "best-score" in tags]


@pytest.mark.parametrize(
    ("saver", "values", "saved"),
    [
        (MinSaver("score"), [3.0, 2.0, 2.0, 2.5, 0.0], [3, 6, 15]),
        (MaxSaver("score"), [1.0, 2.0, 2.0, 1.5, 3.0], [3, 6, 15]),
        (MinSaver("score", reverse=True), [1.0, 2.0, 2.0, 1.5, 3.0], [3, 6, 15]),
        (MinSaver("score"), [math.nan, 1.0, math.nan, 0.5], [6, 12]),
        (MaxSaver("score"), [math.nan, 0.0, math.nan, -1.0], [6]),
        (MinSaver("score"), [math.inf, math.inf, 1.0], [3, 9]),
        (MaxSaver("score"), [math.nan, -math.inf, -math.inf, 1.0], [6, 12]),
    ],
)
def test_a_checkpoint_is_requested_when_the_value_improves(train_on_disk, disk, saver, values, saved, scores):
    train_on_disk([saver], scores(*values))
    assert bests(disk) == saved
    assert disk.kept("best-score") == saved[-1:]


def test_a_new_best_value_is_recorded_as_an_event_and_logged(train_on_disk, caplog, scores):
    events = Events()
    caplog.set_level("INFO")
    train_on_disk([MinSaver("score"), events], scores(0.5, 0.75, 0.25))
    assert events.best == [
        {"metric": "score", "value": 0.5, "previous": None},
        {"metric": "score", "value": 0.25, "previous": 0.5},
    ]
    assert [line for line in caplog.messages if "best" in line] == [
        "score is 0.5 at step 3, the best so far",
        "score is 0.25 at step 9, the best so far (previously 0.5)",
    ]


def test_best_contains_the_value_and_the_step(train_on_disk, scores):
    saver = MaxSaver("score")
    train_on_disk([saver], scores(1.0, 3.0, 2.0))
    assert (saver.best.value, saver.best.step) == (3.0, 6)


def test_the_tag_can_be_named_by_filename(train_on_disk, disk, scores):
    train_on_disk([MinSaver("score", filename="model")], scores(1.0))
    assert disk.saved[0] == (3, ["best-model"])


@pytest.mark.parametrize("saver", [MinSaver, MaxSaver, partial(TopKSaver, mode="max")])
def test_a_template_as_filename_raises(saver):
    with pytest.raises(BadArgument) as caught:
        saver("loss", filename="{epoch:02d}")
    assert str(caught.value).endswith(
        "filename must be a name without braces, got '{epoch:02d}': it is not a template.\n"
        "  write     ModelCheckpoint(monitor='loss', save_best_only=True, filename='{epoch:02d}')"
    )


def test_the_default_name_contains_the_metric():
    assert MinSaver("val-error-top1").name == "MinSaver(val-error-top1)"
    assert MaxSaver("acc", filename="x").name == "MaxSaver(acc)"
    assert MinSaver("acc", name="mine").name == "mine"


def test_an_epoch_without_a_new_value_saves_nothing(train_on_disk, disk):
    train_on_disk([MinSaver("score")], [{"score": 2.0}, {}, {"score": 1.0}, {}])
    assert bests(disk) == [3, 9]


def test_a_metric_that_is_never_logged_raises(train_on_disk, disk):
    with pytest.raises(
        MissingMetric, match=r"^MinSaver\(score\) reads 'score', which nothing has logged by the end of epoch 1"
    ):
        train_on_disk([MinSaver("score")], [{"other": 1.0}, {"other": 2.0}])
    assert bests(disk) == []


def test_a_metric_that_its_writer_never_logs_raises(train_on_disk):
    class Writes(Callback):
        writes = ("score",)

        def on_epoch_end(self, run):
            pass

    with pytest.raises(MissingMetric, match="which Writes declares but did not log"):
        train_on_disk([MinSaver("score"), Writes()], [{}, {}])


def test_a_misspelled_metric_warns_before_training(disk, caplog):
    class Writes(Callback):
        writes = ("val-error-top1",)

        def on_epoch_end(self): ...

    with Loop([MinSaver("val-error-topl"), Writes()], store=disk):
        assert "did you mean 'val-error-top1'?" in caplog.text


def test_a_saver_runs_after_the_writer_of_its_metric(train_on_disk, disk):
    class Measures(Callback):
        writes = ("score",)

        def on_epoch_end(self, run):
            run.log(score=-run.epoch)

    train_on_disk([MinSaver("score"), Measures()], [{}, {}])
    assert bests(disk) == [3, 6]


def test_a_value_measured_at_an_earlier_step_is_not_saved(disk, caplog):
    saver = MinSaver("score").when(Every(epochs=1))
    with Loop([saver], store=disk) as run:
        for _ in run.epochs(1):
            run.log(score=0.5)
            for _ in run.batches(range(4)):
                pass
    assert saver.best.value is None
    assert [tags for _, tags in disk.saved] == [["end"]]
    assert caplog.messages[-1].startswith("'score' was measured at step 0, but the run is at step 4")


@pytest.mark.parametrize("schedule", [None, Every(steps=1), Every(steps=2), Every(epochs=1)])
@pytest.mark.parametrize("make", [MinSaver, lambda metric: ModelCheckpoint(monitor=metric, save_best_only=True), TopKSaver])
def test_a_value_measured_before_a_step_is_saved_at_the_end_of_the_iteration(disk, caplog, make, schedule):
    saver, scores = make("val_score"), iter([3.0, 1.0, 2.0])
    if schedule is not None:
        saver.when(schedule)
    with Loop([saver], store=disk) as run:
        for _ in run.batches(range(9)):
            if run.batch_idx % 3 == 0:  # before the step of this iteration
                score = next(scores)
                for _ in run.batches(range(2), mode="val"):
                    run.log(score=score)
    assert (saver.best.value, saver.best.step, saver.best.moment) == (1.0, 3, Moment(1, 3, 3))
    assert [step for step, tags in disk.saved if "best-val_score" in tags] == [1, 4]
    assert not [line for line in caplog.messages if "measured" in line]


def test_a_saver_can_be_triggered_together_with_validation(disk):
    class Validates(Callback):
        writes = ("val_score",)

        def on_trigger(self, run):
            for _ in run.batches(range(2), mode="val"):
                run.log(score=10 - run.step)

    with Loop([MinSaver("val_score").when(Every(steps=2)), Validates().when(Every(steps=2))], store=disk) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(5)):
                pass
    assert [step for step, tags in disk.saved if "best-val_score" in tags] == [2, 4]


@pytest.mark.parametrize(("make", "bests"), [(MinSaver, [1, 2, 4]), (partial(TopKSaver, k=9, filename="x"), [1, 2, 3, 4])])
def test_values_of_an_inference_runner_within_an_epoch_are_saved_at_once(disk, caplog, make, bests):
    values = iter([3.0, 2.0, 2.5, 1.0, 4.0])
    inference = InferenceRunner([0], metrics={"error": lambda outputs, targets: next(values)}, forward=lambda batch: batch)
    with Loop([saver := make("error"), inference.when(Every(iterations=1))], store=disk) as run:
        for _ in run.batches(range(4)):
            pass
    assert [step for step, tags in disk.saved if saver.tag in tags] == bests
    assert (saver.best.value, saver.best.step) == (1.0, 4)
    assert "no longer exist" not in caplog.text


def test_disabled_and_failing_savers_ignore_values_of_an_inference_runner(disk, caplog):
    class Failing(MinSaver):
        def save_best(self, run, *, final_only=False):
            raise OSError("a full disk")

    inference = InferenceRunner([0], metrics={"error": lambda outputs, targets: 1.0}, forward=lambda batch: batch)
    disabled, failing = MinSaver("error"), Failing("error", filename="x", on_error="warn")
    callbacks = [inference.when(Every(iterations=1)), EnableCallbackIf(disabled, lambda run: False), failing]
    with Loop(callbacks, store=disk) as run:
        for _ in run.batches(range(2)):
            pass
    assert disabled.best.value is None
    assert [tags for _, tags in disk.saved] == [["end"]]
    assert "failed at on_val_epoch_end: OSError: a full disk" in caplog.text


def test_the_best_value_is_restored_by_a_resume(train_on_disk, disk, scores):
    train_on_disk([MinSaver("score")], scores(2.0, 1.0))
    again = MinSaver("score")
    train_on_disk([again], scores(2.0, 1.0, 1.5, 0.5))
    assert bests(disk) == [3, 6, 12]
    assert (again.best.value, again.best.step) == (0.5, 12)


def test_an_epoch_cut_short_does_not_count(disk):
    saver = MinSaver("score")
    with Loop([saver], store=disk) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(3)):
                run.log(score=1.0)
                run.stop("enough")
    assert saver.best.value is None


def test_a_value_whose_save_failed_is_not_the_best(train_on_disk, disk, scores):
    disk.fails = [False, True]
    saver = MinSaver("score")
    train_on_disk([saver], scores(3.0, 1.0, 2.0, 2.5))
    assert bests(disk) == [3, 9]
    assert (saver.best.value, saver.best.step) == (2.0, 9)


def test_a_value_whose_background_save_failed_is_not_the_best(tmp_path):
    def fails(operation, proceed):
        if operation.name == "create" and "step-00000006" in operation.path:
            raise OSError(28, "No space left on device")
        return proceed()

    saver = MinSaver("score")
    with intercepted(fails), hookpoint.Loop([saver], workdir=tmp_path / "run", extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(4):
            for thread in threading.enumerate():
                if thread.name == "hookpoint-save":
                    thread.join()
            for _ in run.batches(range(3)):
                pass
            run.log(score=(3.0, 1.0, 2.0, 2.5)[epoch - 1])
    assert (saver.best.value, saver.best.step) == (2.0, 9)
    assert json.loads((tmp_path / "run/checkpoints/best-score/manifest.json").read_text())["step"] == 9


def test_a_checkpoint_of_another_saver_does_not_replace_a_failed_save(train_on_disk, disk, scores):
    disk.fails = [True]
    train_on_disk([MinSaver("score"), ModelSaver().when(Every(steps=5))], scores(1.0, 2.0))
    assert bests(disk) == [6]


def test_a_checkpoint_that_waits_for_a_step_is_not_lost(disk):
    class Stepping:
        def register_step_post_hook(self, hook):
            self.hook = hook
            return self

        def remove(self): ...

    optimizer, saver = Stepping(), MinSaver("val_score").when(Every(iterations=1))
    with Loop([saver], store=disk, optimizer=optimizer) as run:
        for _ in run.batches(range(8)):
            if run.batch_idx == 5:
                for _ in run.batches(range(1), mode="val"):
                    run.log(score=1.0)
            if run.batch_idx % 4 == 3:
                optimizer.hook(optimizer, (), {})
    assert (saver.best.value, saver.best.step) == (1.0, 1)
    assert [step for step, tags in disk.saved if "best-val_score" in tags] == [2]


def warnings_of(saver, metric, caplog, store):
    with Loop([saver], store=store, model=torch.nn.Linear(1, 1)) as run:
        for _ in run.batches([1]):
            run.log(metric, 1.0)
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("saver", "warning"),
    [
        (
            MinSaver("val_acc"),
            'MinSaver(val_acc) keeps the lowest val_acc. To keep the highest, use MaxSaver("val_acc")',
        ),
        (
            MinSaver("val_loss", reverse=True),
            'MinSaver(val_loss) keeps the highest val_loss. To keep the lowest, use MinSaver("val_loss")',
        ),
        (
            MaxSaver("val_loss"),
            'MaxSaver(val_loss) keeps the highest val_loss. To keep the lowest, use MinSaver("val_loss")',
        ),
        (
            TopKSaver("val_acc"),
            'TopKSaver(val_acc) keeps the lowest val_acc. To keep the highest, use TopKSaver("val_acc", mode="max")',
        ),
    ],
)
def test_a_saver_that_keeps_the_worst_values_warns(saver, warning, caplog, disk):
    assert warnings_of(saver, saver.monitor_stat, caplog, disk) == [warning]


@pytest.mark.parametrize(
    "saver",
    [
        MaxSaver("val_acc"),
        MinSaver("val_acc", reverse=True),
        MinSaver("val_loss"),
        TopKSaver("val_acc", mode="max"),
        MaxSaver("neg_loss"),
        MinSaver("acc_drop"),
        MinSaver("score"),
    ],
)
def test_a_saver_of_the_best_values_or_of_an_ambiguous_metric_does_not_warn(saver, caplog, disk):
    assert warnings_of(saver, saver.monitor_stat, caplog, disk) == []


def test_only_the_chief_warns_of_a_saver_that_keeps_the_worst_values(caplog, disk, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert warnings_of(MinSaver("val_acc"), "val_acc", caplog, disk) == []
