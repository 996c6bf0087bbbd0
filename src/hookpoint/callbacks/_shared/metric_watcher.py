"""MetricWatcher: what the callbacks that decide by a metric have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.unseen_values import NewValues
from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.callback_info import schedule_of, set_default_name
from hookpoint.core.errors import BadArgument

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run
    from hookpoint.core.schedule.moment import Moment


class MetricWatcher(Callback):
    """Look at each value of a metric, once; derived classes decide.

    Triggered at the end of each complete epoch or by a schedule. Without a schedule it looks at epochs that a `break` cut short
    as well: who always breaks off after so many batches has values all the same. With a step schedule it looks at the mean of
    what was logged since it last looked.
    """

    reads_windows = True

    def __init__(self, monitor: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if not isinstance(monitor, str) or not monitor:
            raise BadArgument(f"{type(self).__name__}: {monitor!r} is no metric.", write='"val_loss"')
        self.monitor = monitor
        self.reads = (monitor,)
        set_default_name(self, f"{type(self).__name__}({monitor})")
        self._values = NewValues(monitor)

    @abstractmethod
    def take(self, run: Run, moment: Moment, value: float) -> None:
        """Take in a value that was logged at this moment."""

    def on_run_begin(self, run: Run) -> None:
        if not run.resuming:
            self.reset()
        self._values.begin(run, self)

    def on_trigger(self, run: Run) -> None:
        self._look(run)

    def on_epoch_end(self, run: Run) -> None:
        if not run.epoch_complete and schedule_of(self) is None:
            self._look(run)

    def _look(self, run: Run) -> None:
        found = self._values.take(run)
        if found is not None:
            self.take(run, *found)

    def reset(self) -> None:
        """Forget the run before."""
        self._values.reset()

    def state_dict(self) -> dict[str, Any]:
        return self._values.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values.load_state_dict(state)
