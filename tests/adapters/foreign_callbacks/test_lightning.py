"""Lightning's own callbacks behave the same in our Runner as in its Trainer, given the same losses."""

from __future__ import annotations

import pytest

lightning = pytest.importorskip("lightning", reason="Lightning is not installed: make test-adapters")
torch = pytest.importorskip("torch")

from lightning.pytorch import callbacks as C  # noqa: E402
from lightning.pytorch.loggers.logger import Logger  # noqa: E402
from packaging.version import Version  # noqa: E402
from tests.adapters.foreign_callbacks.scripted import BATCHES, INPUTS, VALIDATION, Script, ours  # noqa: E402

import hookpoint  # noqa: E402
from hookpoint import Callback, Loop, adapters  # noqa: E402
from hookpoint import callbacks as cb  # noqa: E402
from hookpoint.core.errors import CompileError, NotOffered  # noqa: E402

NAN = float("nan")
LOSSES = [4.0, 2.0, 3.0, 1.0, 1.5, 1.25, 1.0, 1.0, 0.5, 0.5]
EVENTS = [
    *("setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_backward"),
    *(
        "on_after_backward",
        "on_before_optimizer_step",
        "on_train_batch_end",
        "on_validation_start",
        "on_validation_epoch_start",
    ),
    *("on_validation_batch_start", "on_validation_batch_end", "on_validation_epoch_end", "on_validation_end"),
    *("on_train_epoch_end", "on_train_end", "on_fit_end", "teardown"),
]


class ScriptedModule(lightning.LightningModule):
    """A LightningModule with the losses of a script."""

    def __init__(self, val=LOSSES, train=None, rate=0.5, scheduler=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.script, self.rate, self.scheduler = Script(val, train), rate, scheduler

    def forward(self, inputs):
        value = self.script.next_train() if self.training else self.script.next_val()
        return self.weight * 0 + value + inputs * 0

    def training_step(self, batch, batch_idx):
        loss = self(batch[0]).mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch[0]).mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), self.rate)
        return optimizer if self.scheduler is None else ([optimizer], [self.scheduler(optimizer)])


class Recording(Logger):
    """A logger that keeps all values."""

    name, version = "recording", 0

    def __init__(self):
        super().__init__()
        self.values = []

    def log_metrics(self, metrics, step=None):
        self.values += [(name, value) for name, value in metrics.items() if name != "epoch"]

    def log_hyperparams(self, *args, **kwargs):
        pass


def theirs(callbacks, val, *, train=None, scheduler=None, **options):
    """Train with Lightning and return the trainer."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=len(val),
        callbacks=callbacks,
        num_sanity_val_steps=0,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(one, C.Checkpoint) for one in callbacks),
        enable_progress_bar=any(isinstance(one, C.ProgressBar) for one in callbacks),
        **{"logger": False, **options},
    )
    data, validation = (torch.utils.data.TensorDataset(inputs, inputs) for inputs in (INPUTS, VALIDATION))
    loaders = torch.utils.data.DataLoader(data, 2), torch.utils.data.DataLoader(validation, 2)
    trainer.fit(ScriptedModule(val, train, scheduler=scheduler), *loaders)
    return trainer


def compare(make, names, val=LOSSES, **options):
    """Train with both, and compare attributes of the callback."""
    states = []
    for train in (theirs, ours):
        callback = make()
        train([callback], val, **options)
        states.append({name: getattr(callback, name) for name in names if hasattr(callback, name)})  # older versions lack some
    assert states[0] == states[1]
    return states[1]


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 2},
        {"patience": 3, "min_delta": 0.75},
        {"patience": 2, "mode": "max"},
        {"patience": 9, "stopping_threshold": 1.25},
        {"patience": 9, "divergence_threshold": 3.5},
        {"patience": 2, "monitor": "loss"},
        {"patience": 2, "check_on_train_epoch_end": False},
    ],
    ids=str,
)
def test_early_stopping_matches_lightning(options):
    options = {"monitor": "val_loss", **options}
    names = ("wait_count", "stopped_epoch", "best_score", "stopping_reason", "stopping_reason_message")
    compare(lambda: C.EarlyStopping(**options), names)


def test_early_stopping_stops_at_a_non_finite_loss():
    stopping = {"monitor": "val_loss", "patience": 9}
    state = compare(lambda: C.EarlyStopping(**stopping), ("stopped_epoch", "stopping_reason"), [4.0, 2.0, NAN, 1.0])
    assert state["stopped_epoch"] == 2
    run = ours([C.EarlyStopping("val_loss", patience=2)], LOSSES)
    assert (run.epoch, run.stop_reason) == (6, "EarlyStopping set trainer.should_stop")


def test_early_stopping_names_the_available_metrics():
    with pytest.raises(RuntimeError, match=r"conditioned on metric `val_acc` which is not available.* `val_loss`"):
        ours([C.EarlyStopping("val_acc")], LOSSES)


def test_check_val_every_n_epoch_is_an_option_of_adopt():
    stopping = C.EarlyStopping("val_loss", patience=2)
    with Loop([adapters.adopt(stopping, check_val_every_n_epoch=2)], extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(10):
            for _ in run.batches([1]):
                run.log(loss=1.0)
            for _ in run.batches([1], mode="val") if epoch % 2 == 0 else ():
                run.log(loss=LOSSES[epoch // 2 - 1])
    assert (run.epoch, stopping.wait_count) == (10, 1)  # it has seen 4, 2, 3, 1, 1.5
    assert stopping.best_score == 1.0


class Kept(Callback):
    """A monitor that keeps the scalars of a name."""

    def __init__(self, prefix):
        super().__init__(on_error="raise")
        self.prefix, self.values = prefix, []

    def on_records(self, records):
        for record in records:
            found = {name: value for name, value in record.values.items() if name.startswith(self.prefix)}
            self.values += [(name, float(value)) for name, value in found.items()] if record.at == "value" else []


@pytest.mark.parametrize("options", [{}, {"logging_interval": "step"}, {"logging_interval": "epoch"}], ids=str)
def test_learning_rate_monitor_matches_lightning(options):
    def scheduler(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    logger, monitor, first, second = (
        Recording(),
        Kept("lr-"),
        C.LearningRateMonitor(**options),
        C.LearningRateMonitor(**options),
    )
    theirs([first], LOSSES[:4], scheduler=scheduler, logger=logger, log_every_n_steps=1)
    adopted = adapters.adopt(second, log_every_n_steps=1)
    run = ours([adopted], LOSSES[:4], scheduler=scheduler, monitors=[monitor])
    assert second.lrs == first.lrs
    assert len(second.lrs["lr-SGD"]) >= 4
    assert run.metrics["lr-SGD"] == 0.0625
    assert [pair for pair in logger.values if pair[0] == "lr-SGD"] == monitor.values


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"save_top_k": 2},
        {"save_top_k": -1, "filename": "{epoch}-{val_loss:.2f}"},
        {"mode": "max"},
        {"save_last": True},
        {"every_n_epochs": 2},
        {"every_n_train_steps": 3, "monitor": None, "save_top_k": -1},
        {"save_on_train_epoch_end": True, "monitor": "loss"},
    ],
    ids=str,
)
def test_model_checkpoint_matches_lightning(options, tmp_path):
    options = {"monitor": "val_loss", **options}
    states = []
    for train in (theirs, ours):
        folder = tmp_path / train.__name__
        callback = C.ModelCheckpoint(dirpath=folder, **options)
        train([callback], LOSSES)
        names = sorted(path.name for path in folder.iterdir())
        best = {path.rpartition("/")[2]: float(score) for path, score in callback.best_k_models.items()}
        score = None if callback.best_model_score is None else float(callback.best_model_score)
        states.append(
            (names, best, score, *(p.rpartition("/")[2] for p in (callback.best_model_path, callback.last_model_path)))
        )
    assert states[0] == states[1]
    assert states[1][0]


def test_a_checkpoint_of_model_checkpoint_can_be_loaded(tmp_path):
    callback = C.ModelCheckpoint(dirpath=tmp_path, monitor="val_loss")
    run = ours([callback], LOSSES[:2])
    saved = torch.load(callback.best_model_path, weights_only=True)
    assert (saved["epoch"], saved["global_step"]) == (1, 4)
    torch.testing.assert_close(saved["state_dict"], dict(run.model.state_dict()))
    assert ScriptedModule.load_from_checkpoint(callback.best_model_path).weight.item() == 1.0


def test_model_checkpoint_without_a_folder_uses_the_workdir(tmp_path):
    callback = C.ModelCheckpoint(monitor="val_loss")
    ours([callback], LOSSES[:1], workdir=tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.ckpt")] == [
        "lightning/checkpoints/epoch=0-step=2.ckpt"
    ]
    with pytest.raises(NotOffered, match=r"^ModelCheckpoint uses trainer.default_root_dir, but the run has no workdir"):
        ours([C.ModelCheckpoint(monitor="val_loss")], LOSSES[:1])


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_timer_matches_lightning(interval):
    steps = []
    for train in (theirs, ours):
        timer, seen = C.Timer(duration="00:01:00:00", interval=interval), []

        def an_hour_later(trainer, module, *args, timer=timer):
            if trainer.current_epoch == 2:
                timer._offset = 3600

        passes = C.LambdaCallback(
            on_train_epoch_start=an_hour_later,
            on_train_batch_end=lambda trainer, *args, seen=seen: seen.append(trainer.global_step),
        )
        train([passes, timer], LOSSES[:5])
        steps.append(seen)
        assert timer.time_elapsed("train") >= 3600
    assert steps[0] == steps[1] == list(range(1, 6 if interval == "step" else 7))


def test_every_event_fires_in_the_same_order_with_the_same_clocks():
    records = []
    for train in (theirs, ours):
        record = []

        def note(event, record=record):
            def called(trainer, module, *args, stage=None):
                numbers = [arg for arg in args if isinstance(arg, int)]
                loss = [float(arg["loss"]) for arg in args if isinstance(arg, dict)]
                record.append(
                    (event, trainer.current_epoch, trainer.global_step, trainer.state.fn.value, stage, *numbers, *loss)
                )

            return called

        train([C.LambdaCallback(**{event: note(event) for event in EVENTS})], LOSSES[:3])
        records.append(record)
    assert records[0] == records[1]
    assert {event for event, *_ in records[1]} == set(EVENTS)


def test_tqdm_progress_bar_matches_lightning():
    states = []
    for train in (theirs, ours):
        bar, state = C.TQDMProgressBar(), []

        def note(trainer, module, bar=bar, state=state):
            main = bar.train_progress_bar
            state.append((main.n, main.total, main.desc))
            metrics = bar.get_metrics(trainer, module)
            assert "v_num" not in metrics

        def note_validation(trainer, module, bar=bar, state=state):
            state.append((bar.val_progress_bar.n, bar.val_progress_bar.total))

        train([bar, C.LambdaCallback(on_train_epoch_end=note, on_validation_epoch_end=note_validation)], LOSSES[:2])
        states.append(state)
    assert states[0] == states[1] == [(1, 1), (2, 2, "Epoch 0: "), (1, 1), (2, 2, "Epoch 1: ")]


@pytest.mark.skipif(Version(lightning.__version__) < Version("2.5"), reason="older versions of Lightning need an older rich")
def test_rich_progress_bar_works():
    bar, tasks = C.RichProgressBar(), []
    note = C.LambdaCallback(on_train_epoch_end=lambda *args: tasks.append(bar.train_progress_bar.completed))
    ours([bar, note], LOSSES[:2])
    assert tasks == [BATCHES, BATCHES]


def test_device_stats_monitor_works():
    run = ours([adapters.adopt(C.DeviceStatsMonitor(cpu_stats=True), log_every_n_steps=1)], LOSSES[:1])
    assert "DeviceStatsMonitor.on_train_batch_end/cpu_percent" in run.metrics


def test_on_exception_checkpoint_saves_after_an_error(tmp_path):
    class Fails(Callback):
        def on_epoch_end(self):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        ours([C.OnExceptionCheckpoint(tmp_path), Fails()], LOSSES)
    assert torch.load(tmp_path / "on_exception.ckpt", weights_only=True)["global_step"] == BATCHES


def test_only_on_exception_is_called_after_an_error():
    events = []
    note = {
        event: lambda *args, event=event, **kwargs: events.append(event)
        for event in ("on_exception", "on_train_end", "teardown")
    }

    class Fails(Callback):
        def on_epoch_end(self):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        ours([C.LambdaCallback(**note), Fails()], LOSSES)
    assert events == ["on_exception"]


# The trainer and the module


def test_unsupported_attributes_raise():
    def use(trainer, module):
        trainer.predict_loop.run()

    with pytest.raises(NotOffered, match=r"^LambdaCallback uses trainer.predict_loop, which .*\n  offered .*callback_metrics"):
        ours([C.LambdaCallback(on_train_epoch_end=use)], LOSSES)
    with pytest.raises(
        NotOffered, match=r"^LambdaCallback uses trainer.accumulate_grad_batches = ..., which .* let callbacks set"
    ):
        ours([C.LambdaCallback(on_train_start=lambda trainer, module: setattr(trainer, "accumulate_grad_batches", 2))], LOSSES)
    with pytest.raises(NotOffered, match=r"^LambdaCallback uses pl_module.hparams"):
        ours([C.LambdaCallback(on_train_start=lambda trainer, module: module.hparams)], LOSSES)


def test_the_module_is_the_model_and_logs_to_the_run():
    def use(trainer, module):
        assert module.weight.item() == 1.0
        assert (module.current_epoch, module.global_step, str(module.device)) == (0, BATCHES, "cpu")
        module.log("mine", 2.0)

    run = ours([C.LambdaCallback(on_train_epoch_end=use)], LOSSES[:1])
    assert run.metrics["mine"] == 2.0
    assert not hasattr(run.model, "automatic_optimization")


@pytest.mark.parametrize(
    "make", [C.ModelSummary, lambda: C.ModelPruning("l1_unstructured"), getattr(C, "EMAWeightAveraging", C.RichModelSummary)]
)
def test_callbacks_that_need_a_lightning_module_raise_without_one(make):
    with pytest.raises(CompileError, match=r"\(Lightning\) needs a LightningModule as the model"):
        ours([make()], LOSSES)


def test_the_trainer_of_a_lightning_module_is_restored():
    module, epochs = ScriptedModule(), []
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    callbacks = [C.ModelSummary(), C.LambdaCallback(on_train_epoch_end=lambda trainer, one: epochs.append(one.current_epoch))]
    runner = hookpoint.Runner(
        module, optimizer, lambda outputs, targets: outputs.mean(), callbacks=callbacks, extra_callbacks=[], monitors=[]
    )
    runner.fit([(INPUTS, INPUTS)], epochs=2)
    assert epochs == [0, 1]
    assert module._trainer is None


def test_a_standalone_validation_fires_its_events():
    events = []
    names = ("setup", "on_validation_start", "on_validation_end", "teardown", "on_train_start")
    note = {
        name: lambda trainer, *args, name=name, **more: events.append((name, trainer.state.fn.value, *more.values()))
        for name in names
    }
    model = torch.nn.Linear(1, 1)
    runner = hookpoint.Runner(
        model, criterion=torch.nn.functional.mse_loss, callbacks=[C.LambdaCallback(**note)], extra_callbacks=[], monitors=[]
    )
    runner.validate([(INPUTS, INPUTS)])
    fn = "validate"
    assert events == [("setup", fn, fn), ("on_validation_start", fn), ("on_validation_end", fn), ("teardown", fn, fn)]


# Resume


def resumed(make, tmp_path, after):
    """Train until epoch `after`, resume with new objects, and return the new callback and run."""
    ours([make(), cb.ModelSaver()], LOSSES, epochs=after, workdir=tmp_path / "run")
    callback = make()
    return callback, ours([callback, cb.ModelSaver()], LOSSES, workdir=tmp_path / "run", done=after)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_early_stopping_continues_after_a_resume(tmp_path, after):
    def make():
        return C.EarlyStopping("val_loss", patience=2)

    whole = make()
    run = ours([whole], LOSSES)
    callback, after_resume = resumed(make, tmp_path, after)
    assert after_resume.epoch == run.epoch == 6
    assert callback.state_dict() == whole.state_dict()


def test_model_checkpoint_continues_after_a_resume(tmp_path):
    def make():
        return C.ModelCheckpoint(dirpath=tmp_path / "best", monitor="val_loss", save_top_k=2)

    callback, _ = resumed(make, tmp_path, 4)
    whole = C.ModelCheckpoint(dirpath=tmp_path / "whole", monitor="val_loss", save_top_k=2)
    ours([whole], LOSSES)
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )
    assert float(callback.best_model_score) == 0.5


def test_timer_includes_the_time_from_before_a_resume(tmp_path):
    def train(epochs, done, offset):
        timer = C.Timer(duration="00:01:00:00")
        timer._offset = offset
        ours([timer, cb.ModelSaver()], LOSSES, epochs=epochs, workdir=tmp_path, done=done)
        return timer

    train(2, 0, 1800)
    assert 1800 <= train(4, 2, 0).time_elapsed() < 3600
    train(5, 4, 3600)
    assert train(8, 5, 0).time_elapsed() >= 1800


def test_values_added_by_on_save_checkpoint_are_kept(tmp_path):
    class Counter(C.Callback):
        seen = 0

        def on_train_epoch_end(self, trainer, pl_module):
            self.seen += 1

        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            checkpoint["seen"] = self.seen

        def on_load_checkpoint(self, trainer, pl_module, checkpoint):
            self.seen = checkpoint["seen"]

    callback, _ = resumed(Counter, tmp_path, 4)
    assert callback.seen == 10


@pytest.mark.parametrize("accumulate", [1, 2])
def test_accumulate_grad_batches_is_that_of_the_runner(accumulate):
    seen = []
    note = C.LambdaCallback(on_train_start=lambda trainer, module: seen.append(trainer.accumulate_grad_batches))
    ours([note], LOSSES[:1], accumulate=accumulate)
    assert seen == [accumulate]
