"""Train a small residual network on handwritten digits, with many callbacks. `hookpoint demo` runs this script.

Interrupt it and start it again: it resumes, and ends with the same weights as an uninterrupted run.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import hookpoint
from hookpoint import Callback, Run, Runner
from hookpoint import callbacks as cb

Data = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.convolutions(x) + self.shortcut(x))


def residual_network(width: int = 32) -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        Block(width, width),
        Block(width, 2 * width, stride=2),
        Block(2 * width, 4 * width, stride=2),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)),
    )


class Distort(Callback):
    """Augment training images: rotate, scale and shift each one at random."""

    def on_train_iter_begin(self, run: Run) -> None:
        images, labels = run.batch
        count = len(images)
        angle, scale = 0.4 * (torch.rand(count) - 0.5), 1 + 0.2 * (torch.rand(count) - 0.5)
        rotation = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).view(count, 2, 2) * scale.view(
            -1, 1, 1
        )
        shift = 0.25 * (torch.rand(count, 2, 1) - 0.5)
        grid = F.affine_grid(torch.cat([rotation, shift], dim=2), list(images.shape), align_corners=False)
        run.batch = F.grid_sample(images, grid, align_corners=False), labels


def digits() -> tuple[Data, Data, Data]:
    """Return 1,797 images of 8 by 8 pixels, split into training, validation and test data."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    inputs, targets = torch.tensor(images).float().view(-1, 1, 8, 8)[order] / 16, torch.tensor(labels)[order]
    train, val, test = zip(inputs.split([1197, 240, 360]), targets.split([1197, 240, 360]), strict=True)
    return train, val, test


def everything_else(val: Data, epochs: int) -> list[Callback]:
    return [
        cb.InferenceRunner(  # measure the validation error each epoch
            val,
            [cb.ClassificationError("wrong-top1", "val-error-top1"), cb.ClassificationError("wrong-top5", "val-error-top5")],
            batch_size=240,
        ),
        cb.ModelSaver(max_to_keep=3),  # save a checkpoint each epoch
        cb.MinSaver("val-error-top1"),  # keep the best checkpoint
        cb.ScheduledHyperParamSetter("learning_rate", [(0, 0.05), (1 + epochs // 2, 0.005), (2 + epochs * 8 // 10, 0.0005)]),
        cb.HumanHyperParamSetter("learning_rate"),  # write "learning_rate: 0.01" to hyper.txt in the workdir
        # SendStat runs a command each epoch. To send a message to a phone instead, pass url="tgram://...".
        cb.SendStat(["echo", "validation error is {val-error-top1}"], "val-error-top1"),
        cb.GPUUtilizationTracker(),
        cb.InjectShell(shell="python"),  # `touch INJECT_SHELL.tmp` in the workdir opens a shell in the run
        cb.ThroughputTracker(),
        cb.SummaryCollector(collect_freq=100),  # histograms of weights and gradients for TensorBoard
        cb.ScalarPrinter(whitelist=["loss", "rate", "top1"]),  # print only these values; the other monitors write all values
    ]


def train(workdir: str = "runs/digits", epochs: int = 40, resume: str = "auto") -> None:
    train_data, val, test = digits()
    torch.set_num_threads(1)  # more threads would only slow down a network this small
    torch.manual_seed(0)
    model = residual_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    callbacks = [Distort(), *everything_else(val, epochs)]
    runner = Runner(
        model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, workdir=workdir, name="digits", resume=resume, seed=0
    )
    runner.fit(train_data, epochs=epochs, batch_size=32)

    model.load_state_dict(hookpoint.load_weights(f"{workdir}/checkpoints/best-val-error-top1"))
    correct = (torch.cat(runner.predict(test, batch_size=90)).argmax(1) == test[1]).sum()
    print(f"test accuracy of the best checkpoint after {epochs} epochs: {correct / 360:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", default="runs/digits")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--resume", default="auto", help="auto, never, must, or a checkpoint path")
    train(**vars(parser.parse_args()))
