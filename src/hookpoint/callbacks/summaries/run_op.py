"""RunOp: call a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument
from hookpoint.core.points import RUN_NAMES
from hookpoint.core.text.terminal import printable, say

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run


class RunOp(Callback):
    """Call a function before training, when triggered, or after each step, in tensorpack's words.

    `op` takes nothing, or the run as `run`; what it returns is not looked at. `run_before` calls it when the run starts, also
    where it goes on from a checkpoint: there the state is put back after it. `run_step` calls it after each optimizer step,
    which in a loop without an optimizer is each batch. `verbose` prints a line for each call.

    Listens to on_run_begin and, with `run_step`, to on_train_iter_end; triggered at the end of each complete epoch, unless
    `run_as_trigger` is off or `.when(...)` says otherwise. Keeps nothing in the checkpoint. Runs on all ranks. A step pays for
    the function, and without `run_step` nothing.

    >>> with Loop([RunOp(lambda run: print("after epoch", run.epoch), run_before=False)]) as run:
    ...     for epoch in run.epochs(2): pass
    after epoch 1
    after epoch 2
    """

    writes_anything = True

    def __init__(
        self,
        op: Callable[..., object],
        run_before: bool = True,
        run_as_trigger: bool = True,
        run_step: bool = False,
        verbose: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if not callable(op):
            raise BadArgument(f"RunOp takes a function, not {op!r}.", write="lambda run: ...")
        if not (run_before or run_as_trigger or run_step):
            raise BadArgument("RunOp would never call its function.", give="run_before, run_as_trigger or run_step")
        self.op = op
        self.run_before = run_before
        self.verbose = verbose
        set_default_name(self, f"RunOp({_name_of(op)})")
        self._run_name = _run_name(op)
        self._step = 0
        # Only what is asked for is a handler: `.when(...)` without run_as_trigger is refused, and a step pays for nothing else.
        for point, is_wanted, handler in (
            ("on_trigger", run_as_trigger, self._call),
            ("on_train_iter_end", run_step, self._call_after_step),
        ):
            if is_wanted:
                setattr(self, point, handler)

    def on_run_begin(self, run: Run) -> None:
        self._step = run.step
        if self.run_before:
            self._call(run)

    def _call_after_step(self, run: Run) -> None:
        if run.step != self._step:  # it stands while a window of gradients is gathered
            self._step = run.step
            self._call(run)

    def _call(self, run: Run) -> None:
        if self.verbose and run.is_chief:
            say(f"running {printable(_name_of(self.op))}")
        if self._run_name is None:
            self.op()
        else:
            self.op(**{self._run_name: run})


def _name_of(op: Callable[..., object]) -> str:
    return str(getattr(op, "__name__", type(op).__name__))


def _run_name(op: Callable[..., object]) -> str | None:
    """Return what a function calls the run, or None where it takes nothing; refuse one that needs anything else."""
    try:
        parameters = inspect.signature(op).parameters.values()
    except ValueError:  # some that are written in C do not say what they take
        return None
    found = [one.name for one in parameters if one.name in RUN_NAMES and one.kind is not one.POSITIONAL_ONLY]
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [one.name for one in parameters if one.default is one.empty and one.kind not in optional]
    others = [name for name in needed if name not in found[:1]]
    if others:
        names = ", ".join(others)
        raise BadArgument(f"RunOp's function needs '{names}'; there is the run, and nothing else.", write="lambda run: ...")
    return found[0] if found else None
