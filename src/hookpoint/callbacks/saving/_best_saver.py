"""BestSaver: what MinSaver and MaxSaver have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.saver import Saver, is_in_training, named, refuse_place
from hookpoint.callbacks.saving._best_tracker import BestWatch
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.log.best import Best, Mode
from hookpoint.storage.workdir.retention import KeepNewest

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run


class BestSaver(Saver):
    """Ask for a checkpoint, with the tag `best-<name>`, whenever a metric is better than ever; keep the last of them."""

    reads_windows = True

    def __init__(
        self, monitor_stat: str, mode: Mode, filename: str | None, checkpoint_dir: Any, **options: Unpack[Options]
    ) -> None:
        owner = type(self).__name__
        refuse_place(owner, "checkpoint_dir", checkpoint_dir)
        self.monitor_stat = named(owner, "monitor_stat", monitor_stat)
        self.tag = f"best-{monitor_stat if filename is None else named(owner, 'filename', filename)}"
        super().__init__({self.tag: KeepNewest(1)}, **options)
        self.reads = (monitor_stat,)
        set_default_name(self, f"{owner}({monitor_stat})")
        self._watch = BestWatch(monitor_stat, mode)

    @property
    def best(self) -> Best:
        """The best value so far, and its step."""
        return self._watch.best

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._watch.begin(run, self)

    def on_trigger(self, run: Run) -> None:
        self._look(run)

    def on_val_epoch_end(self, run: Run) -> None:
        if is_in_training(run):  # whatever the schedule: later, the weights that were measured are gone
            self._look(run, final_only=True)

    def _look(self, run: Run, *, final_only: bool = False) -> None:
        if self.was_lost(run, self.tag):
            self._watch.take_back()
        if self._watch.has_new_best(run, final_only=final_only):
            self.ask(run, self.tag, measured=self._watch.measured)

    def reset(self) -> None:
        super().reset()
        self._watch.reset()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best": self._watch.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._watch.load_state_dict(state["best"])
