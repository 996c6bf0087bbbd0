"""The Trainer of Hugging Face transformers as a host of the conformance suite."""

from __future__ import annotations

import os

import torch
from tests.adapters.record import LEARNING_RATE, VAL, Net, X, Y

from hookpoint import adapters

NAME = "transformers.Trainer"
PACKAGE = "transformers"
MODULE = "net"  # the name of the network in the model
CONTINUES = False
UNAVAILABLE = {"on_batch_fetch_begin", "on_batch_fetch_end", "on_iter_error", "on_iter_skip", "on_backward_begin"}
CANNOT = {"resume after the validation": "it saves after the end of an epoch"}
IS_BITWISE = True  # with the same torch optimizer

SAMPLES = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
QUIET = {"disable_tqdm": True, "report_to": [], "use_cpu": True, "logging_strategy": "epoch"}


class Model(torch.nn.Module):
    """The network in the trainer's format: it computes its loss."""

    def __init__(self, fail_at=None):
        super().__init__()
        self.net = Net(fail_at)

    def forward(self, x, labels=None):
        out = self.net(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


def trainer_of(folder, model=None, *, callbacks=(), validates=True, **options):
    """Return a trainer that does not shuffle, like our Runner in these tests."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.utils.logging.set_verbosity_error()

    class Trainer(transformers.Trainer):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 8,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0,
        "save_strategy": "no",
        "eval_strategy": "epoch" if validates else "no",
        **QUIET,
        **options,
    }
    model = Model() if model is None else model
    arguments = transformers.TrainingArguments(**arguments)
    trainer = Trainer(model=model, args=arguments, train_dataset=SAMPLES, eval_dataset=SAMPLES[:8], callbacks=list(callbacks))
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def fit(callbacks, fit):
    options = {}
    if fit.save_at is not None:
        options = {"epoch": {"save_strategy": "epoch"}, "batch": {"save_strategy": "steps", "save_steps": 4}}[fit.save_at]
    if fit.validate_every is not None:
        options = {"eval_strategy": "steps", "eval_steps": fit.validate_every}
    options = {"num_train_epochs": fit.epochs, "gradient_accumulation_steps": fit.accumulate, **options}
    trainer = trainer_of(fit.folder, Model(fit.fail_at), **options)
    adapters.transformers(trainer, callbacks, workdir=fit.workdir)
    if fit.predict:
        trainer.predict(SAMPLES[: len(VAL[0][0])])
        return trainer.model.net
    step = {None: None, "epoch": 3, "batch": 4}[fit.resume_at]
    checkpoint = None if step is None else str(fit.folder / f"checkpoint-{step}")
    trainer.train(resume_from_checkpoint=True if checkpoint and fit.is_killed else checkpoint)
    if fit.second_fit:
        trainer.train()
    return trainer.model.net
