"""PyTorch-Ignite as a host of the conformance suite."""

from __future__ import annotations

import logging

import torch
from tests.adapters.record import LEARNING_RATE, TRAIN, VAL, Net

from hookpoint import adapters

NAME = "ignite"
PACKAGE = "ignite"
DISTRIBUTION = "pytorch-ignite"
CONTINUES = False
UNAVAILABLE = {
    "on_batch_fetch_begin",
    "on_batch_fetch_end",
    "on_iter_error",
    "on_iter_skip",
    "on_backward_begin",
    "on_backward_end",
}
CANNOT: dict[str, str] = {}
IS_BITWISE = True  # with the same torch optimizer


class Loader:
    """A loader whose first pass skips batches: an engine that resumes within an epoch leaves the skipping to the data."""

    def __init__(self, batches, skip=0):
        self.batches, self.skip = batches, skip

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        skip, self.skip = self.skip, 0
        return iter(self.batches[skip:])


def engines(model, optimizer, accumulate=1):
    from ignite.engine import create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Loss

    loss = torch.nn.functional.mse_loss
    trainer = create_supervised_trainer(model, optimizer, loss, gradient_accumulation_steps=accumulate)
    for engine in (trainer, evaluator := create_supervised_evaluator(model, {"loss": Loss(loss)})):
        engine.logger.setLevel(logging.CRITICAL)
    return trainer, evaluator


def fit(callbacks, fit):
    from ignite.engine import Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver

    model = Net(fit.fail_at)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    trainer, evaluator = engines(model, optimizer, fit.accumulate)
    predictor = Engine(lambda engine, batch: model(batch[0]))
    engines_by_name = {"val": evaluator, "pred": predictor}
    adapter = adapters.ignite(
        trainer, callbacks, model=model, optimizer=optimizer, evaluators=engines_by_name, workdir=fit.workdir
    )
    if fit.predict:
        model.eval()
        predictor.run(VAL)
        return model
    every = fit.validate_every
    validate = Events.EPOCH_COMPLETED if every is None else Events.ITERATION_COMPLETED(every=every)
    trainer.add_event_handler(validate, lambda engine: evaluator.run(VAL))
    objects = {"trainer": trainer, "model": model, "optimizer": optimizer, "hookpoint": adapter}
    if fit.save_at is not None:
        event = {
            "epoch": Events.EPOCH_STARTED(once=2),
            "batch": Events.ITERATION_COMPLETED(once=4),
            "validation": Events.EPOCH_COMPLETED(once=1),
        }[fit.save_at]
        saver = Checkpoint(objects, DiskSaver(str(fit.folder), create_dir=True), filename_pattern="checkpoint.pt")
        trainer.add_event_handler(event, saver)
    if fit.resume_at is not None:
        Checkpoint.load_objects(objects, torch.load(fit.folder / "checkpoint.pt", weights_only=True))
    trainer.run(Loader(TRAIN, int(fit.resume_at == "batch")), max_epochs=fit.epochs)
    if fit.second_fit:
        trainer.run(TRAIN, max_epochs=fit.epochs)
    return model
