"""Your own loop with Accelerate, as in docs/other-trainers.md: no adapter is needed."""

from __future__ import annotations

from tests.adapters.record import LEARNING_RATE, TRAIN, VAL, Net, X, Y
from tests.adapters.scripts import stop_at
from torch.nn.functional import mse_loss
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from hookpoint import Every, Loop
from hookpoint import callbacks as cb

NAME = "Accelerate"
PACKAGE = "accelerate"
CONTINUES = False
UNAVAILABLE = {"on_backward_begin", "on_backward_end", "on_iter_error", "on_iter_skip"}
CANNOT = {"resume after the validation": "a loop of its own resumes after a step or between epochs"}


def fit(callbacks, fit):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)  # shared by all objects, including those of earlier tests
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=fit.accumulate)
    model = Net(fit.fail_at)
    train = DataLoader(TensorDataset(X, Y), batch_size=len(TRAIN[0][0]))
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=LEARNING_RATE))
    if fit.is_killed:
        train = accelerator.prepare(train)
    if fit.save_at and fit.is_killed:
        when = Every(steps=1) if fit.save_at == "batch" else Every(epochs=1)
        callbacks = [cb.ModelSaver(async_save=False).when(when), *callbacks]
    elif fit.save_at:
        callbacks = [*callbacks, cb.ModelSaver(), stop_at(fit.save_at)]
    options = {
        "model": accelerator.unwrap_model(model),
        "optimizer": optimizer.optimizer,  # the wrapped optimizer, whose steps are counted
        "workdir": fit.state_folder,
        **({} if fit.workdir else {"extra_callbacks": [], "monitors": []}),
    }
    for _ in range(1 + fit.second_fit):
        with Loop(callbacks, **options) as run:
            for _ in run.epochs(0 if fit.predict else fit.epochs):
                for inputs, targets in run.batches(train):
                    with accelerator.accumulate(model):
                        run.outputs = model(inputs)
                        run.loss = mse_loss(run.outputs, targets)
                        run.log(loss=run.loss.detach())
                        accelerator.backward(run.loss)
                        optimizer.step()
                        optimizer.zero_grad()
                    if fit.validate_every and run.step % fit.validate_every == 0:
                        validate(run, model)
                if not fit.validate_every:
                    validate(run, model)
            if fit.predict:
                for inputs, _ in run.batches(VAL, mode="pred"):
                    run.outputs = model(inputs)
    return accelerator.unwrap_model(model)


def validate(run, model):
    model.eval()
    for inputs, targets in run.batches(VAL, mode="val"):
        run.log(loss=mse_loss(model(inputs), targets).detach())
    model.train()
