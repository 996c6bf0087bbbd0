"""The public surface is frozen in surface.json: names, commands and file formats must not change unnoticed.

Run this file with Python to rewrite surface.json after an intended change: the diff shows what users will notice.
The wording of messages is not included.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import torch

import hookpoint
from hookpoint import Callback, Every, LambdaCallback, Loop, Run, Runner, adapters, errors, monitors, on
from hookpoint import callbacks as cb
from hookpoint.cli import ctl
from hookpoint.cli import main as command_line
from hookpoint.run_folder import command_error

DOCS = Path(__file__).parents[2] / "docs"
OF_TORCH = ("counters", "param_groups")  # their keys depend on the torch version
OF_THE_SCRIPT = ("git", "git_dirty")  # present or not, depending on how the tests are started
GOLDEN = Path(__file__).with_name("surface.json")


def signature(thing: Any) -> str:
    """Return the signature of a class or function, independent of the Python version; protocols have none."""
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
        "hookpoint.errors: attributes": {name: attributes_of(getattr(errors, name)) for name in sorted(raised)},
        "hookpoint.errors: signatures": {name: signature_of_init(getattr(errors, name)) for name in sorted(raised)},
        "hookpoint.errors": {name: [base.__name__ for base in getattr(errors, name).__mro__[1:-1]] for name in sorted(raised)},
    }


def signature_of_init(kind: type) -> str:
    return signature(kind.__init__) if inspect.isfunction(kind.__init__) else "none"


def attributes_of(kind: type[Exception]) -> list[str]:
    """Return the public attributes that an error's constructor sets. Some, such as errno, are slots of a builtin base class."""
    samples = {"int": 1, "int | None": 1, "float": 1.0, "str": "x", "str | None": "x", "bool": True, "Iterable[str]": ["x"]}
    given, named = [], {}
    if inspect.isfunction(kind.__init__):
        for one in list(inspect.signature(kind.__init__).parameters.values())[1:]:
            value = samples.get(one.annotation, 1)
            if one.kind is one.KEYWORD_ONLY:
                named[one.name] = value
            elif one.kind is not one.VAR_KEYWORD:
                given.append(value)
    error = kind(*given, **named)
    found = {name: getattr(error, name, None) for name in dir(error) if not name.startswith("_")}
    ours = {name for name, value in found.items() if value is not None and not callable(value)}
    return sorted(ours - set(dir(Exception)))


def members() -> dict[str, Any]:
    """Return the public attributes and methods of the four main classes."""

    def of(thing: type) -> dict[str, str]:
        found = {name: inspect.getattr_static(thing, name) for name in dir(thing) if not name.startswith("_")}
        return {name: signature(one) if inspect.isroutine(one) else "attribute" for name, one in sorted(found.items())}

    return {one.__name__: of(one) for one in (Callback, Loop, Run, Runner)}


def instances() -> dict[str, Any]:
    """Return the public attributes of a Runner, a Loop and a Run, during and after training."""

    def of(thing: Any) -> set[str]:
        slots = {name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ()) if hasattr(thing, name)}
        return {name for name in {*slots, *getattr(thing, "__dict__", ())} if not name.startswith("_")}

    found: dict[str, set[str]] = {}

    def look(run: Run) -> None:
        for thing in (run, runner, loop):
            found.setdefault(type(thing).__name__, set()).update(of(thing))

    with tempfile.TemporaryDirectory() as folder:
        model, data = small_model()
        looking = [LambdaCallback(on_iter_end=look)]
        runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(), callbacks=looking)
        loop = Loop(looking, workdir=Path(folder) / "loop")
        look(runner.fit(data, data, epochs=1, batch_size=8))
        with loop as run:
            for _ in run.epochs(1):
                for number in run.batches([1.0]):
                    run.log(loss=number)
        look(run)
    return {name: sorted(names) for name, names in found.items()}


def commands() -> dict[str, Any]:
    """Return the commands with their options, the exit codes, and the exit code of a few calls."""
    group = command_line.main
    assert isinstance(group, click.Group)
    context = click.Context(group)
    found = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found[name] = sorted("/".join(sorted([*one.opts, *one.secondary_opts])) for one in command.params)
    codes = {" ".join(args): exit_code(args) for args in CALLS}
    return {"options": found, "exit codes": codes, "exit code names": exit_codes(), "exit codes of a run": codes_of_a_run()}


def exit_codes() -> dict[str, int]:
    """Return the exit codes of the command line by their names in the source."""
    found = {name: value for name, value in vars(command_error).items() if name.isupper() and isinstance(value, int)}
    return {**found, "AGAIN": ctl.AGAIN}


def codes_of_a_run() -> dict[str, int]:
    """Return the exit codes of calls about a run: good, in progress, damaged, or without records."""
    found = {}

    def call(name: str, *args: str) -> None:
        found[name] = exit_code([*args, str(workdir)] if len(args) == 1 else [args[0], str(workdir), *args[1:]])

    def during(run: Run) -> None:
        if run.iteration == 1:
            call("show, in progress", "show")
            call("clean, in progress", "clean", "--yes")
            call("ctl, in progress", "ctl", "--json")
            call("ctl, withdrawn", "ctl", "pause", "--timeout", "0.1")
            call("ctl, unknown command", "ctl", "nonsense")

    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        own_loop(workdir, LambdaCallback(on_train_iter_begin=during))
        call("ctl, ended", "ctl", "pause")
        call("verify", "verify")
        call("export", "export", "-o", str(Path(folder) / "table.csv"))
        call("export, no such folder", "export", "-o", str(Path(folder) / "missing" / "table.csv"))
        call("clean, nothing to delete", "clean", "--yes")
        state = next((workdir / "checkpoints" / "last").glob("state.*"))
        state.write_bytes(state.read_bytes() + b"x")
        call("verify, damaged", "verify")
        (workdir / "scalars.jsonl").unlink()
        call("export, no records", "export", "-o", str(Path(folder) / "table.csv"))
    return found


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


def small_model() -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """Return a model with its data."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    inputs = torch.randn(24, 2)
    return model, (inputs, (inputs.sum(dim=1) > 0).long())


def fit(workdir: Path, *callbacks: Any, epochs: int = 2, **options: Any) -> Run:
    model, data = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    savers = [
        cb.ModelSaver(async_save=False).when(Every(steps=2)),
        cb.MinSaver("val_loss", async_save=False),
        cb.EarlyStopping("val_loss", patience=9),
    ]
    runner = Runner(
        model,
        optimizer,
        torch.nn.CrossEntropyLoss(),
        workdir=workdir,
        log_every=2,
        callbacks=[*savers, *callbacks],
        **options,
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
    """Return the keys of nested mappings, without the values. "x[]" has the keys of all mappings in the list "x"."""
    if not isinstance(value, Mapping):
        return None
    found: dict[str, Any] = {}
    for name, one in value.items():
        if name not in OF_THE_SCRIPT:
            key = re.sub(r"(?<=tfevents).*", "", str(name))
            found[key] = shape(one) if name not in OF_TORCH else None
            inside = list(mappings_in(one)) if name not in OF_TORCH else []
            if inside:
                found[f"{key}[]"] = merged(map(shape, inside))
    return found


def mappings_in(value: Any) -> Iterator[Mapping[Any, Any]]:
    """Yield the mappings in a list or tuple, and in the lists and tuples inside it."""
    for one in value if isinstance(value, list | tuple) else ():
        if isinstance(one, Mapping):
            yield one
        else:
            yield from mappings_in(one)


def merged(shapes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in shapes:
        for key, inner in one.items():
            found[key] = merged([found[key], inner]) if inner and found.get(key) else found.get(key) or inner
    return found


def files() -> dict[str, Any]:
    """Return the keys in all files that a run writes."""
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


def control_files() -> dict[str, Any]:
    """Return the keys in the files in .control/ of a run with three commands, the last of them forgotten."""
    found: dict[str, Any] = {}

    def read(path: Path) -> Any:
        return json.loads(path.read_text())

    def command(run: Run) -> None:
        if run.iteration != 1 or run.mode != "train":
            return
        folder = Path(run.workdir) / ".control"
        controller = hookpoint.control(run.workdir)
        values, before = {"learning_rate": 0.5}, {"learning_rate": 0.01}
        sent = [
            controller.send("set", {"values": values}, expect=before),
            controller.send("save", {"tag": "mine"}),
            controller.send("validate"),
        ]
        found["inbox"] = merged(shape(read(folder / "inbox" / f"{order.id}.json")) for order in sent)
        until = time.monotonic() + 60
        while not all(order.answer() for order in sent):
            assert time.monotonic() < until
            time.sleep(0.01)
        found["answers: seen"] = merged(shape(read(folder / "answers" / f"{order.id}.json")) for order in sent)

    with tempfile.TemporaryDirectory() as workdir:
        run = fit(Path(workdir), LambdaCallback(on_train_iter_end=command))
        controller, folder = hookpoint.control(workdir), Path(workdir) / ".control"
        shutil.rmtree(Path(workdir) / "checkpoints")  # a command that a checkpoint includes cannot be forgotten
        controller.forget(controller.journal()[-1].number)
        records = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
        answers = [read(path) for path in (folder / "answers").iterdir()]
        assert run.epoch == 2
        assert {one["status"] for one in answers} == {"applied"}
        found["folder"] = sorted(path.name for path in folder.iterdir())
        found["live.json"] = shape(read(folder / "live.json"))
        found["answers: applied"] = merged(map(shape, answers))
        found["journal.jsonl"] = merged(shape(one) for one in records if "forget" not in one)
        found["journal.jsonl: forgotten"] = merged(shape(one) for one in records if "forget" in one)
    return found


def encrypted_files() -> dict[str, Any]:
    """Return the files of an encrypted checkpoint, and the keys of its manifest."""
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "run.key"
        key.write_bytes(bytes(range(32)))
        key.chmod(0o600)
        fit(Path(folder) / "run", checkpoint_key=key)
        checkpoint = Path(folder) / "run" / "checkpoints" / "last"
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        return {"checkpoint": sorted(path.name for path in checkpoint.iterdir()), "manifest.json": shape(manifest)}


def lines(value: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each leaf, so that a failure shows additions and removals."""
    if isinstance(value, Mapping) and value:
        for key, one in value.items():
            yield from lines(one, f"{path}/{key}")
    else:
        yield f"{path} = {json.dumps(value)}"


PARTS = {
    "names": names,
    "members": members,
    "instances": instances,
    "commands": commands,
    "order": order,
    "files": files,
    "control files": control_files,
    "encrypted files": encrypted_files,
}


@pytest.mark.parametrize("part", PARTS)
def test_the_public_surface_is_unchanged(part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, expected = set(lines(PARTS[part]())), set(lines(json.loads(GOLDEN.read_text())[part]))
    assert sorted(found - expected) == sorted(expected - found) == []


def test_the_documented_exit_codes_match_the_source():
    _, _, section = (DOCS / "command-line.md").read_text().partition("## Exit codes")
    documented = [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]
    assert documented == sorted(exit_codes().values())
    assert [int(code) for code in re.findall(r"^  (\d+) ", command_line.EPILOG, re.MULTILINE)] == documented


# Tests that the checks above can fail


def test_attributes_of_errors_are_found():
    class Located(KeyError):
        def __init__(self, path: str, *, line: int) -> None:
            super().__init__(path)
            self.path, self.line, self._why = path, line, "damage"

    class Unreadable(OSError):
        def __init__(self, errno: int | None = None) -> None:
            super().__init__("x")
            self.errno = errno

    assert attributes_of(Located) == ["line", "path"]
    assert attributes_of(Unreadable) == ["errno"]
    assert attributes_of(StopIteration) == []


def test_keys_in_lists_are_found():
    rows = [{"step": 1}, [{"step": 2, "tags": {"best": 1}}], 3, {"tags": {"last": 1}}]
    expected = {"rows": None, "rows[]": {"step": None, "tags": {"best": None, "last": None}}, "git": None, "one": {"a": None}}
    assert shape({"rows": rows, "git": "", "one": {"a": []}}) == {
        key: one for key, one in expected.items() if key not in OF_THE_SCRIPT
    }


if __name__ == "__main__":
    with contextlib.redirect_stderr(io.StringIO()):
        GOLDEN.write_text(json.dumps({name: make() for name, make in PARTS.items()}, indent=1, sort_keys=True) + "\n")
