"""A training run in two processes, started by torchrun: python two_processes.py lightning|runner folder.

Each rank writes its rows, and the names of the files that it wrote, to rank-<number>.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from tests.adapters.hosts.lightning import UNAVAILABLE, module_class, trainer_of
from tests.adapters.record import LEARNING_RATE, Net, Record

from hookpoint import Runner, adapters
from hookpoint import callbacks as cb

EPOCHS, STOP_AT = 3, 6  # iterations; an epoch has four on each rank
WRITES = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1, "os.remove": 0, "os.truncate": 0}


def watch(folder: Path, written: list[str]) -> None:
    """Record every file below a folder that this process writes, renames or removes."""

    def note(event, args):
        path = None
        if event == "open":
            path = args[0] if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else None
        elif event in WRITES:
            path = args[WRITES[event]]
        if isinstance(path, str | os.PathLike) and Path(os.path.abspath(path)).is_relative_to(folder):
            written.append(f"{event} {os.path.relpath(path, folder)}")

    sys.addaudithook(note)


def stop(point, run):
    if point == "on_train_iter_end" and run.rank == 1 and run.iteration == STOP_AT:
        run.stop("rank 1 has enough")


def main(host: str, folder: Path) -> None:
    written: list[str] = []
    watch(folder, written)
    x = torch.rand(32, 2, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loaders = torch.utils.data.DataLoader(data, 4), torch.utils.data.DataLoader(torch.utils.data.Subset(data, range(8)), 4)
    record = Record(UNAVAILABLE | {"on_save"}, stop)
    callbacks = [record, cb.EarlyStopping("val_loss", patience=9), cb.ModelSaver()]
    if host == "lightning":
        adapter = adapters.lightning(callbacks, workdir=folder / "run")
        trainer = trainer_of(adapter, folder, strategy="ddp", devices=2, max_epochs=EPOCHS)
        trainer.fit(module_class()(), *loaders)
    else:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        options = {"extra_callbacks": [], "monitors": [], "device": "cpu", "workdir": folder / "run"}
        runner = Runner(model, optimizer, torch.nn.functional.mse_loss, callbacks=callbacks, **options)
        runner.fit(*loaders, epochs=EPOCHS)
    result = json.dumps({"rows": [row[:4] for row in record.rows], "written": written})
    Path(folder, f"rank-{os.environ['RANK']}.json").write_text(result)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
