"""LossCheck: detect that all training losses are NaN or infinite. A Runner raises an error, and a Loop warns."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hookpoint.core.errors import NonFiniteLoss
from hookpoint.core.log.floats import MayWait
from hookpoint.core.log.mean import Mean
from hookpoint.core.logger import logger

if TYPE_CHECKING:
    from hookpoint.core.hooks.entry import Entry
    from hookpoint.core.run_view import RunView


LOG_STEPS_IN_A_ROW = 2
OnNonFinite = Literal["raise", "warn"]


class LossMean(NamedTuple):
    """The mean of "loss" at a log step, or of a whole training pass."""

    loss: Any
    epoch: int
    step: int
    is_pass: bool


class LossCheck:
    """Raise NonFiniteLoss, or warn, if all losses at two consecutive log steps or in a training pass are NaN or infinite.

    The check reads the means of "loss" that the run logs anyway. In a team, these are means over all ranks, so all ranks raise
    at the same step. A mean of host numbers is checked at its log step. A mean of device tensors is checked at the next log
    step or at the end of the pass. If the check may raise an error, it then waits for the copy to the host, which was queued at
    the log step. The step at which a run ends therefore does not depend on the machine's speed. If the check only warns, it
    never waits.
    """

    def __init__(self, run: RunView, *, on_nonfinite: OnNonFinite, may_wait: MayWait) -> None:
        self.has_warned = False
        self._run, self._raises, self._may_wait = run, on_nonfinite == "raise", may_wait
        self._late: deque[LossMean] = deque()
        self._bad_steps: list[int] = []

    def at_log_step(self, loss: Any) -> None:
        """Check the mean since the last log step. `loss` is None if no loss was logged."""
        self._take(loss, is_pass=False)

    def at_pass_end(self, loss: Any) -> None:
        """Check the mean of a whole training pass. If the check may raise, also check all pending means."""
        self._take(loss, is_pass=True)
        if self._raises:
            self.check_pending()

    def check_pending(self) -> None:
        """Check, in order, the means that were still on a device when they were logged."""
        while self._late and (self._raises or not getattr(self._late[0].loss, "is_pending", False)):
            self._check(self._late.popleft())

    def _take(self, loss: Any, *, is_pass: bool) -> None:
        self.check_pending()
        if loss is not None:
            mean = LossMean(loss, self._run.epoch, self._run.step, is_pass)
            if self._late or getattr(loss, "is_pending", False):
                self._late.append(mean)
            else:
                self._check(mean)

    def _check(self, mean: LossMean) -> None:
        if getattr(mean.loss, "is_pending", False):
            with self._may_wait():
                value = float(mean.loss)
        else:
            value = float(mean.loss)
        if not (isinstance(mean.loss, Mean) and mean.loss.is_all_bad):
            if not mean.is_pass or math.isfinite(value):  # if the mean of a pass is not finite, keep the list of bad steps
                self.has_warned, self._bad_steps = False, []
            return
        if mean.is_pass:
            self._report(mean, value, f"all losses in epoch {mean.epoch} are NaN or infinite")
            return
        self._bad_steps = [*self._bad_steps, mean.step][-LOG_STEPS_IN_A_ROW:]
        if len(self._bad_steps) == LOG_STEPS_IN_A_ROW:
            steps = " and ".join(map(str, self._bad_steps))
            self._report(mean, value, f"all losses at log steps {steps} are NaN or infinite, in epoch {mean.epoch}")

    def _report(self, mean: LossMean, value: float, what: str) -> None:
        if self._raises:
            if self._run.stop_reason is None:  # raise no error if the run is already stopping
                raise NonFiniteLoss(value, epoch=mean.epoch, step=mean.step, now=self._run.step, what=what)
            return
        if not self.has_warned and self._run.is_chief:
            logger.warning("%s: the mean at step %d is %s; training continues", what, mean.step, value)
        self.has_warned = True

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint. Wait for values on a device.

        With this state, a resumed run raises at the same step as a run without an interruption.
        """
        late = [[mean.loss.state(), *mean[1:]] for mean in self._late if isinstance(mean.loss, Mean)]
        return {"has_warned": self.has_warned, "bad_steps": list(self._bad_steps), "late": late}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.has_warned, self._bad_steps = state["has_warned"], list(state["bad_steps"])
        self._late = deque(LossMean(Mean().restore(sums), *rest) for sums, *rest in state["late"])


def loss_check(run: RunView, entries: Iterable[Entry], on_nonfinite: OnNonFinite, may_wait: MayWait) -> LossCheck | None:
    """Return the loss check for a run, or None if a callback in the list handles non-finite losses."""
    everywhere = (entry.subject for entry in entries if entry.ranks == "all")
    if any(getattr(subject, "handles_nonfinite_loss", False) for subject in everywhere):
        return None
    return LossCheck(run, on_nonfinite=on_nonfinite, may_wait=may_wait)
