"""A language model of letters in a loop of one's own, trained on the documentation that ships with Python.

Run it with python. Interrupt it and start it again: it goes on in the middle of the epoch.
"""

from __future__ import annotations

import argparse
from pydoc_data import topics

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from hookpoint import Every, Loop
from hookpoint import callbacks as cb

TEXT = "\n".join(topics.topics.values())
LETTERS = sorted(set(TEXT))
NUMBER = {letter: number for number, letter in enumerate(LETTERS)}


class LetterModel(nn.Module):
    """Say for each place in a text how likely each letter is to come next."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, letters: Tensor) -> Tensor:
        remembered, _ = self.memory(self.embedding(letters))
        scores: Tensor = self.head(self.dropout(remembered))
        return scores

    @torch.no_grad()
    def write(self, begin: str, number: int) -> str:
        """Go on with a text, letter by letter, always with a likely one."""
        dice = torch.Generator().manual_seed(0)
        letters = [NUMBER[letter] for letter in begin]
        for _ in range(number):
            chances = (self(torch.tensor([letters[-64:]]))[0, -1] / 0.5).softmax(0)
            letters.append(int(torch.multinomial(chances, 1, generator=dice)))
        return "".join(LETTERS[letter] for letter in letters)


def pieces(text: str, length: int = 64) -> TensorDataset:
    numbers = torch.tensor([NUMBER[letter] for letter in text])
    return TensorDataset(numbers[: len(numbers) // length * length].view(-1, length))


def main(workdir: str | None = "runs/text", epochs: int = 2, letters: int = 120_000) -> float:
    torch.manual_seed(0)
    train = DataLoader(pieces(TEXT[:letters]), batch_size=32, shuffle=True)
    val = DataLoader(pieces(TEXT[-20_000:]), batch_size=64)
    model = LetterModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    callbacks = [cb.MinSaver("val_loss"), cb.ModelSaver().when(Every(steps=50))] if workdir else []

    def loss_of(batch: list[Tensor]) -> Tensor:
        return cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    with Loop(callbacks, model=model, optimizer=optimizer, workdir=workdir, name="text") as run:
        for _ in run.epochs(epochs):
            model.train()
            for batch in run.batches(train):
                loss = loss_of(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
            model.eval()
            with torch.no_grad():
                for batch in run.batches(val, mode="val"):
                    run.log(loss=loss_of(batch))

    print(model.eval().write("The for statement ", 120))
    return float(run.metrics["val_loss"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", default="runs/text")
    parser.add_argument("--epochs", type=int, default=2)
    main(**vars(parser.parse_args()))
