"""Callbacks of transformers behave the same in our Runner as in its Trainer, given the same losses."""

from __future__ import annotations

import ast

import pytest

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-adapters")
torch = pytest.importorskip("torch")

from tests.adapters.foreign_callbacks.scripted import BATCHES, INPUTS, VALIDATION, Script, Scripted, ours  # noqa: E402
from transformers.integrations import TensorBoardCallback  # noqa: E402

from hookpoint import Callback, Loop, Runner, adapters  # noqa: E402
from hookpoint import callbacks as cb  # noqa: E402
from hookpoint.core.errors import BadArgument, CompileError  # noqa: E402

LOSSES = [4.0, 2.0, 3.0, 1.0, 1.5, 1.25, 1.0, 1.0, 0.5, 0.5]
EVENTS = [
    *("on_train_begin", "on_epoch_begin", "on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"),
    *("on_epoch_end", "on_prediction_step", "on_evaluate", "on_train_end"),
]


class Rows(torch.utils.data.Dataset):
    """Inputs in the Trainer's format."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, number):
        return {"inputs": self.inputs[number], "labels": self.inputs[number]}


class ScriptedModel(Scripted):
    """A model with the losses of a script, which returns its loss in the Trainer's format."""

    def forward(self, inputs, labels=None):
        return {"loss": super().forward(inputs).mean()}


def theirs(callbacks, val, folder, *, train=None, **options):
    """Train with transformers and return the trainer."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=len(val),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        learning_rate=0.5,
        lr_scheduler_type="constant",
        use_cpu=True,
        disable_tqdm=True,
        **{"eval_strategy": "epoch", "save_strategy": "no", "report_to": [], "logging_steps": BATCHES, **options},
    )
    model = ScriptedModel(Script(val, train))
    optimizers = torch.optim.SGD(model.parameters(), 0.5), None
    data = {"train_dataset": Rows(INPUTS), "eval_dataset": Rows(VALIDATION)}
    trainer = transformers.Trainer(model, arguments, optimizers=optimizers, **data)
    trainer.remove_callback(transformers.PrinterCallback)
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((2,), {"metric_for_best_model": "eval_loss", "greater_is_better": False}),
        ((2,), {"metric_for_best_model": "loss"}),
        ((2, 0.75), {"metric_for_best_model": "eval_loss", "greater_is_better": False}),
        ((3,), {"metric_for_best_model": "eval_loss", "greater_is_better": True}),
    ],
    ids=str,
)
def test_early_stopping_matches_transformers(arguments, options, tmp_path):
    first, second = (transformers.EarlyStoppingCallback(*arguments) for _ in range(2))
    trainer = theirs([first], LOSSES, tmp_path, load_best_model_at_end=True, save_strategy="epoch", **options)
    adopted = adapters.adopt(second, **options)
    run = ours([adopted], LOSSES)
    assert run.epoch == trainer.state.epoch < len(LOSSES)
    assert second.early_stopping_patience_counter == first.early_stopping_patience_counter
    assert adopted.state.best_metric == trainer.state.best_metric
    assert run.stop_reason == "EarlyStoppingCallback set control.should_training_stop"


def test_early_stopping_without_a_metric_name_raises_before_training():
    with pytest.raises(CompileError, match=r'needs the name of a metric.\n  write .*metric_for_best_model="eval_loss"\)'):
        ours([transformers.EarlyStoppingCallback(2)], LOSSES)


def kept(values):
    """Return the values that both trainers log."""
    return {name: value for name, value in values.items() if name in ("loss", "learning_rate", "eval_loss", "epoch")}


def printed(text):
    rows = [kept(ast.literal_eval(line)) for line in text.splitlines() if line.startswith("{")]
    return [row for row in rows if len(row) > 1]


def test_printer_matches_transformers(tmp_path, capsys):
    theirs([transformers.PrinterCallback()], LOSSES[:3], tmp_path)
    expected = printed(capsys.readouterr().out)
    ours([transformers.PrinterCallback()], LOSSES[:3], log_every=BATCHES)
    assert printed(capsys.readouterr().out) == expected
    numbers = [{name: float(value) for name, value in row.items()} for row in expected]
    assert numbers[:2] == [{"loss": 4.0, "learning_rate": 0.5, "epoch": 1.0}, {"eval_loss": 4.0, "epoch": 1.0}]


def test_progress_matches_transformers(tmp_path):
    states = []
    for train in (theirs, ours):
        progress, state = transformers.ProgressCallback(), []

        class Note(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, bar=progress, to=state, **kwargs):
                to.append((bar.training_bar.n, bar.training_bar.total))

            def on_evaluate(self, args, state, control, bar=progress, to=state, **kwargs):
                to.append((bar.training_bar.n, bar.prediction_bar))

        train([progress, Note()], LOSSES[:2], **({"folder": tmp_path} if train is theirs else {}))
        states.append(state)
        assert progress.training_bar is None
    assert states[0] == states[1]
    assert states[1][-1] == (2 * BATCHES, None)


def scalars(folder):
    """Return the scalars in the event files below a folder, by tag."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = {}
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        reader = accumulator.EventAccumulator(str(file)).Reload()
        for tag in reader.Tags()["scalars"]:
            found.setdefault(tag, []).extend((event.step, event.value) for event in reader.Scalars(tag))
    return found


def test_tensorboard_matches_transformers(tmp_path):
    theirs([TensorBoardCallback()], LOSSES[:3], tmp_path / "theirs")
    ours([TensorBoardCallback()], LOSSES[:3], workdir=tmp_path / "ours", log_every=BATCHES)
    expected, got = scalars(tmp_path / "theirs"), scalars(tmp_path / "ours")
    for tag in ("train/loss", "train/learning_rate", "eval/loss"):
        assert got[tag] == expected[tag]
    assert got["train/loss"] == [(2, 4.0), (4, 2.0), (6, 3.0)]


def test_every_event_fires_in_the_same_order_with_the_same_clocks(tmp_path):
    records = []
    for train in (theirs, ours):
        record = []

        def note(event, record=record):
            def called(self, args, state, control, **kwargs):
                clocks = state.epoch, state.global_step, state.max_steps, state.num_train_epochs
                metrics = kept(kwargs.get("metrics", {}))
                record.append((event, *clocks, metrics, kwargs["model"] is not None, kwargs["optimizer"] is not None))

            return called

        callback = type("Note", (transformers.TrainerCallback,), {event: note(event) for event in EVENTS})()
        train([callback], LOSSES[:3], **({"folder": tmp_path} if train is theirs else {}))
        records.append(record)
    assert records[0] == records[1]
    assert {event for event, *_ in records[1]} == set(EVENTS)


@pytest.mark.parametrize("options", [{"gradient_accumulation_steps": 2}, {}], ids=str)  # by default, the value of the Runner
def test_accumulation_fires_substeps(tmp_path, options):
    records = []
    for train in (theirs, ours):
        record = []

        class Note(transformers.TrainerCallback):
            def on_substep_end(self, args, state, control, to=record, **kwargs):
                to.append(("substep", state.global_step))

            def on_step_begin(self, args, state, control, to=record, **kwargs):
                to.append(("begin", state.global_step))

            def on_step_end(self, args, state, control, to=record, **kwargs):
                to.append(("end", state.global_step, state.max_steps))

        if train is theirs:
            theirs([Note()], LOSSES[:2], tmp_path, gradient_accumulation_steps=2)
        else:
            ours([adapters.adopt(Note(), **options)], LOSSES[:2], accumulate=2)
        records.append(record)
    assert (
        records[0]
        == records[1]
        == [row for step in (0, 1) for row in (("begin", step), ("substep", step), ("end", step + 1, 2))]
    )


def test_default_flow_callback_does_not_end_a_fit_early():
    for number in (1, 3):
        run = ours([transformers.trainer_callback.DefaultFlowCallback()], LOSSES[:number])
        assert (run.epoch, run.stop_reason, run.metrics["val_loss"]) == (number, None, LOSSES[number - 1])


def test_default_flow_callback_does_not_stop_a_loop():
    with Loop([transformers.trainer_callback.DefaultFlowCallback()], extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(3):
            for _ in run.batches(iter([1, 2])):
                run.log(loss=1.0)
    assert (run.epoch, run.stop_reason) == (3, None)


def test_control_can_end_an_epoch_and_request_a_save(tmp_path):
    class Control(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = True

        def on_epoch_end(self, args, state, control, **kwargs):
            control.should_save = True

        def on_save(self, args, state, control, **kwargs):
            saved.append(state.global_step)

    saved = []
    run = ours([Control(), cb.ModelSaver()], LOSSES[:3], train=[4.0] * 3, workdir=tmp_path)
    assert (run.epoch, run.step) == (3, 3)
    assert saved == [1, 2, 3]
    assert ours([Control()], LOSSES[:1]).epoch == 1  # without a store, the save has no effect


def test_adopt_takes_the_options_of_training_arguments():
    callback = adapters.adopt(transformers.PrinterCallback(), seed=7)
    ours([callback], LOSSES[:1])
    assert callback.args.seed == 7
    with pytest.raises(
        BadArgument, match=r"^adopt\(PrinterCallback\) has no option patience=.\n  known .*metric_for_best_model"
    ):
        adapters.adopt(transformers.PrinterCallback(), patience=3)
    with pytest.raises(BadArgument, match=r"load_best_model_at_end has no effect in a run.\n  use "):
        adapters.adopt(transformers.PrinterCallback(), load_best_model_at_end=True)


def test_on_train_end_is_not_called_after_an_error():
    class Fails(Callback):
        def on_epoch_end(self):
            raise ValueError("mine")

    ended = []
    note = type("Note", (transformers.TrainerCallback,), {"on_train_end": lambda self, *args, **kwargs: ended.append(1)})()
    with pytest.raises(ValueError, match="mine"):
        ours([note, Fails()], LOSSES)
    assert ended == []


def test_a_standalone_validation_calls_on_evaluate():
    metrics = []

    class Note(transformers.TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, to=metrics, **kwargs):
            to.append(metrics["eval_loss"])

    runner = Runner(
        torch.nn.Linear(1, 1), criterion=torch.nn.functional.mse_loss, callbacks=[Note()], extra_callbacks=[], monitors=[]
    )
    loss = runner.validate([(INPUTS, INPUTS)])["val_loss"]
    assert metrics == [loss]


# Resume


@pytest.mark.parametrize("after", [1, 3, 5])
def test_early_stopping_continues_after_a_resume(tmp_path, after):
    def make():
        return adapters.adopt(transformers.EarlyStoppingCallback(2), metric_for_best_model="eval_loss")

    whole, first, second = make(), make(), make()
    run = ours([whole], LOSSES)
    ours([first, cb.ModelSaver()], LOSSES, epochs=after, workdir=tmp_path)
    resumed = ours([second, cb.ModelSaver()], LOSSES, workdir=tmp_path, done=after)
    assert resumed.epoch == run.epoch == 6
    assert second.state.best_metric == whole.state.best_metric == 1.0
    assert second.state.log_history == whole.state.log_history
    assert second.theirs.early_stopping_patience_counter == 2


@pytest.mark.parametrize("after", [1, 2])
def test_a_best_value_of_zero_survives_a_resume(tmp_path, after):
    losses = [0.0, 0.5, 0.25, 0.25, 0.25]

    def make():
        return adapters.adopt(transformers.EarlyStoppingCallback(2), metric_for_best_model="eval_loss")

    run = ours([make()], losses)
    ours([make(), cb.ModelSaver()], losses, epochs=after, workdir=tmp_path)
    second = make()
    resumed = ours([second, cb.ModelSaver()], losses, workdir=tmp_path, done=after)
    assert resumed.epoch == run.epoch == 3
    assert second.state.best_metric == 0.0
