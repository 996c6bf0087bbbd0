"""The Trainer of transformers as a host: tests beyond the conformance suite."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from tests.adapters.record import LEARNING_RATE, TRAIN, Record

from hookpoint import Callback, LambdaCallback, Runner, adapters, on
from hookpoint import callbacks as cb
from hookpoint.core.errors import BadArgument
from hookpoint.core.loop.host import NotUnderHost
from hookpoint.storage.checkpoint.state_bytes import MAGIC

transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-adapters")
hosts = pytest.importorskip("tests.adapters.hosts.transformers")
trainer_of, Model, SAMPLES, UNAVAILABLE = hosts.trainer_of, hosts.Model, hosts.SAMPLES, hosts.UNAVAILABLE

METHODS = ("train", "training_step", "compute_loss", "evaluate", "evaluation_loop", "prediction_step", "save_model")


def trained(folder, *callbacks, model=None, listeners=(), outputs=True, options=None, **arguments):
    trainer = trainer_of(folder, model, callbacks=listeners, **{"num_train_epochs": 1, **arguments})
    adapters.transformers(trainer, list(callbacks), outputs=outputs, **(options or {}))
    trainer.train()
    return trainer


def losses_of_batches():
    """Return the losses of the batches before any step."""
    return [torch.nn.functional.mse_loss(torch.zeros_like(y), y).item() for _, y in TRAIN]


def test_the_loss_of_a_batch_is_not_divided_by_accumulation(tmp_path):
    losses = []
    seen = on("on_train_iter_end")(lambda run: losses.append(run.loss.item()))
    means = LambdaCallback(on_epoch_end=lambda run: losses.append(run.metrics["loss"]))
    trained(tmp_path, seen, means, gradient_accumulation_steps=3, eval_strategy="no")
    expected = losses_of_batches()
    assert losses[:3] == expected
    assert losses[3] == pytest.approx(sum(loss * len(y) for loss, (_, y) in zip(expected, TRAIN, strict=True)) / 10)


def test_losses_divided_by_num_items_in_batch_are_batch_means(tmp_path):
    class Sharing(Model):
        def forward(self, x, labels=None, **kwargs):
            out = self.net(x)
            total = kwargs.get("num_items_in_batch", labels.numel())
            return {"loss": ((out - labels) ** 2).sum() / total, "logits": out}

    losses = []
    trained(
        tmp_path,
        on("on_train_iter_end")(lambda run: losses.append(run.loss.item())),
        model=Sharing(),
        gradient_accumulation_steps=2,
        eval_strategy="no",
    )
    assert losses[:2] == pytest.approx(losses_of_batches()[:2])


def test_callbacks_see_the_batch_the_outputs_and_the_targets(tmp_path):
    seen = []

    def note(run):
        seen.append((run.mode, len(run.batch["x"]), run.outputs, len(run.targets)))

    trained(tmp_path, on("on_iter_end")(note))
    assert [(mode, size, targets) for mode, size, _, targets in seen] == [
        ("train", 4, 4),
        ("train", 4, 4),
        ("train", 2, 2),
        ("val", 8, 8),
    ]
    assert seen[0][2]["logits"].shape == (4, 1)


def test_outputs_are_released_after_the_iteration_or_not_kept(tmp_path):
    kept = []
    trained(tmp_path, on("on_train_iter_end")(lambda run: kept.append(weakref.ref(run.outputs["logits"]))))
    gc.collect()
    assert [one() for one in kept] == [None] * 3
    kept.clear()
    trained(tmp_path, on("on_train_iter_end")(lambda run: kept.append(run.outputs)), outputs=False)
    assert kept == [None] * 3


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.05, 0.05, 0.01, 0.01, 0.01, 0.01]), ("linear", [0.05, 0.05 * 5 / 6, 0.01, 0.0075, 0.005, 0.0025])],
)
def test_a_new_learning_rate_survives_the_next_scheduler_step(tmp_path, caplog, schedule, expected):
    rates = []
    setter = cb.HyperParamSetterWithFunc("learning_rate", lambda epochs_done, old: None)

    def change(run):
        if run.iteration == 2:
            run.hyper["learning_rate"] = 0.01

    note = on("on_step_begin")(lambda run: rates.append(run.optimizer.param_groups[0]["lr"]))
    trained(tmp_path, setter, on("on_train_iter_begin")(change), note, num_train_epochs=2, lr_scheduler_type=schedule)
    assert "last write wins" not in caplog.text
    assert rates == pytest.approx(expected, rel=1e-12)
    assert schedule == "linear" or rates == expected


def test_eval_mode_during_training_does_not_start_a_validation(tmp_path):
    class Sampling(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            model.eval()
            with torch.no_grad():
                model(SAMPLES[0]["x"][None], SAMPLES[0]["labels"][None])
            model.train()

    record = Record(UNAVAILABLE)
    trained(tmp_path, record, listeners=[Sampling()], eval_strategy="no")
    assert {row[4] for row in record.rows} == {None, "train"}
    assert record.rows[-1][:4] == ("on_run_end", 1, 3, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"logging_strategy": "no", "eval_strategy": "no"},
        {"logging_strategy": "epoch", "eval_strategy": "no"},
        {"logging_strategy": "steps", "logging_steps": 1},
        {"logging_strategy": "no", "save_strategy": "epoch"},
    ],
)
def test_an_epoch_ends_once_after_the_trainers_logs_and_evaluation(tmp_path, arguments):
    ends, logged = [], []

    def note(run):
        ends.append((run.epoch, "val_loss" in run.logs))
        logged.append(run.metrics.get("learning_rate"))

    callback = LambdaCallback(on_epoch_end=note)
    trained(tmp_path, callback, num_train_epochs=2, **arguments)
    assert ends == [(number, arguments.get("eval_strategy") != "no") for number in (1, 2)]
    assert (None in logged) == (arguments["logging_strategy"] == "no")


def test_metrics_of_several_datasets_have_separate_names(tmp_path):
    values = {}
    trainer = trainer_of(tmp_path, num_train_epochs=2)
    trainer.eval_dataset = {"small": SAMPLES[:4], "large": SAMPLES}
    ends = LambdaCallback(
        on_epoch_end=lambda run: values.update(run.logs), on_val_epoch_end=lambda run: values.update(run.logs)
    )
    record = Record(UNAVAILABLE)
    adapters.transformers(trainer, [ends, record])
    trainer.train()
    assert {"val_small_loss", "val_large_loss"} <= set(values)
    assert "val_loss" not in values
    assert sum(row[0] == "on_epoch_end" for row in record.rows) == 2
    assert values["val_large_loss"] == pytest.approx(trainer.state.log_history[-2]["eval_large_loss"])


def test_compute_metrics_and_logs_of_the_trainer_reach_the_run(tmp_path):
    values = {}
    trainer = trainer_of(tmp_path, num_train_epochs=1)
    trainer.compute_metrics = lambda prediction: {"mae": float(abs(prediction.predictions - prediction.label_ids).mean())}
    adapters.transformers(trainer, [LambdaCallback(on_run_end=lambda run: values.update(run.metrics))])
    trainer.train()
    assert values["val_mae"] == trainer.state.log_history[-2]["eval_mae"]
    assert {"learning_rate", "train_runtime", "train_loss"} <= set(values)
    assert not any("runtime" in name for name in values if name.startswith("val_"))


def test_state_in_a_checkpoint_has_hookpoints_encoding(tmp_path):
    trained(tmp_path, cb.EarlyStopping("val_loss"), save_strategy="epoch")
    assert (tmp_path / "checkpoint-3" / "hookpoint.state").read_bytes().startswith(MAGIC)


def test_state_is_saved_before_a_checkpoint_becomes_resumable(tmp_path):
    """A kill during a save leaves a checkpoint with hookpoint's state, or without trainer_state.json."""
    found = []
    trainer = trainer_of(tmp_path, num_train_epochs=2, save_strategy="epoch")
    save = trainer._save_rng_state

    def after_the_weights(folder):
        found.append(sorted(path.name for path in Path(folder).iterdir() if path.suffix in (".json", ".state")))
        save(folder)

    trainer._save_rng_state = after_the_weights
    with adapters.transformers(trainer, [cb.EarlyStopping("val_loss")]):
        trainer.train()
    assert [{"hookpoint.state", "trainer_state.json"} & set(names) for names in found[:2]] == [{"hookpoint.state"}] * 2


def test_two_lists_in_one_trainer_have_separate_states(tmp_path):
    ends = []
    for resume in (False, True):
        trainer = trainer_of(tmp_path, num_train_epochs=1 + resume, save_strategy="epoch")
        for name in ("one", "two"):
            stopping = cb.EarlyStopping("val_loss", patience=9, min_delta=10.0)
            end = LambdaCallback(on_run_end=lambda run, name=name: ends.append((name, run.epoch, run.step)))
            adapters.transformers(trainer, [stopping, end], name=name)
        trainer.train(resume_from_checkpoint=resume)
    assert sorted(ends) == [("one", 1, 3), ("one", 2, 6), ("two", 1, 3), ("two", 2, 6)]
    assert sorted(path.name for path in (tmp_path / "checkpoint-6").glob("hookpoint*")) == [
        "hookpoint-one.state",
        "hookpoint-two.state",
    ]


def test_a_checkpoint_without_state_sets_the_clocks_and_warns(tmp_path, caplog):
    trainer_of(tmp_path, num_train_epochs=1, save_strategy="epoch").train()
    record = Record(UNAVAILABLE)
    trainer = trainer_of(tmp_path, num_train_epochs=2)
    adapters.transformers(trainer, [record])
    trainer.train(resume_from_checkpoint=True)
    assert record.rows[0][:4] == ("on_run_begin", 1, 3, 3)
    assert record.rows[-1][:4] == ("on_run_end", 2, 6, 6)
    assert "checkpoint-3/hookpoint.state does not exist: the callbacks start from scratch, at step 3" in caplog.text


def test_stop_epoch_ends_the_training_of_the_epoch(tmp_path):
    def leave(run):
        if run.iteration == 1:
            run.stop_epoch()

    record = Record(UNAVAILABLE)
    trained(tmp_path, record, on("on_train_iter_end")(leave), num_train_epochs=2)
    assert record.rows[-1][:4] == ("on_run_end", 2, 4, 4)


def refusing(**methods):
    return type("Refused", (Callback,), methods)()


def test_unsupported_callbacks_raise_when_compiled(tmp_path):
    trainer = trainer_of(tmp_path)
    for callback, text in [
        (cb.ModelSaver(), r"ModelSaver saves checkpoints, which transformers\.Trainer does not support: .*save_strategy"),
        (refusing(on_backward_begin=lambda self, run: None), r"Refused: transformers\.Trainer has no on_backward_begin"),
        (refusing(on_iter_begin=lambda self, run: None, may_skip=True), r"Refused skips batches, which transformers\.Trainer"),
    ]:
        with pytest.raises(NotUnderHost, match=text):
            adapters.transformers(trainer, [callback])
    assert not set(METHODS) & set(vars(trainer))
    with pytest.raises(BadArgument, match="has no option 'epochs'"):
        adapters.transformers(trainer, [], epochs=3)
    with pytest.raises(BadArgument, match=r"Linear is not a transformers\.Trainer: it has no add_callback"):
        adapters.transformers(torch.nn.Linear(1, 1), [])


@pytest.mark.parametrize(
    ("point", "verdict", "text"),
    [
        ("on_train_iter_begin", "skip_batch", r"run\.skip_batch\(\) does not work under transformers\.Trainer: it computes"),
        ("on_train_iter_begin", "save", r"run\.save\(\) does not work under transformers\.Trainer: the trainer writes its own"),
        (
            "on_val_iter_end",
            "stop_epoch",
            r"run\.stop_epoch\(\) during an evaluation does not work under transformers\.Trainer",
        ),
    ],
)
def test_unsupported_verdicts_raise_at_the_call(tmp_path, point, verdict, text):
    with pytest.raises(NotUnderHost, match=text):
        trained(tmp_path, on(point)(lambda run: getattr(run, verdict)()))


def hooks_of(trainer):
    model = trainer.model
    inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    hooks = [module._forward_hooks for module in model.modules()] + [inner._optimizer_step_post_hooks]
    return sum(map(len, hooks))


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_and_signal_handlers_are_removed_after_training(tmp_path, fails):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    trainer = trainer_of(tmp_path, Model(1 if fails else None), num_train_epochs=1)
    listeners = list(trainer.callback_handler.callbacks)
    with adapters.transformers(trainer, [cb.GradientStats(every=1), cb.SwapEMAWeights(0.9)]):
        try:
            trainer.train()
        except ValueError:
            assert fails
        assert set(METHODS) & set(vars(trainer)) == {"train", "evaluation_loop"}
        assert trainer.callback_handler.callbacks == listeners
        assert hooks_of(trainer) == 0
    assert not set(METHODS) & set(vars(trainer))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_detach_keeps_methods_that_were_replaced_before_or_after(tmp_path):
    trainer, calls = trainer_of(tmp_path, num_train_epochs=1), []
    original = trainer.train
    trainer.train = before = lambda: (calls.append("before"), original())
    adapter = adapters.transformers(trainer, [on("on_run_begin")(lambda run: calls.append("run"))])
    adapter.detach()
    assert trainer.train is before
    adapter = adapters.transformers(trainer, [on("on_run_begin")(lambda run: calls.append("run"))])
    attached = trainer.train
    trainer.train = lambda: (calls.append("since"), attached())
    adapter.detach()
    trainer.train()
    assert calls == ["since", "before"]


def test_auto_find_batch_size_starts_a_new_run_per_attempt(tmp_path):
    class Large(Model):
        def forward(self, x, labels=None):
            if len(x) > 2:
                raise RuntimeError("CUDA out of memory.")
            return super().forward(x, labels)

    record = Record(UNAVAILABLE)
    trained(tmp_path, record, model=Large(), auto_find_batch_size=True, eval_strategy="no")
    points = [row[0] for row in record.rows]
    assert [points.count(point) for point in ("on_run_begin", "on_exception", "on_run_end")] == [
        points.count("on_run_begin"),
        points.count("on_run_begin") - 1,
        points.count("on_run_begin"),
    ]
    assert points.count("on_run_begin") >= 2
    assert record.rows[-1][:4] == ("on_run_end", 1, 5, 5)


def test_the_run_folder_has_the_usual_files(tmp_path):
    trained(tmp_path / "out", cb.EarlyStopping("val_loss"), options={"workdir": tmp_path / "run", "name": "mine"})
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["name"], facts["status"], facts["epoch"], facts["step"], facts["samples"]) == ("mine", "finished", 1, 3, 10)
    assert facts["hyper"]["lr"] == LEARNING_RATE
    assert (tmp_path / "run" / "scalars.jsonl").stat().st_size > 0


def test_eval_on_start_fires_validation_points_before_the_first_epoch(tmp_path):
    if "eval_on_start" not in transformers.TrainingArguments.__dataclass_fields__:
        pytest.skip("this version has no eval_on_start")
    record = Record(UNAVAILABLE)
    trained(tmp_path, record, eval_on_start=True)
    assert [row[0] for row in record.rows[:3]] == ["on_run_begin", "on_val_epoch_begin", "on_iter_begin"]
    assert record.rows[-1][:4] == ("on_run_end", 1, 3, 3)


SCRIPT = """
import json, os, sys
from pathlib import Path
from hookpoint import Callback, adapters
from tests.adapters.hosts.transformers import trainer_of

class Stopping(Callback):
    def on_train_iter_end(self, run):
        if run.rank == 1 and run.iteration == 1:
            run.stop("rank 1 has enough")
    def on_run_end(self, run):
        seen = [run.world_size, run.epoch, run.step, run.stop_reason, run.metrics["loss"], run.metrics["val_loss"]]
        Path(sys.argv[1], f"rank-{run.rank}.json").write_text(json.dumps(seen))

folder = Path(sys.argv[1])
options = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 4, "ddp_backend": "gloo", "save_strategy": "epoch"}
trainer = trainer_of(folder, num_train_epochs=3, **options)
adapters.transformers(trainer, [Stopping()], workdir=folder / "run")
trainer.train()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stop_on_one_rank_ends_both_at_the_same_step(tmp_path):
    root = Path(__file__).parents[2]
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(tmp_path / "train.py"), str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *launch], cwd=root, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first[:4] == [2, 1, 2, "rank 1 has enough"]  # all ranks stop one step later
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "stopped"
    assert (tmp_path / "checkpoint-2" / "hookpoint.state").exists()


def test_a_runner_trains_a_transformers_model_with_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=2
    )
    tokens = torch.randint(0, 50, (16, 8))
    batches = [{"input_ids": part, "labels": (part[:, 0] > 25).long()} for part in tokens.split(8)]
    kinds = {name: getattr(torchmetrics, name)("multiclass", num_classes=2) for name in ("Accuracy", "F1Score")}
    metrics = {
        "all": torchmetrics.MetricCollection(kinds),
        "own": lambda outputs, targets: (outputs.logits.argmax(-1) == targets).float().mean(),
    }
    model = transformers.BertForSequenceClassification(config)
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), None, metrics=metrics, extra_callbacks=[], monitors=[])
    run = runner.fit(batches, batches, epochs=2)
    assert run.metrics["val_all_Accuracy"] == pytest.approx(run.metrics["val_own"])
    assert runner.predict(batches)[0].logits.shape == (8, 2)
