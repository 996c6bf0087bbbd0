"""Train a GAN that generates points on a ring. One MainCallback trains two networks with two optimizers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from hookpoint import Callback, MainCallback, Run, Runner

NOISE = 8


def ring(count: int, *, seed: int) -> Tensor:
    """Return points near the unit circle."""
    generator = torch.Generator().manual_seed(seed)
    angle = 2 * math.pi * torch.rand(count, generator=generator)
    return torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(count, 2, generator=generator)


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs))


class Adversaries(MainCallback):
    """Train the discriminator ("critic") to recognize generated points, and the generator ("artist") to fool it."""

    def on_train_forward(self, run: Run) -> None:
        (real,) = run.batch
        run.outputs = run.model["artist"](torch.randn(len(real), NOISE))
        run.store["scores"] = run.model["critic"](torch.cat([real, run.outputs.detach()]))
        labels = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        run.loss = binary_cross_entropy_with_logits(run.store["scores"], labels)

    def on_iter_backward(self, run: Run) -> None:
        self._step(run, "critic", run.loss)
        scores = run.model["critic"](run.outputs)
        loss = binary_cross_entropy_with_logits(scores, torch.ones_like(scores))
        self._step(run, "artist", loss)
        run.log(artist_loss=loss)

    def _step(self, run: Run, name: str, loss: Tensor) -> None:
        optimizer = run.optimizer[name]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class DistanceFromRing(Callback):
    """After each epoch, log the mean distance of generated points from the ring. Callbacks work with any MainCallback."""

    writes = ("distance",)

    def on_epoch_end(self, run: Run) -> None:
        with torch.no_grad():
            points = run.model["artist"](torch.randn(1000, NOISE, generator=torch.Generator().manual_seed(0)))
        run.log(distance=(points.norm(dim=1) - 1).abs().mean())


def main(epochs: int = 20) -> float:
    torch.manual_seed(0)
    models = {"artist": network(NOISE, 2), "critic": network(2, 1)}
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.5, 0.99)) for name, model in models.items()}
    runner = Runner(models, optimizers, main=Adversaries(), callbacks=[DistanceFromRing()], seed=0, name="ring")

    run = runner.fit((ring(4096, seed=1),), epochs=epochs, batch_size=64)

    first, last = (run.monitors.get_history("distance")[index][1] for index in (0, -1))
    print(f"mean distance from the ring: {first:.2f} after epoch 1, {last:.2f} after epoch {run.epoch}")
    return float(last)


if __name__ == "__main__":
    main()
