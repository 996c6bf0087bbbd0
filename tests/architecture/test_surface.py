"""The public surface, frozen in surface.json: what users write, type and read back from files must not change unnoticed.

Run this file with Python to write surface.json anew, after a change that is meant: the diff shows what users will notice.
The wording of messages is not part of it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import torch

import hookpoint
from hookpoint import Callback, Every, Loop, Run, Runner, adapters, errors, monitors, on
from hookpoint import callbacks as cb
from hookpoint.cli import main as command_line

OF_THE_SCRIPT = ("git", "git_dirty")  # there or not, by how the tests are started
GOLDEN = Path(__file__).with_name("surface.json")


def signature(thing: Any) -> str:
    """Return the signature of a class or function, the same for every version of Python; protocols have none."""
    if getattr(thing, "_is_protocol", False):
        return "protocol"
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(thing)))
    except (TypeError, ValueError):
        return "none"


def names() -> dict[str, Any]:
    def of(package: Any, listed: list[str]) -> dict[str, str]:
        things = {name: getattr(package, name) for name in listed}
        return {name: signature(thing) for name, thing in things.items() if callable(thing)}

    raised = [name for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, Exception)]
    return {
        "hookpoint": of(hookpoint, hookpoint.__all__),
        "hookpoint.callbacks": of(cb, cb.__all__),
        "hookpoint.monitors": of(monitors, monitors.__all__),
        "hookpoint.adapters": of(adapters, adapters.__all__),
        "hookpoint.errors": {name: [base.__name__ for base in getattr(errors, name).__mro__[1:-1]] for name in sorted(raised)},
    }


def members() -> dict[str, Any]:
    """Return the public attributes and methods of the four classes everyone uses."""

    def of(thing: type) -> dict[str, str]:
        found = {name: inspect.getattr_static(thing, name) for name in dir(thing) if not name.startswith("_")}
        return {name: signature(one) if inspect.isroutine(one) else "attribute" for name, one in sorted(found.items())}

    return {one.__name__: of(one) for one in (Callback, Loop, Run, Runner)}


def commands() -> dict[str, Any]:
    """Return the commands with their options, and the exit code of a few calls."""
    group = command_line.main
    assert isinstance(group, click.Group)
    context = click.Context(group)
    found = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found[name] = sorted("/".join(sorted([*one.opts, *one.secondary_opts])) for one in command.params)
    return {"options": found, "exit codes": {" ".join(args): exit_code(args) for args in CALLS}}


CALLS = [
    ["--version"],
    ["--help"],
    ["points"],
    ["nonsense"],
    ["runs", "--nonsense"],
    ["show", "missing"],
    ["verify", "missing"],
    ["export", "missing"],
    ["explain", "missing:nothing"],
]


def exit_code(args: list[str]) -> int:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            command_line.main.main(args)
        except SystemExit as end:
            return int(end.code or 0)
    raise AssertionError("a command ends by exiting")


def fit(workdir: Path, *callbacks: Any, epochs: int = 2) -> Run:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = torch.randn(24, 2)
    data = inputs, (inputs.sum(dim=1) > 0).long()
    savers = [
        cb.ModelSaver(async_save=False).when(Every(steps=2)),
        cb.MinSaver("val_loss", async_save=False),
        cb.EarlyStopping("val_loss", patience=9),
    ]
    runner = Runner(
        model, optimizer, torch.nn.CrossEntropyLoss(), workdir=workdir, log_every=2, callbacks=[*savers, *callbacks]
    )
    return runner.fit(data, data, epochs=epochs, batch_size=8)


def own_loop(workdir: Path, *callbacks: Any) -> Run:
    with Loop([*callbacks, cb.ModelSaver(async_save=False)], workdir=workdir, state={"weight": Weight()}) as run:
        for _ in run.epochs(2):
            for number in run.batches([1.0, 2.0]):
                run.log(loss=number)
    return run


class Weight:
    value = 1.0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.value = state["value"]


def order() -> dict[str, Any]:
    """Return the order in which points fire, and the callbacks at each point, of a Runner and a Loop with the defaults."""
    found: dict[str, Any] = {}
    for name, train in (("Runner", fit), ("Loop", own_loop)):
        fired: list[str] = []

        def listener(point: str, fired: list[str] = fired) -> Any:
            @on(point)
            def say() -> None:
                fired.append(point)

            return say

        listeners = [
            listener(point.name)
            for point in hookpoint.points()
            if not (point.main_only or point.in_data) and point.name != "on_records"
        ]
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder), *listeners)
        with tempfile.TemporaryDirectory() as folder:
            run = train(Path(folder))
        calls = {point.name: [call.entry.name for call in run.hooks.calls(point.name)] for point in hookpoint.points()}
        at = {point: listed for point, listed in calls.items() if listed}
        found[name] = {"fired": fired, "callbacks": at}
    return found


def shape(value: Any) -> Any:
    """Return the keys of nested mappings, without the values."""
    if isinstance(value, Mapping):
        kept = {key: one for key, one in value.items() if key not in OF_THE_SCRIPT}
        return {re.sub(r"(?<=tfevents).*", "", str(key)): shape(one) for key, one in kept.items()}
    return None


def files() -> dict[str, Any]:
    """Return the keys in everything that a run writes."""
    from hookpoint.storage.checkpoint_store import CheckpointStore

    found: dict[str, Any] = {}
    for name, train in (("Runner", fit), ("Loop", own_loop)):
        with tempfile.TemporaryDirectory() as folder:
            workdir = Path(folder) / "run"
            train(workdir)
            kept = sorted(path.name for path in (workdir / "checkpoints").iterdir())
            newest = next(path for path in sorted((workdir / "checkpoints").glob("step-*"), reverse=True))
            records_of = {
                file: [json.loads(line) for line in (workdir / file).read_text().splitlines()]
                for file in ("scalars.jsonl", "events.jsonl")
                if (workdir / file).exists()
            }
            found[name] = {
                "folder": sorted(path.name for path in workdir.iterdir()),
                "checkpoints": kept,
                "checkpoint": sorted(path.name for path in newest.iterdir()),
                "manifest.json": shape(json.loads((newest / "manifest.json").read_text())),
                "run.json": shape(json.loads((workdir / "run.json").read_text())),
                **{file: sorted({" ".join(sorted(one)) for one in records}) for file, records in records_of.items()},
            }
            store = CheckpointStore(workdir)
            try:
                checkpoint = store.open("must", {})
                assert checkpoint is not None
                found[name]["state"] = shape(checkpoint.state)
            finally:
                store.close()
    return found


def lines(value: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each leaf, so that a failure shows what is new and what is gone."""
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from lines(one, f"{path}/{key}")
    else:
        yield f"{path} = {json.dumps(value)}"


PARTS = {"names": names, "members": members, "commands": commands, "order": order, "files": files}


@pytest.mark.parametrize("part", PARTS)
def test_the_public_surface_is_unchanged(part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, expected = set(lines(PARTS[part]())), set(lines(json.loads(GOLDEN.read_text())[part]))
    assert sorted(found - expected) == sorted(expected - found) == []


if __name__ == "__main__":
    with contextlib.redirect_stderr(io.StringIO()):
        GOLDEN.write_text(json.dumps({name: make() for name, make in PARTS.items()}, indent=1, sort_keys=True) + "\n")
