"""Iterations: `Machine.iterate` for one pass, with everything decided that cannot change while the pass is open.

Who listens, whether values are logged, whether the optimizer reports its steps, one rank or a team: the plain version asks
again in each iteration. `hooks.explain(step=True)` shows the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from hookpoint.core.loop.machine import Machine
from hookpoint.core.loop.passes import Pass
from hookpoint.core.loop.specialize import settled_values, specialize
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.schedule.clocks import Clocks

SETTLED = (
    "self.run",
    "self.clocks",
    "self.verdicts",
    "self.scopes",
    "self.scopes.passes",
    "self.logbook",
    "self.saving",
    "self.control",
    "self.agreement",
    "self.pass_end",
    "self.steps.are_reported",
    "self.options.log_every",
    "pass_.now",
    "pass_.is_train",
    "pass_.is_timed",
    "pass_.source",
    "pass_.samples_of",
    "pass_.fetch",
    "pass_.begin",
    "pass_.end",
)
INLINED: dict[str, Callable[..., Any]] = {
    "self.begin_iteration": Machine.begin_iteration,
    "self.end_iteration": Machine.end_iteration,
    "self.clocks.count_step": Clocks.count_step,
    "pass_.now.clear": Iteration.clear,
}


def iterations(machine: Machine, pass_: Pass) -> Generator[Any, None, bool]:
    """Return the iterations of an open pass; see `Machine.iterate`."""
    settled = settled_values(SETTLED, self=machine, pass_=pass_)
    plan = specialize(Machine.iterate, settled, INLINED)
    machine.hooks.sources[f"The iterations of a {pass_.mode} pass"] = plan.source
    result: Generator[Any, None, bool] = plan.bound(settled)(machine, pass_)
    return result
