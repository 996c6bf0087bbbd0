"""MeasuredSteps: which steps to measure."""

from __future__ import annotations

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.core.errors import BadLoop
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run


class MeasuredSteps:
    """Select every n-th step or, without `every`, the log steps."""

    def __init__(self, owner: str, every: int | None) -> None:
        self.every = None if every is None else whole(owner, "every", every, least=1)

    def check(self, owner: str, run: Run) -> None:
        """Raise if there are no log steps to measure at."""
        if self.every is None and not machine_of(run).options.log_every:
            raise BadLoop(f"{owner} measures at log steps, but log_every=0 disables them.", give=f"{owner}(every=100)")

    def has_next(self, run: Run) -> bool:
        """Return whether the next step is measured. With gradient accumulation, this holds for each of its batches."""
        step = run.step + 1
        return step >= machine_of(run).logbook.next_log_step if self.every is None else step % self.every == 0
