"""prove: check that a run that is killed and resumed gives the same result as an uninterrupted run, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hookpoint.core.callback.lambda_callback import LambdaCallback
from hookpoint.core.errors import BadArgument, HookpointError
from hookpoint.core.loop.loop import EVERYWHERE
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say
from hookpoint.monitors.json_writer import JSONWriter
from hookpoint.steering.control_command import REPLAYED, ControlCommand
from hookpoint.steering.steering import Steering
from hookpoint.storage.checkpoint.encryption import FILE_VARIABLE, known_keys, load_key
from hookpoint.storage.json_rows import read_scalars
from hookpoint.storage.workdir.find_checkpoint import newest_good

Train = Callable[[Path], Any]
Commands = Mapping[int, tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Difference:
    """A difference between the uninterrupted and the resumed run: its location in the state or records, and both values."""

    where: str
    uninterrupted: str
    resumed: str

    def __str__(self) -> str:
        return f"{self.where}: {self.uninterrupted} without kills, {self.resumed} with kills"


@dataclass(frozen=True)
class Proof:
    """The result of `prove`.

    It contains the number of steps, the steps after which the run was killed, the number of compared values and records, and
    the differences.
    """

    steps: int
    killed_at: tuple[int, ...]
    values_compared: int
    records_compared: int
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        kills = f"{self.steps} steps, killed after step {', '.join(map(str, self.killed_at))} and resumed"
        compared = f"{self.values_compared} values of the state and {self.records_compared} records"
        if self.ok:
            return f"exact: {kills}; {compared} are identical, bit for bit"
        more = [f"  {difference}" for difference in self.differences[:20]]
        more += [f"  and {len(self.differences) - 20} more"] if len(self.differences) > 20 else []
        return "\n".join([f"NOT exact: {kills}; differences among {compared}:", *more])


def prove(
    make_runner: Train,
    *,
    kill_at: Sequence[int] = (),
    workdir: str | os.PathLike[str] | None = None,
    commands: Commands | None = None,
    key: str | os.PathLike[str] | None = None,
) -> Proof:
    """Check that killing and resuming a training run does not change a single bit of its weights, state or records.

    make_runner: Function that takes a workdir. It either returns a tuple of a Runner and a dict of arguments for `fit`, or
        trains in its own loop and returns None. It must save checkpoints; frequent checkpoints reduce the work that is
        repeated. It runs in new processes, so it must be a module-level function.
    kill_at: Steps after which a process is killed (SIGKILL). Defaults to a quarter, a half and three quarters of the run.
    workdir: A new folder to store the runs in.
    commands: Live-control commands to send after a step, such as `{40: ("set", {"values": {"learning_rate": 0.01}})}`. A
        resumed run replays the commands that were sent after its checkpoint.
    key: If the run encrypts its checkpoints, the path of a file that contains the key, or "env:NAME" for a key in an
        environment variable.

    `prove` compares both runs: the lines of scalars.jsonl, and the state in the last checkpoint. Times are ignored.

        def make_runner(workdir):
            torch.manual_seed(0)
            model = torch.nn.Linear(2, 1)
            saver = cb.ModelSaver().when(Every(steps=2))
            runner = Runner(model, torch.optim.Adam(model.parameters()), torch.nn.MSELoss(), callbacks=[saver], workdir=workdir)
            return runner, {"train": (torch.randn(20, 2), torch.randn(20, 1)), "epochs": 3, "batch_size": 4}

        if __name__ == "__main__":
            print(prove(make_runner, kill_at=[3, 8]))
    """
    if key is not None:
        load_key(key, argument="key")
    keys = known_keys()
    with nullcontext(workdir) if workdir is not None else TemporaryDirectory(prefix="hookpoint-prove-") as folder:
        uninterrupted, resumed = Path(folder) / "whole", Path(folder) / "resumed"
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (uninterrupted, resumed):
            if path.exists():
                raise BadArgument(f"prove: {path} already exists.", write="workdir= with a new folder")
        say("training without kills ...")
        given = _checked_commands(commands or {})
        _run(make_runner, uninterrupted, None, given, keys)
        expected = _last(uninterrupted)
        steps = expected["clocks"]["step"]
        stops = _kills(kill_at, steps)
        for stop in (*stops, None):
            say(f"training until the kill after step {stop} ..." if stop is not None else "training to the end ...")
            _run(make_runner, resumed, stop, given, keys)
        differences: list[Difference] = []
        count = _compare("", _comparable(expected), _comparable(_last(resumed)), differences)
        records = _compare_records(uninterrupted, resumed, differences)
        return Proof(steps, stops, count, records, tuple(differences))


def _train(make_runner: Train, workdir: Path, kill_after: int | None, commands: Commands, keys: Sequence[str]) -> None:
    """Train in this process, with seeded random number generators."""
    random.seed(0)
    for package, seed in (("numpy", "random.seed"), ("torch", "manual_seed")):
        if find_spec(package) is not None:
            attrgetter(seed)(import_module(package))(0)
    EVERYWHERE.append(LambdaCallback(name="hookpoint.prove keys", on_setup=partial(_check_key, keys)))
    if kill_after is not None:
        EVERYWHERE.append(LambdaCallback(name="hookpoint.prove kill", on_train_iter_end=partial(_kill, kill_after)))
    if commands:  # after the kill callback, so that no command is sent in the iteration in which the process is killed
        EVERYWHERE.append(LambdaCallback(name="hookpoint.prove commands", on_train_iter_end=partial(_command, commands)))
    result = make_runner(workdir)
    if isinstance(result, tuple):
        runner, arguments = result
        runner.fit(**arguments)


def _check_key(keys: Sequence[str], run: Run) -> None:
    """Raise BadArgument before the first step if the run encrypts its checkpoints with an unknown key.

    Without the key, `prove` could not compare the checkpoints.
    """
    fingerprint = getattr(machine_of(run).saving.store, "key_fingerprint", None)
    if fingerprint is not None and fingerprint not in keys:
        what = f"prove: the run encrypts its checkpoints with a key that was not given (fingerprint {fingerprint})."
        raise BadArgument(what, give="key= to prove, or --key to the command", set=f"{FILE_VARIABLE} to the file with the key")


def _kill(step: int, run: Run) -> None:
    """Kill the process after a step, before it saves a checkpoint."""
    if run.step >= step:
        os.kill(os.getpid(), signal.SIGKILL)


def _command(commands: Commands, run: Run) -> None:
    """Send this step's command, unless an earlier process has sent it. In that case, the run replays it from the journal."""
    if run.step in commands:
        steering: Any = machine_of(run).control
        if not isinstance(steering, Steering):
            raise BadArgument(
                "prove: commands= needs a run that accepts commands.",
                drop="control=False, or HOOKPOINT_CONTROL=0",
            )
        (do, args), given = commands[run.step], f"{run.step:020d}-{0:08x}"
        if given not in steering.journalled():
            steering.submit(ControlCommand(do, args, steering.attempt, given, by="hookpoint.prove"))


def _checked_commands(commands: Commands) -> Commands:
    for step, command in commands.items():
        if not isinstance(step, int) or not isinstance(command, tuple) or len(command) != 2 or command[0] not in REPLAYED:
            known = f"{{40: ({REPLAYED[0]!r}, {{...}})}}; a resumed run replays {', '.join(REPLAYED)}"
            raise BadArgument(f"prove: commands has the invalid entry {step!r}: {command!r}.", write=known)
    return commands


def _run(make_runner: Train, workdir: Path, kill_after: int | None, commands: Commands, keys: Sequence[str]) -> None:
    import multiprocessing  # not at the top, because this import adds the main module to sys.modules as `__mp_main__`

    given = (make_runner, workdir, kill_after, commands, keys)
    process = multiprocessing.get_context("spawn").Process(target=_train, args=given)
    process.start()
    try:
        process.join()
    except BaseException:
        process.kill()
        raise
    expected = 0 if kill_after is None else -signal.SIGKILL
    if process.exitcode != expected:
        problem = f"the run ended before step {kill_after}" if process.exitcode == 0 else "training failed; see above"
        raise HookpointError(f"{problem} (exit code {process.exitcode}).", check="make_runner, or kill_at")


def _kills(kill_at: Sequence[int], steps: int) -> tuple[int, ...]:
    stops = tuple(sorted(set(kill_at))) or tuple(sorted({max(1, steps * part // 4) for part in (1, 2, 3)}))
    if not all(isinstance(stop, int) and 0 < stop <= steps for stop in stops):
        raise BadArgument(f"prove: kill_at must be steps from 1 to {steps}, got {list(kill_at)}.")
    return stops


def _last(workdir: Path) -> Mapping[str, Any]:
    checkpoint = newest_good(workdir)
    if checkpoint is None:
        raise BadArgument("prove: make_runner must save checkpoints.", add="a saver, such as callbacks.ModelSaver()")
    return checkpoint.state


def _comparable(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state without times and without the sizes of files that contain times."""
    clocks = {name: value for name, value in state["clocks"].items() if name != "elapsed"}
    callbacks = {name: value for name, value in state["callbacks"].items() if not name.startswith(("JSON", "TFEvent"))}
    return {**state, "clocks": clocks, "callbacks": callbacks}


def _compare(where: str, expected: Any, actual: Any, differences: list[Difference]) -> int:
    """Compare two trees of values, append each difference to `differences`, and return the number of compared values."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        pairs = [(key, expected.get(key, "nothing"), actual.get(key, "nothing")) for key in {**expected, **actual}]
    elif isinstance(expected, list | tuple) and type(expected) is type(actual) and len(expected) == len(actual):
        pairs = list(zip(range(len(expected)), expected, actual, strict=True))
    else:
        if _bits(expected) != _bits(actual):
            differences.append(Difference(where, _shown(expected), _shown(actual)))
        return int(expected.numel()) if hasattr(expected, "numel") else 1
    return sum(_compare(f"{where}/{key}" if where else str(key), a, b, differences) for key, a, b in pairs)


def _bits(value: Any) -> Any:
    if hasattr(value, "numel"):
        import torch

        flat = value.detach().contiguous().reshape(-1)
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
    if hasattr(value, "tobytes"):
        return str(value.dtype), value.shape, value.tobytes()
    return type(value), struct.pack("<d", value) if isinstance(value, float) else value


def _shown(value: Any) -> str:
    return f"{value.dtype!s}{list(value.shape)}" if hasattr(value, "shape") else repr(value)[:60]


def _compare_records(uninterrupted: Path, resumed: Path, differences: list[Difference]) -> int:
    paths = [folder / JSONWriter().filename for folder in (uninterrupted, resumed)]
    rows = [[{**row, "time": None} for row in read_scalars(path)] if path.exists() else [] for path in paths]
    return _compare("scalars.jsonl", rows[0], rows[1], differences) and len(rows[0])
