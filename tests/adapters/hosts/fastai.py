"""fastai as a host of the conformance suite."""

from __future__ import annotations

from functools import partial

import torch
from tests.adapters.record import LEARNING_RATE, Net, X, Y

from hookpoint import adapters

NAME = "fastai"
PACKAGE = "fastai"
CONTINUES = False
UNAVAILABLE = {"on_batch_fetch_begin", "on_batch_fetch_end", "on_iter_error"}
CANNOT = {
    "validation in the middle of an epoch": "it validates after each epoch",
    "resume in an epoch": "it resumes between epochs",
    "resume after the validation": "it resumes between epochs",
}
IS_BITWISE = True  # with the same torch optimizer


def learner_of(*callbacks, model=None, validates=True, **options):
    """Return a learner with a torch optimizer that does not shuffle."""
    from fastai.data.core import DataLoaders
    from fastai.data.load import DataLoader
    from fastai.learner import Learner
    from fastai.optimizer import OptimWrapper

    samples = list(zip(X, Y, strict=True))
    loaders = DataLoaders(DataLoader(samples, bs=4), DataLoader(samples[:8] if validates else [], bs=8))
    options = {"opt_func": partial(OptimWrapper, opt=torch.optim.SGD), "lr": LEARNING_RATE, **options}
    model = Net() if model is None else model
    learner = Learner(loaders, model, loss_func=torch.nn.functional.mse_loss, cbs=list(callbacks), **options)
    learner.remove_cbs([callback for callback in learner.cbs if type(callback).__name__ == "ProgressCallback"])
    learner.logger = lambda values: None
    return learner


def fit(callbacks, fit):
    from fastai.callback.tracker import SaveModelCallback
    from fastai.callback.training import GradientAccumulation

    adapter = adapters.fastai(callbacks, workdir=fit.state_folder)
    more = [GradientAccumulation(4 * fit.accumulate)] if fit.accumulate > 1 else []
    if fit.is_killed:
        more.append(SaveModelCallback(every_epoch=True, fname="weights", with_opt=True))
    learner = learner_of(adapter, *more, model=Net(fit.fail_at), path=fit.folder)
    if fit.predict:
        learner.get_preds()
        return learner.model
    with adapter:
        if fit.resume_at is not None:
            learner.load("weights_0" if fit.is_killed else fit.folder / "weights", with_opt=fit.is_killed)
        epochs = 1 if fit.save_at and not fit.is_killed else fit.epochs
        learner.fit(epochs, start_epoch=int(fit.resume_at is not None))
        if fit.save_at is not None:
            learner.save(fit.folder / "weights", with_opt=False)
        if fit.second_fit:
            learner.fit(fit.epochs)
    return learner.model
