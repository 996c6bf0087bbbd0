"""The scripts of the runs in this folder: each trains in a workdir, and returns the samples it saw and its results.

`python cases.py CASE WORKDIR EPOCHS [STOP]` runs one and prints the result as JSON. STOP is the step at which the run stops.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def result_of(run, model, seen):
    """Return the samples of each batch, the clocks, and the bits of all weights."""
    bits = {name: value.detach().double().numpy().tobytes().hex() for name, value in model.state_dict().items()}
    clocks = {"epoch": run.epoch, "iteration": run.iteration, "step": run.step, "samples": run.samples}
    return {"seen": seen, "clocks": clocks, "weights": bits}


def made(hidden=3, seed=1, dropout=0.25):
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, hidden), nn.Dropout(dropout), nn.Linear(hidden, 1))
    inputs = torch.arange(44.0).view(22, 2) / 44
    return model, TensorDataset(inputs, (inputs.sum(1, keepdim=True) - 1) ** 2)


def numbers(batch):
    """Return the indices of the samples in a batch."""
    return (batch[0][:, 0] * 22).round().int().tolist()


def by_runner(workdir, epochs, stop, callbacks=(), train=None, groups=None, scheduler=None, **options):
    import torch
    from torch.utils.data import DataLoader

    from hookpoint import LambdaCallback, Runner
    from hookpoint import callbacks as cb
    from hookpoint.monitors import JSONWriter

    model, data = made()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01) if groups is None else groups(model)
    seen = []
    look = LambdaCallback(on_train_iter_begin=lambda run: seen.append(numbers(run.batch)), name="look")
    runner = Runner(
        model,
        optimizer,
        torch.nn.functional.mse_loss,
        lr_scheduler=None if scheduler is None else scheduler(optimizer),
        callbacks=[look, *(callbacks or [cb.ModelSaver()])],
        extra_callbacks=[],
        monitors=[JSONWriter()],
        workdir=workdir,
        name="earlier",
        log_every=2,
        **options,
    )
    loader = DataLoader(data, batch_size=4, shuffle=True) if train is None else train(data)
    val = DataLoader(data, batch_size=11) if callbacks else None
    run = runner.fit(loader, val, epochs=epochs, max_steps=stop)
    return result_of(run, model, seen)


def runner_in_an_epoch(workdir, epochs, stop=None):
    """A Runner with a seed and a shuffled DataLoader; 6 batches per epoch, stopped after 3 batches of epoch 2."""
    return by_runner(workdir, epochs, stop, seed=5)


def runner_between_epochs(workdir, epochs, stop=None):
    """The same, stopped after epoch 2."""
    return by_runner(workdir, epochs, stop, seed=5)


def runner_with_best_values(workdir, epochs, stop=None):
    """A Runner with MinSaver and EarlyStopping, stopped after 3 batches of epoch 3."""
    from hookpoint import callbacks as cb

    callbacks = [cb.ModelSaver(max_to_keep=1), cb.MinSaver("val_loss"), cb.EarlyStopping("val_loss", patience=5)]
    return by_runner(workdir, epochs, stop, callbacks=callbacks, seed=6)


def runner_with_groups(workdir, epochs, stop=None):
    """A Runner with two parameter groups and a scheduler, and a DataLoader with its own generator."""
    import torch
    from torch.utils.data import DataLoader

    def groups(model):
        return torch.optim.SGD(
            [{"params": model[0].parameters(), "lr": 0.125}, {"params": model[2].parameters(), "lr": 0.0625}], momentum=0.5
        )

    generator = torch.Generator().manual_seed(9)
    return by_runner(
        workdir,
        epochs,
        stop,
        groups=groups,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        train=lambda data: DataLoader(data, batch_size=4, shuffle=True, generator=generator),
    )


def loop_in_an_epoch(workdir, epochs, stop=None):
    """A custom loop with torch, stopped after 3 batches of epoch 2."""
    import torch
    from torch.utils.data import DataLoader

    from hookpoint import Loop
    from hookpoint import callbacks as cb
    from hookpoint.monitors import JSONWriter

    model, data = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    loader = DataLoader(data, batch_size=4, shuffle=True, drop_last=True)
    options = {"extra_callbacks": [], "monitors": [JSONWriter()], "workdir": workdir, "name": "earlier"}
    seen = []
    with Loop([cb.ModelSaver()], model=model, optimizer=optimizer, **options) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(loader):
                seen.append(numbers(batch))
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
                if run.step == stop:
                    run.stop("for today")
    return result_of(run, model, seen)


def loop_without_torch(workdir, epochs, stop=None):
    """A loop of plain Python, stopped after 2 batches of epoch 2."""
    import random

    from hookpoint import Loop
    from hookpoint import callbacks as cb
    from hookpoint.monitors import JSONWriter

    class Mean:
        value = 0.0

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    random.seed(3)
    model, seen = Mean(), []
    options = {"extra_callbacks": [], "monitors": [JSONWriter()], "workdir": workdir, "name": "earlier"}
    with Loop([cb.ModelSaver()], model=model, **options) as run:
        for _ in run.epochs(epochs):
            order = random.sample(range(10), 10)
            for batch in run.batches([order[begin : begin + 2] for begin in range(0, 10, 2)]):
                seen.append(batch)
                model.value += 0.1 * (sum(batch) + random.random() - model.value)
                run.log(value=model.value)
                if run.iteration + 1 == stop:
                    run.stop("for today")
    clocks = {"epoch": run.epoch, "iteration": run.iteration, "step": run.step, "samples": run.samples}
    return {"seen": seen, "clocks": clocks, "weights": {"value": model.value.hex()}}


def team_in_an_epoch(workdir, epochs, stop=None):
    """A Runner on two ranks with DataParallel, stopped after 2 batches of epoch 2; each rank has 3 batches per epoch."""
    return by_runner(workdir, epochs, stop, seed=7)


if __name__ == "__main__":
    case, workdir, *counts = sys.argv[1:]
    result = json.dumps(globals()[case](workdir, *map(int, counts)))
    if "RESULTS" in os.environ:
        Path(os.environ["RESULTS"], f"rank{os.environ['RANK']}.json").write_text(result)
    else:
        print(result)
