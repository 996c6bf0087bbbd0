"""RunObjects: the objects that the components of a run share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hookpoint.core.checkpoint.positions import Positions
from hookpoint.core.checkpoint.randomness import PlainRandomness
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.log.floats import MayWait
from hookpoint.core.log.logbook import Logbook
from hookpoint.core.loop._scopes import Scopes
from hookpoint.core.run.run import Run
from hookpoint.core.run.verdicts import Verdicts
from hookpoint.core.schedule.clocks import Clocks
from hookpoint.core.team.team import Team


@dataclass(slots=True, eq=False, repr=False)
class RunObjects:
    """The objects that a run uses to save, to resume and to reach agreement between ranks.

    `stateful` maps names to the objects whose state is saved.
    """

    run: Run
    hooks: Hooks
    clocks: Clocks
    logbook: Logbook
    verdicts: Verdicts
    scopes: Scopes
    team: Team
    positions: Positions
    randomness: PlainRandomness
    may_wait: MayWait
    stateful: dict[str, Any]
