"""PatternCallback: the base class of callbacks that select modules or parameters by name.

MeasuredSteps selects the steps at which such a callback measures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks._shared.hook_handles import HookHandles
from hookpoint.callbacks._shared.name_pattern import NamePattern, Pattern
from hookpoint.callbacks._shared.named_modules import named_modules, named_parameters
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.callback.knob import Knob
from hookpoint.core.errors import BadLoop
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run


class PatternCallback(Callback):
    """Select modules or parameters of the run's model by a pattern. `_handles` contains the hooks on them."""

    def __init__(self, pattern: Pattern | Iterable[Pattern], **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.pattern = NamePattern(type(self).__name__, pattern)
        set_default_name(self, f"{type(self).__name__}({self.pattern})")
        self._handles = HookHandles()

    def find_modules(self, run: Run) -> dict[str, Any]:
        """Return the matching modules, keyed by name. Raise if none match."""
        return self.pattern.require(str(self.name), "module", named_modules(run.model))

    def find_parameters(self, run: Run) -> dict[str, Any]:
        """Return the matching parameters, keyed by name. Raise if none match, except with pipeline parallelism."""
        named = named_parameters(run.model)
        return self.pattern.select(named) if run.team.has_stages else self.pattern.require(str(self.name), "parameter", named)


class MeasuringCallback(PatternCallback):
    """Measure every n-th step or, by default, the log steps. A command can change the interval."""

    knobs = (Knob("every", int, low=1, about="steps between two measured steps; None measures log steps"),)

    def __init__(self, pattern: Pattern | Iterable[Pattern], every: int | None, **options: Unpack[Options]) -> None:
        super().__init__(pattern, **options)
        self.steps = MeasuredSteps(type(self).__name__, every)

    @property
    def every(self) -> int | None:
        """The number of steps between two measured steps, or None if log steps are measured."""
        return self.steps.every

    @every.setter
    def every(self, every: int | None) -> None:
        self.steps.set(every)


class MeasuredSteps:
    """Select every n-th step or, without `every`, the log steps."""

    def __init__(self, owner: str, every: int | None) -> None:
        self._owner = owner
        self.set(every)

    def set(self, every: int | None) -> None:
        """Select every n-th step from now on or, with None, the log steps."""
        self.every = None if every is None else integer(self._owner, "every", every, least=1)

    def check(self, run: Run) -> None:
        """Raise if the run has no log steps to measure at."""
        if self.every is None and not machine_of(run).options.log_every:
            owner = self._owner
            raise BadLoop(f"{owner} measures at log steps, but log_every=0 disables them.", give=f"{owner}(every=100)")

    def has(self, run: Run, step: int) -> bool:
        """Return whether to measure a step of an additional optimizer. `run.step` does not count these steps."""
        return step % (self.every or machine_of(run).logbook.log_every) == 0

    def has_next(self, run: Run) -> bool:
        """Return whether the next step is measured. With gradient accumulation, this applies to each batch of the step."""
        step = run.step + 1
        return step >= machine_of(run).logbook.next_log_step if self.every is None else step % self.every == 0
