"""HostDriver: the driver that another library's trainer calls when its own events happen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from hookpoint.core.errors import BadLoop, OutsideRun
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.loop._host_owned import HostLoader, HostPositions, HostRandomState, HostSteps, HostStore
from hookpoint.core.loop.host import Host
from hookpoint.core.loop.loop import Loop
from hookpoint.core.loop.machine import Machine
from hookpoint.core.loop.options import LoopOptions
from hookpoint.core.loop.passes import Pass
from hookpoint.core.loop.services import machine_of
from hookpoint.core.points import POINTS
from hookpoint.core.run.run import Run
from hookpoint.core.run.run_loop import Mode

NEVER = {point.name: "it computes the step itself" for point in POINTS if point.main_only}
RARELY = {
    "retry": "it moves on to the next batch",
    "skip_batch": "it computes every batch",
    "skip_backward": "it computes every gradient",
    "skip_step": "it makes every step",
}


class HostDriver:
    """Drive the callbacks of a run from outside: a host calls these methods when its own events happen.

        driver.start_run(model=..., optimizer=..., epochs=...)
          driver.start_epoch()
            driver.start_pass("train", total=...)
              driver.start_iteration(batch)
                driver.start_step(); driver.finish_step()        where the host steps its optimizer
              driver.finish_iteration(outputs=..., loss=...)
            driver.finish_pass()
            driver.start_pass("val"); ...; driver.finish_pass({"loss": 0.1})
          driver.finish_epoch()
        driver.finish_run()

    Callbacks are compiled here; one that needs a point or a verdict in `host.cannot` is refused with the name of the host.
    After each call the host reads `wants_stop` and `wants_end_pass`, and honours them as it can. Signals, data, random numbers
    and checkpoints are the host's: it keeps `state()` in its own checkpoint and hands it back as `start_run(state=...)`.
    `save`, a function of tags and the step, writes a checkpoint of the host; without it savers are refused.

    `loss` and values of `log=` are averaged over the pass; `show` makes a value the latest one without counting it, and
    `finish_pass(finals)` gives the values of a whole pass that the host has averaged itself.

    >>> driver = HostDriver([LambdaCallback(on_epoch_end=lambda run: print(run.epoch, run.metrics["loss"]))], Host("mine"))
    >>> driver.start_run(epochs=1); driver.start_epoch(); driver.start_pass("train")
    >>> if driver.start_iteration([1, 2]): driver.finish_iteration(loss=0.5)
    >>> driver.finish_pass(); driver.finish_epoch(); driver.finish_run()
    1 0.5
    """

    def __init__(
        self,
        callbacks: Iterable[Any],
        host: Host,
        *,
        save: Callable[[Sequence[str], int], Any] | None = None,
        options: LoopOptions | None = None,
        **changes: Any,
    ) -> None:
        cannot = {**NEVER, **{verdict: why for verdict, why in RARELY.items() if verdict not in host.can}, **host.cannot}
        if save is None:
            cannot.setdefault("save", "it writes its own checkpoints")
        self.host = Host(host.name, cannot, host.can)
        self._store = HostStore(save)
        self._callbacks = list(callbacks)
        owned = {"store": self._store, "randomness": HostRandomState(), "positions": HostPositions, "host": self.host}
        self._loop = Loop(self._callbacks, options, **changes, **owned)
        self._machine: Machine | None = None

    # The run

    @property
    def hooks(self) -> Hooks:
        return self._loop.hooks

    @property
    def is_running(self) -> bool:
        return self._machine is not None

    @property
    def run(self) -> Run:
        return self._running().run

    def start_run(self, *, epochs: int | None = None, state: Mapping[str, Any] | None = None, **given: Any) -> None:
        """Begin the run, with what the host knows only now: its model, its optimizer, and the state of its checkpoint."""
        if self._machine is not None:
            raise OutsideRun(f"{self.host.name} has started a run already.", call="finish_run() first")
        self._store.found = state

        def begin(run: Run) -> None:
            run.max_epochs = epochs

        self._loop = Loop(self._callbacks, self._loop.options, **given, begin=begin)
        self._machine = machine_of(self._loop.__enter__())

    def finish_run(self, error: BaseException | None = None) -> None:
        """End the run, also one that failed: what is open is closed, or dropped. Raise what callbacks failed with."""
        self._running()
        self._machine = None
        self._loop.__exit__(None if error is None else type(error), error, None)

    # Epochs

    def start_epoch(self) -> None:
        machine = self._running()
        if machine.scopes.epoch_is_open:
            raise BadLoop(f"{self.host.name} starts an epoch, and epoch {machine.run.epoch} is open.", call="finish_epoch()")
        machine.begin_epoch()
        machine.saving.body_begins()

    def finish_epoch(self, *, complete: bool = True) -> None:
        machine = self._running()
        machine.scopes.close_passes()
        machine.resuming.arrive()
        machine.scopes.close_epoch(cut_short=not complete)

    # Passes

    @property
    def mode(self) -> Mode | None:
        """Of the innermost pass that is open."""
        passes = self._running().scopes.passes
        return passes[-1].mode if passes else None

    def start_pass(self, mode: Mode, *, total: int | None = None) -> None:
        """Open a pass; `total` is how many batches it will have, where the host knows that."""
        machine = self._running()
        if mode != "train" and not machine.scopes.passes:
            machine.resuming.arrive()  # whoever resumes with a validation was done with the training of that epoch
        machine.begin_pass(Pass(HostLoader(total), mode))

    def finish_pass(self, finals: Mapping[str, Any] | None = None, *, complete: bool | None = None) -> None:
        """Close the pass; without `complete`, it is complete if as many batches were seen as were announced."""
        one = self._innermost()
        if complete is None:
            complete = one.total is None or one.saw_everything
        self._running().end_pass(one, complete=complete, finals=finals)

    # Iterations and steps

    def start_iteration(self, batch: Any = None) -> bool:
        """Begin an iteration; say whether the host is to compute it: false for a batch that a callback has skipped."""
        one, machine = self._innermost(), self._running()
        if one.in_iteration:
            machine.end_iteration(one)
        one.batches_seen += 1
        return machine.begin_iteration(one, batch)

    def finish_iteration(self, *, outputs: Any = None, loss: Any = None, log: Mapping[str, Any] | None = None) -> None:
        """End the iteration; a loss is logged, as `Runner` does."""
        one, machine = self._innermost(), self._running()
        if not one.in_iteration:
            raise BadLoop(
                f"{self.host.name} finishes an iteration, and none is open.",
                call="start_iteration(batch), and compute if it says so",
            )
        now = one.now
        if outputs is not None:
            now.outputs = outputs
        if loss is not None:
            now.loss = loss
            machine.logbook.log("loss", loss, now.samples)
        for name, value in log.items() if log else ():
            machine.logbook.log(name, value, now.samples)
        machine.end_iteration(one)

    def start_step(self) -> None:
        """Report that the optimizer is about to step."""
        cast(HostSteps, self._running().steps).begin_step()

    def finish_step(self) -> None:
        """Report that the optimizer has stepped. A step it left out is not reported."""
        cast(HostSteps, self._running().steps).end_step()

    def fire(self, point: str) -> None:
        """Fire a point inside an iteration that the host has a moment for: on_backward_begin, on_backward_end, on_lr_adjust."""
        machine = self._running()
        machine.hooks.fire(point, machine.run)

    # Values and verdicts

    def show(self, values: Mapping[str, Any]) -> None:
        """Make these the latest values of their metrics; they count for no mean."""
        for name, value in values.items():
            self._running().logbook.show(name, value)

    @property
    def wants_stop(self) -> bool:
        """Whether the run is to stop; no further iteration should start."""
        return self._machine is not None and self._machine.verdicts.stop

    @property
    def wants_end_pass(self) -> bool:
        """Whether the pass that is open is to end."""
        machine = self._running()
        passes = machine.scopes.passes
        return machine.verdicts.stop_epoch if not passes else machine.must_end(passes[-1])

    def state(self) -> dict[str, Any]:
        """Return what the host's checkpoint is to keep of the callbacks, the clocks and what was logged."""
        machine = self._running()
        machine.run.monitors.settle()
        return machine.saving.state()

    def _running(self) -> Machine:
        if self._machine is None:
            raise OutsideRun(f"{self.host.name} has started no run.", call="start_run() first")
        return self._machine

    def _innermost(self) -> Pass:
        passes = self._running().scopes.passes
        if not passes:
            raise BadLoop(f"{self.host.name} has no pass open.", call='start_pass("train") first')
        return passes[-1]
