"""HostDriver: drive a run from the events of another library's trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hookpoint.core.checkpoint.host_store import HostStore
from hookpoint.core.data.data_points import check_pass
from hookpoint.core.errors import BadLoop, OutsideRun
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.loop._host_owned import HostLoader, HostPositions, HostRandomState
from hookpoint.core.loop._passes import Pass
from hookpoint.core.loop.batches import iteration_ends
from hookpoint.core.loop.host import Host
from hookpoint.core.loop.loop import Loop
from hookpoint.core.loop.machine import Machine
from hookpoint.core.loop.options import LoopOptions
from hookpoint.core.loop.services import machine_of
from hookpoint.core.points import POINTS
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.run.run_loop import Mode

NEVER = {point.name: "it computes the step itself" for point in POINTS if point.main_only}
RARELY = {
    "retry": "it proceeds to the next batch",
    "skip_batch": "it computes every batch",
    "skip_backward": "it computes every gradient",
    "skip_step": "it performs every step",
}


class HostDriver:
    """Drive a run from outside: another library's trainer, the host, calls these methods on its own events.

        driver.start_run(model=..., optimizer=..., epochs=...)
          driver.start_epoch()
            driver.start_pass("train", total=...)
              driver.start_iteration(batch)
                driver.start_step(); driver.finish_step()        when the host steps its optimizer
              driver.finish_iteration(outputs=..., loss=...)
            driver.finish_pass()
            driver.start_pass("val"); ...; driver.finish_pass({"loss": 0.1})
          driver.finish_epoch()
        driver.finish_run()

    The constructor compiles the callbacks. It raises NotUnderHost if a callback needs a point or a verdict that `host.cannot`
    lists.
    After each call, the host reads `wants_stop` and `wants_end_pass`, and stops or ends the pass if it can. The host itself
    handles signals, data, random numbers and checkpoints. It stores `state()` in its own checkpoint, and passes it back as
    `start_run(state=...)`. `save` is a function that takes the tags and the step, and writes the host's checkpoint. Without
    `save`, callbacks that save checkpoints are rejected. By default, the driver creates `HostStore(save)` as its store. To use
    a different store, pass it as `store`.

    `loss` and the values in `log=` are averaged over the pass. `show` sets the latest value of a metric without adding it to a
    mean. `finish_pass(finals)` takes values that the host itself averaged over the whole pass.

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
        store: HostStore | None = None,
        options: LoopOptions | None = None,
        **changes: Any,
    ) -> None:
        cannot = {**NEVER, **{verdict: why for verdict, why in RARELY.items() if verdict not in host.can}, **host.cannot}
        self._store = HostStore(save) if store is None else store
        if not self._store.saves:
            cannot.setdefault("save", "it writes its own checkpoints")
        self.host = Host(host.name, cannot, host.can)
        self._callbacks = list(callbacks)
        owned = {"store": self._store, "randomness": HostRandomState(), "positions": HostPositions, "host": self.host}
        self._loop = Loop(self._callbacks, options, **changes, **owned)
        self._machine: Machine | None = None
        self._pass: Pass | None = None  # the innermost open pass
        # Machine.begin_iteration and Machine.end_iteration, specialized for the innermost pass.
        self._begin: Callable[[Machine, Pass, Any], None] = Machine.begin_iteration
        self._end: Callable[[Machine, Pass], None] = Machine.end_iteration

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

    def start_run(
        self,
        *,
        epochs: int | None = None,
        state: Mapping[str, Any] | None = None,
        clocks: Mapping[str, int] | None = None,
        settings: Iterable[HyperParam] = (),
        **options: Any,
    ) -> None:
        """Begin the run. `options` contains loop options that were not known earlier, such as the host's model and optimizer.

        `state` is the state from the host's checkpoint. `clocks` contains the counters of a host that continues training
        without a saved state: "epoch", "epochs_done", "step", "iteration" or "samples". `settings` are registered in
        `run.hyper`.
        """
        if self._machine is not None:
            raise OutsideRun(f"{self.host.name} has already started a run.", call="finish_run() first")
        self._store.saved = state

        def begin(run: Run) -> None:
            run.max_epochs = epochs
            for name, count in (clocks or {}).items():
                setattr(machine_of(run).clocks, name, count)
            for setting in settings:
                run.hyper.register(setting)

        self._loop = Loop(self._callbacks, self._loop.options, **options, begin=begin)
        self._machine = machine_of(self._loop.__enter__())

    def finish_run(self, error: BaseException | None = None) -> None:
        """End the run. Open passes are closed or, after an error, dropped. Errors from callbacks are raised."""
        self._running()
        self._machine = self._pass = None
        self._loop.__exit__(None if error is None else type(error), error, None)

    # Epochs

    @property
    def epoch_is_open(self) -> bool:
        return self._running().scopes.epoch_is_open

    @property
    def resumes_in_epoch(self) -> bool:
        """Whether the run resumes in the middle of an epoch, and has not yet reached the position of its saved state."""
        return self._running().resuming.is_returning

    @property
    def resumes_in_training(self) -> bool:
        """Whether the state to resume from was saved partway through a training pass, so that the pass must be reopened."""
        return self._running().resuming.place.get("batches") is not None

    def start_epoch(self) -> None:
        machine = self._running()
        if machine.scopes.epoch_is_open:
            raise BadLoop(f"{self.host.name}: epoch {machine.run.epoch} is still open.", call="finish_epoch() first")
        machine.begin_epoch()
        machine.saving.begin_body()

    def finish_epoch(self, *, complete: bool = True) -> None:
        machine = self._running()
        machine.scopes.close_passes()
        self._pass = None
        machine.resuming.restore_in_epoch()
        machine.scopes.close_epoch(cut_short=not complete)

    # Passes

    @property
    def mode(self) -> Mode | None:
        """The mode of the innermost open pass."""
        passes = self._running().scopes.passes
        return passes[-1].mode if passes else None

    def start_pass(self, mode: Mode, *, total: int | None = None, loader: Any = None) -> None:
        """Open a pass. `total` is its number of batches and `loader` the host's own loader, if known.

        hookpoint reads no batches from this loader. It only checks the loader and describes it in the run's record.
        """
        machine = self._running()
        if mode != "train" and not machine.scopes.passes:
            machine.resuming.restore_in_epoch()  # a run that resumes at validation has already trained in this epoch
        check_pass(machine.hooks, loader, warns_idle=mode == "train" and machine.run.is_chief, saved=None)
        machine.begin_pass(Pass(HostLoader(total, loader), mode))
        self._return_to(machine.scopes.passes[-1])

    def finish_pass(self, finals: Mapping[str, Any] | None = None, *, complete: bool | None = None) -> None:
        """Close the pass. By default, the pass is complete if it had `total` batches or `total` is unknown."""
        pass_, machine = self._innermost(), self._running()
        if complete is None:
            complete = pass_.total is None or pass_.batches_seen >= pass_.total
        self._pass = None  # set before end_pass, which closes the pass even if a handler raises an error
        machine.end_pass(pass_, complete=complete, finals=finals)
        if machine.scopes.passes:
            self._return_to(machine.scopes.passes[-1])

    def _return_to(self, pass_: Pass) -> None:
        """Make this pass the innermost one."""
        self._pass = pass_
        self._begin, self._end = iteration_ends(self._running(), pass_)

    # Iterations and steps

    @property
    def in_iteration(self) -> bool:
        return self._pass is not None and self._pass.in_iteration

    def start_iteration(self, batch: Any = None) -> bool:
        """Begin an iteration. Return whether the host should compute it: False if a callback skips the batch."""
        pass_, machine = self._pass, self._machine
        if pass_ is None or machine is None:
            raise self._not_open()
        if pass_.in_iteration:
            self._end(machine, pass_)
        pass_.batches_seen += 1
        self._begin(machine, pass_, batch)
        if pass_.now.has_requests and pass_.now.is_discarded:
            self._end(machine, pass_)
        return pass_.in_iteration

    def finish_iteration(self, *, outputs: Any = None, loss: Any = None, log: Mapping[str, Any] | None = None) -> None:
        """End the iteration. If a loss is given, it is logged, as in `Runner`."""
        pass_, machine = self._pass, self._machine
        if pass_ is None or machine is None or not pass_.in_iteration:
            raise self._not_in_iteration()
        if outputs is not None:
            pass_.now.outputs = outputs
        if loss is not None:
            pass_.now.loss = loss
            machine.logbook.log("loss", loss, pass_.now.samples)
        if log:
            for name, value in log.items():
                machine.logbook.log(name, value, pass_.now.samples)
        self._end(machine, pass_)

    def start_step(self) -> None:
        """Report that the optimizer is about to step."""
        steps = (self._machine or self._running()).steps
        if steps.begin is not None:
            steps.begin(steps.run)

    def finish_step(self) -> None:
        """Report that the optimizer has stepped. The host must not report skipped steps."""
        machine = self._machine or self._running()
        machine.clocks.step += 1  # calling count_step() or after_step() would take a tenth of an iteration's time
        if machine.steps.end is not None:
            machine.steps.end(machine.run)

    def fire(self, point: str) -> None:
        """Fire one point inside an iteration: on_backward_begin, on_backward_end or on_lr_adjust."""
        machine = self._running()
        machine.hooks.fire(point, machine.run)

    def reject(self, points: Iterable[str], why: str) -> None:
        """Raise NotUnderHost if a callback needs one of these points. Call this if the host cannot fire these points."""
        Host(self.host.name, dict.fromkeys(points, why)).check(self.hooks)

    # Values and verdicts

    def show(self, values: Mapping[str, Any]) -> None:
        """Set the latest values of these metrics without adding them to a mean."""
        for name, value in values.items():
            self._running().logbook.show(name, value)

    @property
    def wants_stop(self) -> bool:
        """Whether the run should stop. If so, the host must not start another iteration."""
        return self._machine is not None and self._machine.verdicts.stop

    @property
    def wants_end_pass(self) -> bool:
        """Whether the open pass should end."""
        machine = self._running()
        passes = machine.scopes.passes
        return machine.verdicts.stop_epoch if not passes else machine.pass_end.is_due(passes[-1])

    def state(self) -> dict[str, Any]:
        """Return the state of callbacks, clocks and logged values, to store in the host's checkpoint."""
        machine = self._running()
        machine.run.monitors.settle()
        return machine.saving.state()

    def _running(self) -> Machine:
        if self._machine is None:
            raise OutsideRun(f"{self.host.name} has not started a run.", call="start_run() first")
        return self._machine

    def _innermost(self) -> Pass:
        if self._pass is None:
            raise self._not_open()
        return self._pass

    def _not_in_iteration(self) -> BadLoop:
        self._innermost()  # raises an error if no pass is open
        return BadLoop(f"{self.host.name}: no iteration is open.", call="start_iteration(batch) first")

    def _not_open(self) -> BadLoop:
        self._running()  # raises an error if there is no run
        return BadLoop(f"{self.host.name}: no pass is open.", call='start_pass("train") first')
