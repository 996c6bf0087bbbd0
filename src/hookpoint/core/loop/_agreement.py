"""Agreement: what any process of a team asks for happens on all of them, at the same step.

In a team a verdict is a wish until all have heard of it. At the end of each training iteration a rank says whether it has
wishes, and goes on training while the others are asked; at the end of the next one it knows whether anybody has any, and only
then are they told, and granted everywhere; the time of the run is agreed on along the way. Between passes and epochs, and in an
iteration in which the team has talked anyway, wishes are told and granted at once. Handlers of signals only set flags: they may
come while somebody talks. In a team with a lag, whose ranks need not be at the same step, it takes so many steps, not one.
"""

from __future__ import annotations

import json
import logging
import signal
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.current import CURRENT_CALL
from hookpoint.core.errors import BadLoop, BadValue
from hookpoint.core.hooks.dispatch import SKIP_POINTS
from hookpoint.core.run.run import Run, now_of

if TYPE_CHECKING:
    from hookpoint.core.checkpoint.store import Keep
    from hookpoint.core.loop._saving import Saving
    from hookpoint.core.loop._signals import TeamSignals
    from hookpoint.core.run.verdicts import Verdicts
    from hookpoint.core.team.checked_team import CheckedTeam
    from hookpoint.core.team.team import Answer
    from hookpoint.core.team.team_clocks import TeamClocks

logger = logging.getLogger("hookpoint")

WISH = 1 << 60  # above the time: the largest number has it if any has
SKIPS = {"batch": 1 << 0, "backward": 1 << 1, "step": 1 << 2}


class Agreement:
    """Hear what every rank wishes, and grant it on all of them at once. One process alone has none of this."""

    def __init__(self, run: Run, team: CheckedTeam, verdicts: Verdicts, clocks: TeamClocks) -> None:
        self._team = team
        self._clocks = clocks
        self._run = run
        self._verdicts = verdicts
        self._mine: dict[str, Any] = {}  # what this rank wishes, and has not told the others
        self._hyper = run.hyper
        self._lag = team.lag
        self._step = 0
        self._asked: deque[tuple[Answer, dict[str, Any]]] = deque()  # what is on its way, with the wishes that it is about
        self._talks_heard = 0
        self._skips: set[str] = set()
        self._keeps: dict[str, tuple[Keep | None, Mapping[str, Any] | None]] = {}
        self._is_save_signalled = False
        self._is_signal_told = False
        self._saving: Saving
        self._signals: TeamSignals
        run.hyper.request = self.request_setting

    def connect(self, saving: Saving, signals: TeamSignals) -> None:
        self._saving, self._signals = saving, signals

    # Wishes of this rank

    def request_stop(self, reason: str) -> None:
        if not self._verdicts.stop:
            self._mine.setdefault("stop", reason)
            self._mine.setdefault("stop", reason)  # again: another thread may have asked while the wishes were taken

    def request_stop_epoch(self) -> None:
        self._mine["stop_epoch"] = True

    def ask_save(self, tag: str, keep: Keep | None, in_background: bool, measured: Mapping[str, Any] | None = None) -> None:
        self._saving.refuse_if_nowhere()
        call = CURRENT_CALL.get()
        if call is not None and call.same_on_all_ranks:
            self._saving.ask(tag, keep, in_background, measured)  # at the step it is asked for, not one later
            return
        self._keeps[tag] = keep, measured
        self._mine.setdefault("save", {})[tag] = in_background

    def ask_save_by_signal(self) -> None:
        self._is_save_signalled = True

    def request_setting(self, name: str, value: Any) -> None:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            how = "a number, a text, True or False, or a list of such"
            raise BadValue(f"{name} is set to {value!r}, which other processes cannot be told.", give=how) from None
        self._mine.setdefault("settings", {})[name] = value

    def request_skip(self, what: str) -> None:
        """Note that a callback wants part of this iteration skipped, or refuse it."""
        call = CURRENT_CALL.get()
        if call is None or not call.entry.may_skip:
            who = "the loop's body" if call is None else call.entry.name
            cure = "may_skip = True in its class" if call is not None else "in a callback with may_skip = True"
            raise BadLoop(f"{who} asks for skip_{what}(), and {self._team.size} processes have to agree on it.", declare=cure)
        if call.point not in SKIP_POINTS:
            where = ", ".join(SKIP_POINTS)
            raise BadLoop(f"{call.entry.name} asks for skip_{what}() at {call.point}.", ask=f"in several processes at {where}")
        self._skips.add(what)

    def refuse_retry(self) -> None:
        raise BadLoop(
            f"run.retry() is for one process; this run has {self._team.size}, which would not do the same.",
            ask="for run.skip_batch(), with may_skip = True in the callback",
        )

    # Agreeing

    def at_step(self) -> None:
        """Grant what was wished in the iteration before, and let the others know whether there are new wishes."""
        if self._lag == 1 or self._has_stepped():
            if self._team.count != self._talks_heard:
                self.now("what the iteration has asked for")
                return
            self._hear()
        announced = self._taken()
        bits = WISH if announced else 0
        self._asked.append((self._team.start_agreeing(bits + self._clocks.milliseconds()), announced))

    def now(self, what: str) -> None:
        """Grant at once what anybody wishes; all ranks are here."""
        announced = [wishes for _, wishes in self._asked]
        while self._asked:
            self._asked.popleft()[0]()
        said = self._team.gather([[*announced, self._taken()], self._clocks.milliseconds()], what)
        self._clocks.agree(max(one[1] for one in said))
        self._talks_heard = self._team.count
        for wishes in zip(*(one[0] for one in said), strict=True):
            self._grant(list(wishes))

    def _hear(self) -> None:
        """Wait for answers that are as old as they may get, and grant what they are about."""
        while len(self._asked) >= self._lag:
            answer, announced = self._asked.popleft()
            agreed = answer()
            self._clocks.agree(agreed % WISH)
            if agreed & WISH:
                self._grant(self._team.gather(announced, "what is asked for"))
                self._talks_heard = self._team.count

    def _has_stepped(self) -> bool:
        """Say whether a step was made since this was asked: in between, others may wait for the gradient of this rank."""
        before, self._step = self._step, self._clocks.step
        return self._step != before

    def talk_next(self) -> None:
        """Let the iteration that follows end with talk, as it does after a checkpoint: who goes on from one does the same."""
        self._talks_heard = -1

    def gather(self, value: Any, what: str) -> list[Any]:
        """Return the value of every rank."""
        return self._team.gather(value, what)

    def meet(self) -> None:
        """Wait until all ranks are about to make the current call; whoever is elsewhere is named.

        Nobody is waited for after a failure: what a callback puts back at the end, it puts back alone.
        """
        if not self._team.has_ended:
            self._team.gather(None, "a collective callback,")

    def settle_skips(self) -> None:
        """Skip on all ranks what any rank wants skipped; in training only: other passes may differ in length."""
        if self._run.mode == "train":
            bits = sum(SKIPS[what] for what in self._skips)
            self._skips.clear()
            agreed = self._team.any_of(bits)
            for what, bit in SKIPS.items():
                if agreed & bit:
                    now_of(self._run).request_skip(what)

    def end(self, why: str) -> None:
        """Talk no more: this rank has failed."""
        self._team.end(why)
        self._asked.clear()  # an answer that is on its way keeps the line open on which the others wait

    def _taken(self) -> dict[str, Any]:
        """Return what this rank wishes, and wish it no longer."""
        mine, self._mine = self._mine, {}
        if self._is_save_signalled:
            self._is_save_signalled = False
            mine.setdefault("save", {})["manual"] = True
        if self._signals.caught is not None and not self._is_signal_told:
            self._is_signal_told = True
            mine["signal"] = self._signals.caught.name
        return mine

    def _grant(self, wishes: list[dict[str, Any]]) -> None:
        """Do what was wished, in the order of ranks: what is done is the same everywhere."""
        grants: dict[str, Callable[[Any], None]] = {
            "stop": self._stop,
            "signal": self._be_signalled,
            "save": self._save,
            "stop_epoch": lambda _: self._verdicts.request_stop_epoch(),
        }
        for wish in wishes:
            for name, value in wish.items():
                if name in grants:
                    grants[name](value)
        self._set([wish["settings"] for wish in wishes if "settings" in wish])

    def _stop(self, reason: str) -> None:
        if self._verdicts.request_stop(reason):
            self._run.put_event("stop", reason=reason)

    def _be_signalled(self, name: str) -> None:
        if self._signals.received is None:
            self._signals.take(signal.Signals[name])

    def _save(self, tags: Mapping[str, bool]) -> None:
        for tag, in_background in tags.items():
            keep, measured = self._keeps.pop(tag, (None, None))
            self._saving.ask(tag, keep, in_background, measured)

    def _set(self, settings: list[dict[str, Any]]) -> None:
        values: dict[str, Any] = {}
        for one in settings:
            for name, value in one.items():
                if values.setdefault(name, value) != value and self._team.rank == 0:
                    logger.warning(
                        "%s is set to %r and to %r by different ranks; %r stays", name, values[name], value, values[name]
                    )
        self._hyper.apply_agreed(values)
