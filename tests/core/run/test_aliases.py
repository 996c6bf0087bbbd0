"""The run, callbacks and monitors under the names of other systems."""

from __future__ import annotations

import pytest

from hookpoint import Callback, Every, LambdaCallback, errors
from hookpoint.core.loop.loop import Loop

# run.stop and run.epochs


def test_stop_is_callable_and_false_until_a_stop_is_requested(train):
    seen = []

    def look(run):
        seen.append((bool(run.stop), run.get_stop_requested()))
        if run.epoch == 2:
            run.stop("enough")
            seen.append((bool(run.stop), run.get_stop_requested(), repr(run.stop)))

    run = train([LambdaCallback(on_epoch_end=look)], epochs=5)
    assert seen == [(False, False), (False, False), (True, True, "<run.stop: enough>")]
    assert (run.epoch, run.stop_reason) == (2, "enough")


def test_assigning_to_stop_raises():
    with Loop() as run, pytest.raises(errors.NotAssignable, match=r"run\.stop is a method"):
        run.stop = True


@pytest.mark.parametrize(
    "use",
    [
        lambda epochs: range(epochs),
        lambda epochs: epochs > 3,
        lambda epochs: epochs == 3,
        lambda epochs: 3 - epochs,
        lambda epochs: f"{epochs}",
        int,
    ],
)
def test_using_epochs_as_a_number_raises(use):
    with Loop() as run:
        with pytest.raises(TypeError) as caught:
            use(run.epochs)
        assert list(run.epochs(2)) == [1, 2]
    assert str(caught.value) == (
        "run.epochs is a method, not a number.\n"
        "  read      run.max_epochs, or run.epoch for the current epoch"
    )  # fmt: skip


# tensorpack


def test_steps_per_epoch_and_max_epoch_are_known_at_every_point(train):
    seen = []

    def look(run):
        seen.append((run.steps_per_epoch, run.max_epoch))

    train([LambdaCallback(on_train_epoch_begin=look, on_iter_end=look, on_epoch_end=look)], epochs=1, batches="abc")
    assert seen == [(3, 1)] * 5
    with Loop() as run:
        assert (run.steps_per_epoch, run.max_epoch) == (None, None)


def test_local_step_at_the_end_of_an_epoch_is_that_of_the_last_iteration(train):
    class Looks(Callback):
        def __init__(self):
            self.seen = []

        def _trigger_step(self):
            self.seen.append(self.local_step)

        def _after_epoch(self):
            self.seen.append(("after", self.local_step))

        def _trigger_epoch(self):
            self.seen.append(("epoch", self.local_step))

    looks = Looks()
    train([looks], epochs=2, batches="ab")
    assert looks.seen == [0, 1, ("after", 1), ("epoch", 1)] * 2


def test_a_callback_can_be_triggered_by_hand(train):
    seen = []

    class Triggers(Callback):
        def _trigger(self):
            seen.append(self.global_step)

        def on_iter_end(self):
            self.trigger()

    callback = Triggers().when(Every(epochs=9))
    train([callback], batches="abc")
    assert seen == [1, 2, 3]
    with pytest.raises(errors.OutsideRun, match=r"Triggers\.trigger\(\) works only during a run"):
        callback.trigger()


def test_set_chief_only_returns_the_callback():
    with Loop([LambdaCallback(on_epoch_end=print).set_chief_only(), LambdaCallback().set_chief_only(False)]) as run:
        assert [entry.ranks for entry in run.hooks.entries] == ["chief", "all"]


def test_monitors_accept_images_and_events(train):
    class Records(Callback):
        def __init__(self):
            self.seen = []

        def on_records(self, records):
            self.seen += [(record.kind, record.values) for record in records]

    def put(run):
        run.monitors.put_image("cat", [[0]])
        run.monitors.put_event("fed", grams=50)

    records = Records()
    train([records, LambdaCallback(on_run_begin=put)])
    assert records.seen[:2] == [("image", {"cat": [[0]]}), ("event", {"fed": {"grams": 50}})]


# MindSpore


def test_evaluation_results_have_mindspore_names(train):
    seen = []

    def look(run_context):
        cb_params = run_context.original_args()
        seen.append((cb_params.eval_results, cb_params.list_callback))

    callback = LambdaCallback(on_epoch_end=look)
    validates = LambdaCallback(on_val_iter_end=lambda run: run.log(loss=0.5, acc=0.25))
    train([callback, validates], val="x", body=lambda run: run.log(loss=2.0))
    results, callbacks = seen[0]
    assert callbacks == [callback, validates]
    assert results == {"eval_loss": 0.5, "acc": 0.25}


def test_a_mindspore_metric_name_raises_with_the_name_to_use():
    with Loop() as run:
        run.log(val_loss=1.0)
        with pytest.raises(errors.MissingMetric, match=r"read +'val_loss'"):
            run.metrics["eval_loss"]


# Names that do not exist


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("save_checkpoint", 'run.save("tag")'),
        ("stop_training", 'run.stop("why")'),
        ("list_callback", "run.callbacks, or run.original_args().list_callback"),
    ],
)
def test_a_name_from_another_library_raises_with_what_to_write(name, ours):
    with Loop() as run, pytest.raises(AttributeError) as caught:
        getattr(run, name)
    assert str(caught.value) == f"the run has no attribute '{name}'; write {ours}"


def test_a_name_from_another_library_cannot_be_read_or_assigned():
    with Loop() as run:
        assert not hasattr(run, "stop_training")
        with pytest.raises(errors.NotAssignable, match="the run has no attribute 'stop_training'"):
            run.stop_training = True
