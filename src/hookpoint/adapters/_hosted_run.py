"""HostedRun: the code that all adapters share."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypedDict, TypeVar

from hookpoint.adapters._hosted_folder import HostedFolder
from hookpoint.core.callback.default_callbacks import with_defaults
from hookpoint.core.checkpoint.host_store import HostStore
from hookpoint.core.errors import BadArgument, OutsideRun
from hookpoint.core.loop.host import Host
from hookpoint.core.loop.host_driver import HostDriver
from hookpoint.core.team.team import Team
from hookpoint.steering.steering_option import steering_for
from hookpoint.storage.checkpoint.layout import safe_name
from hookpoint.storage.checkpoint.state_bytes import packed, unpacked
from hookpoint.storage.disk import disk

# Features that no other library's trainer supports. Each adapter adds the features that its trainer does not support.
UNAVAILABLE = {
    "on_batch_fetch_begin": "it fetches batches itself",
    "on_batch_fetch_end": "it fetches batches itself",
    "on_iter_error": "it handles errors in its steps itself",
}
NO_SKIPS = {"on_iter_skip": "it computes every batch"}


class Options(TypedDict, total=False):
    """The options that every adapter accepts. They have the same meaning as in `hookpoint.Loop`.

    The default monitors write TensorBoard files and JSON lines to the workdir. There is no progress bar and no printed output,
    because the trainer has its own.
    """

    workdir: str | os.PathLike[str] | None
    name: str
    extra_callbacks: Iterable[Any] | None
    monitors: Iterable[Any] | None
    log_every: int
    samples: Callable[[Any], int] | None
    config: Any
    state: Mapping[str, Any] | None
    wait_seconds: float
    control: bool


class HostedRun:
    """Callbacks in another library's trainer.

    Each adapter has one HostedRun, which compiles the callbacks once and starts one run per fit.

    The adapter calls `start` when the trainer begins, methods of `driver` when the trainer fires an event, and `finish` at the
    end or `fail(error)` after an error. If the trainer ended the last run without firing an event, `start` first ends that run
    with an error.

    - `wrap(owner, method, function)` replaces an object's method, and `undo(function)` registers a cleanup function, such as a
      hook's `remove`. When the run ends, even with an error, all changes are undone in reverse order.
    - `state()` returns the state for the trainer's checkpoint as bytes, in hookpoint's own encoding, which is safe to load.
      To resume from this checkpoint, pass these bytes to `start`. `write_state(path)` and `read_state(path)` use a file
      instead.
    - `@guarded` on an adapter's method ends the run with an error if a callback raises. The error propagates.
    - `ErrorsFromWith` is for trainers that have no event for errors. Errors inside `with adapter:` are reported.
    """

    def __init__(
        self,
        callbacks: Any,
        host: Host,
        options: Mapping[str, Any],
        *,
        save: Callable[[Sequence[str], int], Any] | None = None,
    ) -> None:
        if unknown := sorted(options.keys() - Options.__annotations__.keys()):
            known = ", ".join(Options.__annotations__)
            raise BadArgument(f"the adapter for {host.name} has no option {unknown[0]!r}.", options=known)
        chosen = dict(options)
        workdir = chosen.get("workdir")
        self._store = HostStore(save) if workdir is None else HostedFolder(workdir, save)
        listed = _with_defaults(callbacks, chosen.pop("extra_callbacks", None), chosen.pop("monitors", None), workdir)
        chosen["team"] = partial(_team, chosen.pop("wait_seconds", 600.0))
        chosen["control"] = steering_for(workdir, control=chosen.pop("control", True))
        self.driver = HostDriver(listed, host, store=self._store, **chosen)
        self._undo = ExitStack()

    # The run

    @property
    def is_running(self) -> bool:
        return self.driver.is_running

    def start(self, *, state: bytes | None = None, source: str = "the state in the checkpoint", **facts: Any) -> None:
        """Begin a run.

        `facts` are passed to `HostDriver.start_run`. `source` describes where the state comes from, for error messages.
        """
        self.abandon()
        saved = None if state is None else unpacked(state, source)
        self.driver.start_run(state=saved, **_torch_options(), **facts)
        try:
            # A state that cannot be saved raises here, before the first step.
            packed({"callbacks": self.driver.hooks.state_dict()})
        except BaseException as error:
            self.fail(error)
            raise

    def abandon(self) -> None:
        """If the trainer ended the last run without firing an event, end that run with an error."""
        name = self.driver.host.name
        if self.is_running:
            self.fail(OutsideRun(f"{name} ended the last run without an event.", use="the adapter in a with statement"))

    def finish(self) -> None:
        """End the run. Raise errors from callbacks."""
        with self._undo.pop_all():
            self.driver.finish_run()

    def fail(self, error: BaseException) -> None:
        """End the run after an error, if a run is in progress. Further errors are added to this error as notes."""
        if not self.is_running:
            self.clean_up()
            return
        try:
            with self._undo.pop_all():
                self.driver.finish_run(error)
        except BaseException as other:
            if other is not error:
                error.add_note(f"the end of the run also failed: {type(other).__name__}: {other}")

    # Changes that a run makes to the trainer

    def undo(self, function: Callable[[], object]) -> None:
        """Call a function when the run ends."""
        self._undo.callback(function)

    def wrap(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Replace a method of an object until the run ends."""
        attributes = vars(owner)
        if name in attributes:
            self.undo(partial(setattr, owner, name, attributes[name]))
        else:
            self.undo(partial(delattr, owner, name))
        setattr(owner, name, function)

    def clean_up(self) -> None:
        """Undo the changes that the run made to the trainer."""
        self._undo.pop_all().close()

    # State

    @property
    def can_save(self) -> bool:
        """Whether there is a state to save. This is True during a run and while a checkpoint is being written."""
        return self.is_running or self._store.state is not None

    def state(self) -> bytes:
        """Return the callbacks' state, for the trainer's checkpoint."""
        state = self.driver.state() if self._store.state is None else self._store.state
        return packed({name: value for name, value in state.items() if name not in ("finite", "per_rank")})

    def write_state(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file, atomically."""
        disk.replace(Path(path), self.state())

    def read_state(self, path: str | os.PathLike[str]) -> bytes | None:
        """Return the contents of a state file, or None if there is no such file."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None


def copy_for_tags(path: Path, tags: Sequence[str], suffix: str) -> None:
    """Copy one of the trainer's checkpoints so that each tag has its own file or folder."""
    for tag in tags:
        target = path.with_name(safe_name(str(tag)) + suffix)
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        elif target != path:
            staged = target.with_name(disk.hidden("staging", target.name))
            shutil.copyfile(path, staged)
            os.replace(staged, target)


class Hosted(Protocol):
    """An adapter, which stores its HostedRun in the attribute `hosted`."""

    hosted: HostedRun


Adapter = TypeVar("Adapter", bound=Hosted)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def guarded(
    method: Callable[Concatenate[Adapter, Arguments], Result],
) -> Callable[Concatenate[Adapter, Arguments], Result]:
    """End the run with an error if this adapter method raises: on_exception and on_run_end fire, and the error propagates."""

    @functools.wraps(method)
    def call(self: Adapter, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            self.hosted.fail(error)
            raise

    return call


class ErrorsFromWith:
    """An adapter that reports its trainer's errors if training runs inside `with adapter:`."""

    hosted: HostedRun

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.hosted.fail(error)
        elif self.hosted.is_running:
            self.hosted.finish()


def _with_defaults(callbacks: Any, extra: Iterable[Any] | None, monitors: Iterable[Any] | None, workdir: Any) -> list[Any]:
    from hookpoint import callbacks as cb

    extras = (cb.MovingAverageSummary, cb.MergeAllSummaries, cb.RunUpdateOps)
    sinks = () if workdir is None else (cb.TFEventWriter, cb.JSONWriter)
    return with_defaults(callbacks, (extra, extras), (monitors, sinks))


def _team(seconds: float) -> Team:
    """Return a team of all ranks if the trainer has initialized torch.distributed, otherwise a team of one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return Team()
    from hookpoint.parallel.team.init_process import join_team

    return join_team(seconds=seconds)


def _torch_options() -> dict[str, Any]:
    """Return the options for a run that uses torch: how to read values and how to evaluate a model."""
    if "torch" not in sys.modules:
        return {}
    from hookpoint.core.run.stepper import Stepper
    from hookpoint.engine.checkpoint_options import waits_allowed
    from hookpoint.engine.device_floats import device_floats
    from hookpoint.engine.step.modules import evaluating, unwrapped

    stepper = Stepper(evaluating=evaluating)
    return {"stepper": stepper, "floats": device_floats, "may_wait": waits_allowed, "unwrapped": unwrapped}
