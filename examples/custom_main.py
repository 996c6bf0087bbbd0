"""Two networks, two optimizers, one MainCallback: a GAN that learns to put points on a ring. Run it with python."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from hookpoint import Callback, MainCallback, Run, Runner

NOISE = 8


def ring(number: int, *, seed: int) -> Tensor:
    """Return points close to the circle of radius 1."""
    dice = torch.Generator().manual_seed(seed)
    angle = 2 * math.pi * torch.rand(number, generator=dice)
    return torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(number, 2, generator=dice)


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs))


class Adversaries(MainCallback):
    """Train the critic to tell real points from made ones, and the artist to be taken for real."""

    def on_train_forward(self, run: Run) -> None:
        (real,) = run.batch
        run.outputs = run.model["artist"](torch.randn(len(real), NOISE))
        run.store["judged"] = run.model["critic"](torch.cat([real, run.outputs.detach()]))
        are_real = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        run.loss = binary_cross_entropy_with_logits(run.store["judged"], are_real)

    def on_iter_backward(self, run: Run) -> None:
        self._step(run, "critic", run.loss)
        judged = run.model["critic"](run.outputs)
        loss = binary_cross_entropy_with_logits(judged, torch.ones_like(judged))
        self._step(run, "artist", loss)
        run.log(artist_loss=loss)

    def _step(self, run: Run, name: str, loss: Tensor) -> None:
        optimizer = run.optimizer[name]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class DistanceFromRing(Callback):
    """Log how far made points are from the ring, each epoch. Any callback works beside any MainCallback."""

    writes = ("distance",)

    def on_epoch_end(self, run: Run) -> None:
        with torch.no_grad():
            made = run.model["artist"](torch.randn(1000, NOISE, generator=torch.Generator().manual_seed(0)))
        run.log(distance=(made.norm(dim=1) - 1).abs().mean())


def main(epochs: int = 20) -> float:
    torch.manual_seed(0)
    models = {"artist": network(NOISE, 2), "critic": network(2, 1)}
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.5, 0.99)) for name, model in models.items()}
    runner = Runner(models, optimizers, main=Adversaries(), callbacks=[DistanceFromRing()], seed=0, name="ring")

    run = runner.fit((ring(4096, seed=1),), epochs=epochs, batch_size=64)

    first, last = (run.monitors.get_history("distance")[place][1] for place in (0, -1))
    print(f"made points are {last:.2f} from the ring, after {run.epoch} epochs; they were {first:.2f} from it after the first")
    return float(last)


if __name__ == "__main__":
    main()
