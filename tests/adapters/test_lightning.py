"""Lightning as a host: tests beyond the conformance suite."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed: make test-adapters")

import torch
from tests.adapters.differences import difference, listed
from tests.adapters.hosts.lightning import ResumableLoader, module_class, trainer_of
from tests.adapters.record import LEARNING_RATE, TRAIN, VAL

from hookpoint import Callback, adapters, control, on
from hookpoint import callbacks as cb
from hookpoint.core.loop.host import NotUnderHost
from hookpoint.core.loop.services import machine_of
from hookpoint.steering.control_command import ControlCommand
from hookpoint.storage.checkpoint.state_bytes import MAGIC


def fitted(callbacks, folder, *more, module=None, last=False, options=None, **trainer):
    adapter = adapters.lightning(callbacks, last=last, **(options or {}))
    trainer = trainer_of(adapter, folder, *more, **{"max_epochs": 2, **trainer})
    trainer.fit(module_class()() if module is None else module, ResumableLoader(TRAIN), ResumableLoader(VAL))
    return trainer


def test_hooks_and_signal_handlers_are_removed(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def fail(run):
        if run.step == 2:
            raise ValueError("a callback fails")

    trainers = [fitted([cb.GradientStats(every=1)], tmp_path)]
    module = module_class()()
    adapter = adapters.lightning([on("on_step_end")(fail)])
    trainers.append(trainer_of(adapter, tmp_path, max_epochs=2))
    with pytest.raises(ValueError, match="a callback fails"):
        trainers[1].fit(module, ResumableLoader(TRAIN), ResumableLoader(VAL))
    for trainer in trainers:
        (optimizer,) = trainer.optimizers
        assert not optimizer._optimizer_step_post_hooks
        assert not optimizer._optimizer_step_pre_hooks
        assert not any(
            m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in trainer.lightning_module.modules()
        )
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_callback_error_reaches_the_callbacks_once_and_has_a_note(tmp_path):
    seen = []

    class Failing(Callback):
        def on_train_iter_end(self, run):
            raise KeyError("mine")

        def on_exception(self, error):
            seen.append(error)

        def on_run_end(self):
            seen.append("end")

    with pytest.raises(KeyError, match="mine") as caught:
        fitted([Failing()], tmp_path)
    assert seen == [caught.value, "end"]
    assert [note for note in caught.value.__notes__ if "Failing" in note and "on_train_iter_end" in note]


def test_state_in_a_checkpoint_has_hookpoints_encoding(tmp_path):
    trainer = fitted([cb.EarlyStopping("val_loss"), cb.SwapEMAWeights(0.5)], tmp_path, options={"name": "mine"})
    trainer.save_checkpoint(tmp_path / "mine.ckpt")
    found = torch.load(tmp_path / "mine.ckpt", weights_only=True)["callbacks"]["hookpoint[mine]"]
    assert list(found) == ["state"]
    assert bytes(found["state"].numpy()).startswith(MAGIC)


def test_two_lists_of_callbacks_need_two_names(tmp_path):
    lists = [adapters.lightning([cb.EarlyStopping("val_loss")], name=name) for name in ("one", "two")]
    trainer = trainer_of(lists[0], tmp_path, lists[1], max_epochs=1)
    trainer.fit(module_class()(), ResumableLoader(TRAIN), ResumableLoader(VAL))
    trainer.save_checkpoint(tmp_path / "both.ckpt")
    kept = torch.load(tmp_path / "both.ckpt", weights_only=True)["callbacks"]
    assert {"hookpoint[one]", "hookpoint[two]"} <= kept.keys()
    with pytest.raises(RuntimeError, match="state_key"):
        trainer_of(adapters.lightning([]), tmp_path, adapters.lightning([]))


def test_a_saver_writes_a_checkpoint_that_lightning_resumes_from(tmp_path):
    def stop(run):
        if run.epoch == 2:
            run.stop("enough")

    workdir = tmp_path / "run"
    fitted(
        [cb.ModelSaver(), cb.MinSaver("val_loss"), on("on_epoch_end")(stop)],
        tmp_path,
        max_epochs=4,
        options={"workdir": workdir},
    )
    assert sorted(path.name for path in (workdir / "lightning").iterdir()) == ["best-val_loss.ckpt", "model.ckpt"]
    rows = []
    adapter = adapters.lightning([on("on_epoch_end")(lambda run: rows.append((run.epoch, run.step)))], workdir=workdir)
    trainer = trainer_of(adapter, tmp_path, max_epochs=4)
    trainer.fit(module_class()(), ResumableLoader(TRAIN), ResumableLoader(VAL), ckpt_path=workdir / "lightning" / "model.ckpt")
    assert rows == [(3, 9), (4, 12)]


def logging_module(name, hook):
    class Module(module_class()):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if hook == "training_step":
                self.log(name, float(batch_idx), on_step=False, on_epoch=True, batch_size=1)
            return loss

        def on_train_epoch_end(self):
            if hook == "on_train_epoch_end":
                self.log(name, float(self.current_epoch))

    return Module()


def test_metrics_of_the_module_are_metrics_of_the_run(tmp_path):
    seen = []
    read = on("on_epoch_end")(lambda run: seen.append((run.logs["mine"], "val_loss" in run.logs)))
    fitted([read], tmp_path, module=logging_module("mine", "training_step"))
    assert seen == [(1.0, True), (1.0, True)]


def test_with_last_callbacks_see_values_logged_at_the_end_of_an_epoch(tmp_path):
    seen = []
    read = on("on_epoch_end")(lambda run: seen.append(run.logs["late"]))
    module = logging_module("late", "on_train_epoch_end")
    fitted([read], tmp_path, module=module, last=True, enable_checkpointing=True)
    assert seen == [0.0, 1.0]


def test_epochs_without_validation_add_no_values_of_its_metrics(tmp_path):
    seen = []
    read = on("on_epoch_end")(lambda run: seen.append(len(run.monitors.get_history("val_loss"))))
    fitted([read], tmp_path, max_epochs=4, check_val_every_n_epoch=2)
    assert seen == [0, 1, 1, 2]


def test_the_loss_of_a_batch_is_not_divided_by_accumulation(tmp_path):
    losses = {1: [], 3: []}
    for accumulate, seen in losses.items():
        note = on("on_train_iter_end")(lambda run, seen=seen: seen.append(float(run.loss)))
        begin = on("on_backward_begin")(lambda run, seen=seen: seen.append(float(run.loss)))
        fitted([note, begin], tmp_path, max_epochs=1, accumulate_grad_batches=accumulate)
    assert losses[3][:2] == [losses[1][0]] * 2


def test_a_stop_waits_for_min_epochs(tmp_path):
    epochs = []
    stop = on("on_epoch_end")(lambda run: (epochs.append(run.epoch), run.stop("enough")))
    fitted([stop], tmp_path, max_epochs=5, min_epochs=3)
    assert epochs == [1, 2, 3]


def test_callbacks_can_set_the_learning_rate(tmp_path):
    trainer = fitted([cb.ScheduledHyperParamSetter("learning_rate", [(0, 0.5), (1, 0.25)])], tmp_path)
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.25


def test_unsupported_features_of_lightning_raise(tmp_path):
    class Skips(Callback):
        may_skip = True

        def on_iter_begin(self, run): ...

    class Fetches(Callback):
        def on_batch_fetch_end(self): ...

    for callback, why in ((Skips(), "Skips skips batches"), (Fetches(), "Lightning has no on_batch_fetch_end")):
        with pytest.raises(NotUnderHost, match=why):
            adapters.lightning([callback])
    with pytest.raises(NotUnderHost, match=r"run\.stop_epoch\(\) does not work under Lightning: it can only stop the whole"):
        fitted([on("on_train_iter_end")(lambda run: run.stop_epoch())], tmp_path)
    with pytest.raises(NotUnderHost, match=r"run\.skip_batch\(\) does not work under Lightning"):
        fitted([on("on_train_iter_begin")(lambda run: run.skip_batch())], tmp_path)


def test_validate_fires_validation_points(tmp_path):
    seen = []

    class Points(Callback):
        def on_run_begin(self):
            seen.append("run")

        def on_val_iter_end(self, run):
            seen.append(run.batch_idx)

        def on_val_epoch_end(self, run):
            seen.append("val_loss" in run.metrics)

    trainer = trainer_of(adapters.lightning([Points()]), tmp_path)
    trainer.validate(module_class()(), ResumableLoader(VAL), verbose=False)
    assert seen == [0, True]


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_two_processes_stop_at_the_same_step_and_only_the_chief_writes(tmp_path):
    """A stop on rank 1 ends both ranks at the same step."""

    class Stop(Callback):
        def on_train_iter_end(self, run):
            if run.rank == 1 and run.iteration == 2:
                run.stop("rank 1 has enough")

        def on_run_end(self, run):
            (tmp_path / f"rank-{run.rank}.txt").write_text(f"{run.world_size} {run.step} {run.stop_reason}")

    class Writer(Callback):
        ranks = "chief"

        def on_run_begin(self, run):
            (tmp_path / f"chief-{run.rank}.txt").write_text("")

    options = {"strategy": "ddp_fork", "devices": 2, "max_epochs": 5}
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(48, 2), torch.rand(48, 1)), 4)
    adapter = adapters.lightning([Stop(), Writer()], workdir=tmp_path / "run")
    trainer_of(adapter, tmp_path, **options).fit(module_class()(), loader, loader)
    said = {path.name: path.read_text() for path in tmp_path.glob("*.txt")}
    assert sorted(said) == ["chief-0.txt", "rank-0.txt", "rank-1.txt"]
    assert said["rank-0.txt"] == said["rank-1.txt"]
    assert said["rank-0.txt"].startswith("2 3 ")
    assert (tmp_path / "run" / "run.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_two_processes_resume_as_one_run(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Note(Callback):
        def on_run_end(self, run):
            (tmp_path / f"rank-{run.rank}.txt").write_text(f"{run.epoch} {run.step}")

    def fit(epochs, *more, checkpoint=None):
        stop = cb.EarlyStopping("val_loss", min_delta=10.0, patience=3)
        adapter = adapters.lightning([stop, Note()], workdir=tmp_path / "run")
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(16, 2), torch.rand(16, 1)), 4)
        trainer = trainer_of(adapter, tmp_path, *more, strategy="ddp_fork", devices=2, max_epochs=epochs)
        trainer.fit(module_class()(), loader, loader, ckpt_path=checkpoint)
        return {path.read_text() for path in tmp_path.glob("rank-*.txt")}

    assert fit(2, ModelCheckpoint(tmp_path, filename="saved", save_on_train_epoch_end=True)) == {"2 4"}
    assert fit(9, checkpoint=tmp_path / "saved.ckpt") == {"4 8"}
    assert "inexact" not in (tmp_path / "run" / "run.json").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_match_those_of_a_runner_and_only_the_chief_writes(tmp_path):
    root, program = Path(__file__).parents[2], Path(__file__).with_name("two_processes.py")
    paths = os.pathsep.join(filter(None, [str(root / "src"), str(root), os.environ.get("PYTHONPATH")]))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(program)]
    ranks = {}
    for name in ("runner", "lightning"):
        folder = tmp_path / name
        folder.mkdir()
        variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*launch, name, str(folder)], cwd=root, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ranks[name] = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    for chief, other in ranks.values():
        assert chief["rows"] == other["rows"]
        assert "os.rename run/run.json" in chief["written"]
        assert other["written"] == []
    expected = listed("lightning", version("lightning"))["two processes"].lines
    for ours, theirs in zip(ranks["runner"], ranks["lightning"], strict=True):
        assert difference(ours["rows"], theirs["rows"]) == expected
        assert ["on_train_iter_end", 2, 7, 7] in theirs["rows"]  # rank 1 stops in iteration 6: all stop one step later


def test_the_adapter_can_be_pickled_for_new_processes():
    again = pickle.loads(pickle.dumps(adapters.lightning([cb.EarlyStopping("val_loss")], last=True, name="mine")))
    assert again.state_key == "hookpoint[mine]"
    assert next(entry.name for entry in again.driver.hooks.entries) == "EarlyStopping(val_loss)"


def test_supported_commands_are_applied_and_others_refused(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    orders, rates, workdir = {}, [], tmp_path / "run"
    commands = {
        2: {"set": {"values": {"lr": 0.01}}, "save": {"tag": "mine"}, "validate": {}, "trace": {"steps": 1}},
        3: {"stop": {"reason": "enough"}},
    }

    @on("on_train_iter_end")
    def send(run):
        rates.append(run.hyper["lr"])
        if run.iteration in commands:
            orders.update({do: control(workdir).send(do, args) for do, args in commands[run.iteration].items()})
            machine_of(run).control.submit(ControlCommand("resume", {}, control(workdir).live().attempt))  # poll at once

    saver = ModelCheckpoint(dirpath=tmp_path / "saved", save_top_k=-1)
    trainer = fitted([send], tmp_path, saver, options={"workdir": workdir}, max_epochs=3)
    answers = {do: order.wait() for do, order in orders.items()}
    assert {do: answer.status for do, answer in answers.items()} == {
        "set": "applied",
        "save": "applied",
        "validate": "refused",
        "trace": "refused",
        "stop": "applied",
    }
    assert answers["validate"].reason == "validate: Lightning runs validation itself."
    assert answers["trace"].reason == "trace: this run has no profiler."
    saved = torch.load(answers["save"].path, weights_only=False)
    assert (saved["global_step"], saved["optimizer_states"][0]["param_groups"][0]["lr"]) == (2, 0.01)
    assert (rates, trainer.global_step, trainer.should_stop) == ([LEARNING_RATE, LEARNING_RATE, 0.01], 3, True)
