"""Agreement: a request from any rank takes effect on all ranks, at the same step.

With multiple ranks, a request such as `run.stop()` is pending until all ranks have received it. At the end of each training
iteration, a rank announces whether it has requests. It continues training while it waits for the answer. At the end of the
next iteration, the rank learns whether any rank has requests. Only then do the ranks exchange their requests and apply them.
The announcement also contains the elapsed time, so that all ranks use the same time.

Between passes and epochs, the ranks exchange and apply their requests immediately. They also do so at the end of an iteration
in which they have made other collective calls. Signal handlers only set flags, because they may run during a collective call.
If `lag` is greater than 1, ranks can be at different steps. A request then takes effect `lag` steps later instead of one step
later.
"""

from __future__ import annotations

import json
import signal
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.current import CURRENT_CALL
from hookpoint.core.errors import BadLoop, BadValue
from hookpoint.core.hooks.dispatch import SKIP_POINTS
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run, now_of

if TYPE_CHECKING:
    from hookpoint.core.checkpoint.store import Keep
    from hookpoint.core.control.control import Control
    from hookpoint.core.loop._saving import Saving
    from hookpoint.core.loop._signals import Signals
    from hookpoint.core.run.verdicts import Verdicts
    from hookpoint.core.team.checked_team import CheckedTeam
    from hookpoint.core.team.team import Answer
    from hookpoint.core.team.team_clocks import TeamClocks


REQUEST = 1 << 60  # greater than any elapsed time: if any rank adds this bit, the maximum over all ranks contains it
SKIPS = {"batch": 1 << 0, "backward": 1 << 1, "step": 1 << 2}


class Agreement:
    """Collect requests from all ranks, and apply them on all ranks at the same step."""

    def __init__(self, run: Run, team: CheckedTeam, verdicts: Verdicts, clocks: TeamClocks) -> None:
        self._run, self._team, self._verdicts, self._clocks, self._hyper = run, team, verdicts, clocks, run.hyper
        self._mine: dict[str, Any] = {}  # this rank's requests that have not been announced yet
        self._lag = team.lag
        self._step = 0
        self._announced: deque[tuple[Answer, dict[str, Any]]] = deque()  # pending answers, each with the announced requests
        self._collectives_seen = 0
        self._skips: set[str] = set()
        self._keeps: dict[str, tuple[Keep | None, Mapping[str, Any] | None]] = {}
        self._is_save_signalled = self._is_signal_announced = False
        self._saving: Saving
        self._signals: Signals
        self._control: Control
        run.hyper.request = self.request_setting

    def connect(self, saving: Saving, signals: Signals, control: Control) -> None:
        self._saving, self._signals, self._control = saving, signals, control

    # Requests from this rank

    def request_stop(self, reason: str) -> None:
        if not self._verdicts.stop:
            self._mine.setdefault("stop", reason)
            self._mine.setdefault("stop", reason)  # set again, in case another thread replaced the dict in between

    def request_stop_epoch(self) -> None:
        self._mine["stop_epoch"] = True

    def request_save(self, tag: str, keep: Keep | None, in_background: bool, measured: Mapping[str, Any] | None = None) -> None:
        self._saving.require_store()
        call = CURRENT_CALL.get()
        if call is not None and call.same_on_all_ranks:
            self._saving.request(tag, keep, in_background, measured)  # takes effect at this step instead of one step later
            return
        self._keeps[tag] = keep, measured
        self._mine.setdefault("save", {})[tag] = in_background

    def request_save_by_signal(self) -> None:
        self._is_save_signalled = True

    def take_save_signal(self) -> bool:
        """Return whether a signal has requested a checkpoint, and clear the flag."""
        was, self._is_save_signalled = self._is_save_signalled, False
        return was

    def request_control(self) -> None:
        """Announce to all ranks that there are live-control commands to apply. Any thread may call this."""
        self._mine["control"] = True
        self._mine["control"] = True  # set again, in case the training thread replaced the dict in between

    def request_setting(self, name: str, value: Any) -> None:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            how = "a number, a string, a bool, or a list of these"
            raise BadValue(f"{name} is set to {value!r}, which cannot be sent to other ranks.", set=how) from None
        self._mine.setdefault("settings", {})[name] = value

    def request_skip(self, what: str) -> None:
        """Record a callback's request to skip part of this iteration. Raise BadLoop if the callback may not skip here."""
        call = CURRENT_CALL.get()
        if call is None or not call.entry.may_skip:
            who = "the loop's body" if call is None else call.entry.name
            cure = "may_skip = True in its class" if call is not None else "a callback with may_skip = True, and skip there"
            raise BadLoop(f"{who} calls skip_{what}(), which all {self._team.size} ranks must agree on.", declare=cure)
        if call.point not in SKIP_POINTS:
            where = ", ".join(SKIP_POINTS)
            raise BadLoop(f"{call.entry.name} calls skip_{what}() at {call.point}.", call=f"it at {where}")
        self._skips.add(what)

    def reject_retry(self) -> None:
        raise BadLoop(
            f"run.retry() supports one rank; this run has {self._team.size}.",
            call="run.skip_batch(), with may_skip = True in the callback",
        )

    # Agreeing

    def at_step(self) -> None:
        """Apply the requests from the previous iteration, and announce whether there are new requests."""
        if self._lag == 1 or self._has_stepped():
            if self._team.count != self._collectives_seen:
                self.agree("the requests of the iteration")
                return
            self._apply_answers()
        mine = self._take_requests()
        bits = REQUEST if mine else 0
        self._announced.append((self._team.start_agreeing(bits + self._clocks.milliseconds()), mine))

    def agree(self, what: str) -> None:
        """Exchange the requests of all ranks and apply them now. All ranks must call this."""
        announced = [requests for _, requests in self._announced]
        while self._announced:
            self._announced.popleft()[0]()
        gathered = self._team.gather([[*announced, self._take_requests()], self._clocks.milliseconds()], what)
        self._clocks.agree(max(milliseconds for _, milliseconds in gathered))
        self._collectives_seen = self._team.count
        for requests in zip(*(requests for requests, _ in gathered), strict=True):
            self._apply(list(requests))

    def _apply_answers(self) -> None:
        """Wait for the answers that are at least `lag` steps old, and apply their requests."""
        while len(self._announced) >= self._lag:
            answer, mine = self._announced.popleft()
            agreed = answer()
            self._clocks.agree(agreed % REQUEST)
            if agreed & REQUEST:
                self._apply(self._team.gather(mine, "the requests"))
                self._collectives_seen = self._team.count

    def _has_stepped(self) -> bool:
        """Return whether this rank has performed an optimizer step since the last call.

        If `lag` is greater than 1, this rank must not wait for other ranks before it has performed its step, because they may
        be waiting for its gradient.
        """
        before, self._step = self._step, self._clocks.step
        return self._step != before

    def sync_next(self) -> None:
        """Exchange requests at the end of the next iteration. Called after a save, and when a run resumes."""
        self._collectives_seen = -1

    def gather(self, value: Any, what: str, *, counts: bool = True) -> list[Any]:
        """Return the values of all ranks. If `counts` is False, the call does not affect when requests are exchanged."""
        return self._team.gather(value, what, counts=counts)

    def meet(self) -> None:
        """Wait until all ranks are about to call the same collective callback. Raise OutOfStep if a rank makes another call.

        After a failure, do not wait, because each rank cleans up alone.
        """
        if not self._team.has_ended:
            self._team.gather(None, "a collective callback,")

    def settle_skips(self) -> None:
        """If any rank requests to skip a batch, a backward pass or a step, skip it on all ranks.

        This applies only to training, because the other passes may have a different length on each rank.
        """
        if self._run.mode == "train":
            bits = sum(SKIPS[what] for what in self._skips)
            self._skips.clear()
            agreed = self._team.any_of(bits)
            for what, bit in SKIPS.items():
                if agreed & bit:
                    now_of(self._run).request_skip(what)

    def end(self, why: str) -> None:
        """Make no further collective calls. Called when this rank has failed."""
        self._team.end(why)
        self._announced.clear()  # a pending answer keeps its connection open, and other ranks would wait on that connection

    def _take_requests(self) -> dict[str, Any]:
        """Return this rank's requests, and clear them."""
        mine, self._mine = self._mine, {}
        if self._is_save_signalled:
            self._is_save_signalled = False
            mine.setdefault("save", {})["manual"] = True
        if self._signals.caught is not None and not self._is_signal_announced:
            self._is_signal_announced = True
            mine["signal"] = self._signals.caught.name
        return mine

    def _apply(self, requests: list[dict[str, Any]]) -> None:
        """Apply the requests of all ranks in rank order, so that the result is the same on every rank."""
        for request in requests:
            for name, value in request.items():
                if name == "stop" and self._verdicts.request_stop(value):
                    self._run.put_event("stop", reason=value)
                elif name == "signal" and self._signals.received is None:
                    self._signals.take(signal.Signals[value])
                elif name == "save":
                    for tag, in_background in value.items():
                        keep, measured = self._keeps.pop(tag, (None, None))
                        self._saving.request(tag, keep, in_background, measured)
                elif name == "stop_epoch":
                    self._verdicts.request_stop_epoch()
                elif name == "control":
                    self._control.announce()
        values: dict[str, Any] = {}
        for name, value in (item for request in requests for item in request.get("settings", {}).items()):
            first = values.setdefault(name, value)
            if first != value and self._team.rank == 0:
                logger.warning("%s is set to %r and to %r by different ranks; %r is used", name, first, value, first)
        self._hyper.apply_agreed(values)
