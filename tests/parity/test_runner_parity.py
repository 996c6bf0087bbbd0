"""A Runner's weights equal those of the bare loop below, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookpoint import Callback, Every, on
from hookpoint.engine.runner import Runner

EPOCHS = 3


def make(optimizer: str, scheduler: str):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    if optimizer == "SGD":
        steps = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        steps = torch.optim.AdamW(model.parameters(), lr=0.01)
    if scheduler == "plateau":
        rates = torch.optim.lr_scheduler.ReduceLROnPlateau(steps, factor=0.5, patience=0, threshold=0.5)
    else:
        rates = torch.optim.lr_scheduler.StepLR(steps, step_size=1, gamma=0.7)
    features = torch.randn(70, 6)
    labels = torch.randint(0, 3, (70,))
    train = DataLoader(TensorDataset(features, labels), batch_size=8, shuffle=True)
    val = DataLoader(TensorDataset(features[:20], labels[:20]), batch_size=8)
    torch.manual_seed(11)
    return model, steps, rates, train, val


def bare_loop(model, optimizer, scheduler, train, val, *, bf16: bool, accumulate: int, clip: float | None) -> None:
    criterion = nn.CrossEntropyLoss()
    for _ in range(EPOCHS):
        model.train()
        for number, (inputs, targets) in enumerate(train, 1):
            if (number - 1) % accumulate == 0:
                optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = criterion(model(inputs), targets)
            (loss / accumulate if accumulate > 1 else loss).backward()
            if number % accumulate == 0 or number == len(train):
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
        model.eval()
        losses = []
        with torch.no_grad():
            for inputs, targets in val:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                    losses.append((criterion(model(inputs), targets).item(), len(targets)))
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(sum(loss * count for loss, count in losses) / sum(count for _, count in losses))
        else:
            scheduler.step()


class Busy(Callback):
    """Listen to points, log and read values; none of this may change the training."""

    def on_train_iter_end(self, run, loss, outputs):
        run.log(margin=outputs.detach().amax(1).mean())

    def on_epoch_end(self, logs):
        assert logs["loss"] > 0


@on("on_step_end", when=Every(steps=3))
def look(run):
    assert run.step % 3 == 0


@pytest.mark.thin(22)  # every third case, which covers all pairs of options
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("clip", [None, 0.5], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("scheduler", ["plateau", "steps"])
@pytest.mark.parametrize("callbacks", [[], [Busy(), look]], ids=["quiet", "callbacks"])
def test_weights_equal_those_of_a_bare_loop_bit_for_bit(optimizer, bf16, accumulate, clip, scheduler, callbacks):
    model, steps, rates, train, val = make(optimizer, scheduler)
    bare_loop(model, steps, rates, train, val, bf16=bf16, accumulate=accumulate, clip=clip)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    expected_rate = steps.param_groups[0]["lr"]

    model, steps, rates, train, val = make(optimizer, scheduler)
    runner = Runner(
        model,
        steps,
        nn.CrossEntropyLoss(),
        lr_scheduler=rates,
        precision="bf16" if bf16 else "32",
        accumulate=accumulate,
        clip_grad_norm=clip,
        callbacks=callbacks,
        device="cpu",
    )
    runner.fit(train, val, epochs=EPOCHS)

    assert steps.param_groups[0]["lr"] == expected_rate
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
