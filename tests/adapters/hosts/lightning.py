"""Lightning as a host of the conformance suite."""

from __future__ import annotations

import logging

import torch
from tests.adapters.record import LEARNING_RATE, TRAIN, VAL, Net

from hookpoint import adapters

NAME = "Lightning"
PACKAGE = "lightning"
MODULE = "net"  # the name of the network in the model
CONTINUES = True  # a second fit continues with the next epoch
UNAVAILABLE = {"on_batch_fetch_begin", "on_batch_fetch_end", "on_iter_error", "on_iter_skip"}
MORE_SCRIPTS = {"two processes"}  # test_lightning.py
CANNOT: dict[str, str] = {}  # scripts that the host cannot run, and why


def module_class():
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self, fail_at=None):
            super().__init__()
            self.net = Net(fail_at)

        def training_step(self, batch, batch_idx):
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

        def predict_step(self, batch, batch_idx):
            return self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)

    return Module


class ResumableLoader:
    """A loader that Lightning can resume in the middle of an epoch."""

    def __init__(self, batches):
        self.batches, self.place = batches, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        start, self.place = self.place % len(self.batches), self.place % len(self.batches)
        for batch in self.batches[start:]:
            self.place += 1
            yield list(batch)

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def trainer_of(adapter, folder, *more, **options):
    import lightning as pl

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    defaults = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"enable_checkpointing": bool(more), "default_root_dir": folder, "callbacks": [adapter, *more], **options}
    return pl.Trainer(**defaults, **options)


def fit(callbacks, fit):
    from lightning.pytorch.callbacks import ModelCheckpoint

    saver = {
        "epoch": {"save_on_train_epoch_end": True},
        "batch": {"every_n_train_steps": 4},
        "validation": {"save_on_train_epoch_end": False},
    }.get(fit.save_at or "")
    module, train, val = module_class()(fit.fail_at), ResumableLoader(TRAIN), ResumableLoader(VAL)
    more = [] if saver is None else [ModelCheckpoint(fit.folder, filename="{step}", save_top_k=-1, **saver)]
    options = {}
    if fit.validate_every is not None:
        options = {"check_val_every_n_epoch": None, "val_check_interval": fit.validate_every}
    adapter = adapters.lightning(callbacks, workdir=fit.workdir)
    trainer = trainer_of(adapter, fit.folder, *more, max_epochs=fit.epochs, accumulate_grad_batches=fit.accumulate, **options)
    if fit.predict:
        trainer.predict(module, val)
        return module.net
    checkpoint = None if fit.resume_at is None else fit.folder / f"step={4 if fit.resume_at == 'batch' else 3}.ckpt"
    trainer.fit(module, train, val, ckpt_path=checkpoint)
    if fit.second_fit:
        trainer.fit_loop.max_epochs = fit.epochs + 1
        trainer.fit(module, train, val)
    return module.net
