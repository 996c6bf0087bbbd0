"""Write run.tar.xz: train a model with two weights, and replace everything that identifies this machine.

Run `python write.py` after a change to what a run writes. Keep the earlier archive too, under a different name.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import socket
import tarfile
import tempfile
from pathlib import Path

import torch

from hookpoint import LambdaCallback, Runner, control
from hookpoint import callbacks as cb

ARCHIVE = Path(__file__).with_name("run.tar.xz")


def train(workdir: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    inputs = torch.arange(8.0).view(8, 1) / 8
    data = inputs, 2 * inputs - 1

    def ask(run):
        if run.iteration == 1 and run.mode == "train":
            order = control(run.workdir).send("set", {"values": {"learning_rate": 0.25}})
            while order.answer() is None:
                pass

    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.125),
        torch.nn.MSELoss(),
        callbacks=[cb.ModelSaver(max_to_keep=1), cb.MinSaver("val_loss"), LambdaCallback(on_train_iter_begin=ask, name="ask")],
        extra_callbacks=[],
        workdir=workdir,
        name="current",
        config={"width": 1},
        log_every=2,
        seed=1,
    )
    runner.fit(data, data, epochs=2, batch_size=2)


def mask(folder: Path) -> None:
    """Replace everything that identifies this machine, as in earlier_runs."""
    masks = {
        "run.json": {"host": "example", "pid": 1, "folder": "/example", "command": "python write.py"},
        ".control/live.json": {"pid": 1, "boot": None, "started": None},
    }
    for name, values in masks.items():
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2) + "\n")


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    socket.gethostname, platform.platform = lambda: "example", lambda: "Linux"
    getpass.getuser, os.environ["GIT_DIR"] = lambda: "user", os.devnull
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        train("run")
        mask(Path("run"))
        (Path("run") / ".lock").unlink()
        with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
            archive.add("run", filter=anonymous)


if __name__ == "__main__":
    main()
