"""Components: the objects that a Machine notifies of the events in a run. None of them holds a reference to the Machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookpoint.core.control.control import Control
    from hookpoint.core.hang.hang_watch import HangWatch
    from hookpoint.core.loop._agreement import Agreement
    from hookpoint.core.loop._model_stop import ModelStop
    from hookpoint.core.loop._resuming import Resuming
    from hookpoint.core.loop._run_record import RunRecord
    from hookpoint.core.loop._saving import Saving
    from hookpoint.core.loop._signals import Signals
    from hookpoint.core.loop._step_hooks import StepHooks
    from hookpoint.core.loop.missing_metrics import MissingMetrics


@dataclass(slots=True, eq=False, repr=False)
class Components:
    """The components of one run. `agree` applies the requests of all ranks. All ranks must call it together."""

    saving: Saving
    resuming: Resuming
    agreement: Agreement | None
    agree: Callable[[str], None]
    signals: Signals
    steps: StepHooks
    record: RunRecord
    missing: MissingMetrics
    model_stop: ModelStop
    watch: HangWatch
    control: Control
