"""Execution: check a command on all ranks, then carry it out on all of them or on none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hookpoint.core.control.controlled_loop import ControlledLoop
from hookpoint.core.errors import NotApplied
from hookpoint.steering._plans import Plan, Plans, reason_of
from hookpoint.steering.control_command import ControlCommand

T = TypeVar("T")


class Execution:
    """Check commands and carry them out. All ranks call each method at the same boundary.

    If a command fails on one rank, every rank restores the old values. If that fails too, `problem` describes the failure, and
    the run must end. Some settings may then have their new values and others their old values, or the ranks may have different
    values.
    """

    def __init__(self, loop: ControlledLoop, plans: Plans) -> None:
        self._loop, self._plans = loop, plans
        self.problem = ""

    def plan(self, command: ControlCommand) -> tuple[Plan | None, str]:
        """Check a command. Return the plan, and the reason if a rank refuses the command."""
        plan, reason = _attempted(lambda: self._plans.plan(command.do, command.args, command.expect))
        return plan, self.first_of(reason, "a command")

    def first_of(self, reason: str, what: str) -> str:
        """Gather `reason` from all ranks. Return the first one that is not empty, or an empty string if all are empty."""
        return _first(self._loop.gather(reason, what))

    def carry_out(self, do: str, plan: Plan) -> tuple[dict[str, Any], str]:
        """Carry out a plan. Return fields for the answer, and the reason if the plan fails on a rank."""
        if do == "validate" and self._loop.is_in_team:
            # If validation fails on this rank, the other ranks are still waiting in the pass, so the error must end the run.
            return plan.act(), ""
        result, reason = _attempted(plan.act)
        outcomes = self._loop.gather((reason, plan.is_permanent and not reason), "the outcome of a command")
        reason = _first(one for one, _ in outcomes)
        if not reason:
            return result or {}, ""
        if any(is_done for _, is_done in outcomes):
            self.problem = "the command's effect on other ranks cannot be undone"
        if plan.undo is not None:
            _, failure = _attempted(plan.undo)
            if failure := self.first_of(failure, "restoring the old values"):
                self.problem = f"the old values could not be restored: {failure}"
        return {}, f"{reason}; {self.problem}; the run ends" if self.problem else reason

    def raise_problem(self, do: str) -> None:
        """Raise NotApplied on all ranks if a failed command could not be undone."""
        if self.problem:
            raise NotApplied(f"the command {do} failed, and {self.problem}")


def _first(reasons: Iterable[str]) -> str:
    return next((f"rank {rank}: {one}" if rank else one for rank, one in enumerate(reasons) if one), "")


def _attempted(call: Callable[[], T]) -> tuple[T | None, str]:
    """Return a call's result and an empty string. If the call raises an error, return None and the reason.

    An error does not end the run. It only means that the command is refused.
    """
    try:
        return call(), ""
    except Exception as error:
        return None, reason_of(error)
