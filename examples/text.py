"""Train a character language model in your own loop, on the documentation that ships with Python.

If you interrupt this script and start it again, it resumes in the middle of the epoch.
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
CHARACTERS = sorted(set(TEXT))
INDEX = {character: index for index, character in enumerate(CHARACTERS)}


class CharacterModel(nn.Module):
    """Predict the next character at each position of a text."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, len(CHARACTERS))

    def forward(self, characters: Tensor) -> Tensor:
        hidden, _ = self.gru(self.embedding(characters))
        scores: Tensor = self.head(self.dropout(hidden))
        return scores

    @torch.no_grad()
    def write(self, prompt: str, length: int) -> str:
        """Continue a text by sampling one character at a time."""
        generator = torch.Generator().manual_seed(0)
        characters = [INDEX[character] for character in prompt]
        for _ in range(length):
            probabilities = (self(torch.tensor([characters[-64:]]))[0, -1] / 0.5).softmax(0)
            characters.append(int(torch.multinomial(probabilities, 1, generator=generator)))
        return "".join(CHARACTERS[index] for index in characters)


def chunks(text: str, length: int = 64) -> TensorDataset:
    indices = torch.tensor([INDEX[character] for character in text])
    return TensorDataset(indices[: len(indices) // length * length].view(-1, length))


def main(workdir: str | None = "runs/text", epochs: int = 2, characters: int = 120_000) -> float:
    torch.manual_seed(0)
    train = DataLoader(chunks(TEXT[:characters]), batch_size=32, shuffle=True)
    val = DataLoader(chunks(TEXT[-20_000:]), batch_size=64)
    model = CharacterModel()
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
