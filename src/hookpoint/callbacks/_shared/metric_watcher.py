"""MetricWatcher: the base class of callbacks that act on a metric."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Protocol, Unpack

from hookpoint.callbacks._shared.new_values import NewValues
from hookpoint.callbacks._shared.schedule_in_run import schedule_in
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment


class Decision(Protocol):
    """The object that makes a watcher's decisions. Its state is part of the watcher's state."""

    def reset(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class MetricWatcher(Callback):
    """Pass each new value of a metric to `take` exactly once.

    Triggered at the end of each complete epoch or by a schedule. Without a schedule, epochs that end with a `break` also count,
    so that loops that always break still produce values. With a step schedule, a value is the mean of the values logged since
    the last trigger.
    """

    reads_windows = True
    step_cost: ClassVar[str] = "nothing; with a step schedule, one addition per step that logs the metric"

    def __init__(self, monitor: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if not isinstance(monitor, str) or not monitor:
            raise BadArgument(f"{type(self).__name__}: {monitor!r} is not the name of a metric.", write='"val_loss"')
        self.monitor = monitor
        self.reads = (monitor,)
        set_default_name(self, f"{type(self).__name__}({monitor})")
        self._values = NewValues(monitor)
        self._decision: Decision | None = None

    @abstractmethod
    def take(self, run: Run, moment: Moment, value: float) -> None:
        """Handle a new value, which was logged at `moment`."""

    def on_run_begin(self, run: Run) -> None:
        self.reset()
        self._values.begin(run, self)

    def on_trigger(self, run: Run) -> None:
        new = self._values.take(run)
        if new is not None:
            self.take(run, *new)

    def on_epoch_end(self, run: Run) -> None:
        if not run.epoch_complete and schedule_in(run, self) is None:
            self.on_trigger(run)

    def reset(self) -> None:
        """Discard the state of the previous run."""
        self._values.reset()
        if self._decision is not None:
            self._decision.reset()

    def state_dict(self) -> dict[str, Any]:
        return {**self._values.state_dict(), **(self._decision.state_dict() if self._decision is not None else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values.load_state_dict(state)
        if self._decision is not None:
            self._decision.load_state_dict(state)
