"""Plans: define what each command does. Every rank checks a plan before any rank acts on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hookpoint.core.control.controlled_loop import ControlledLoop
from hookpoint.core.errors import BadValue, HookpointError
from hookpoint.core.text.plain_values import plain
from hookpoint.steering._settings import Settings
from hookpoint.steering._trace_recorder import TraceRecorder
from hookpoint.steering.control_command import MAX_TEXT

MAX_TRACE_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked command. `act` carries it out and returns fields for the answer.

    `undo`, if present, reverses the effect of `act` on this rank, even if `act` failed halfway. `is_permanent` marks a plan
    whose effect on this rank cannot be undone.
    """

    act: Callable[[], dict[str, Any]]
    undo: Callable[[], None] | None = None
    is_permanent: bool = False


class Plans:
    """Check commands and return plans to carry them out. Checking has no side effects. A refused command raises an error.

    `cannot` maps each command that this run does not support to the reason.
    """

    def __init__(self, loop: ControlledLoop, settings: Settings, recorder: TraceRecorder) -> None:
        self._loop, self._settings, self._recorder = loop, settings, recorder
        self.cannot = self._unsupported()
        self._planners: Mapping[str, Callable[[Mapping[str, Any]], Plan]] = {
            "set": self._set,
            "call": self._call,
            "log-every": self._log_every,
            "pause": self._pause,
            "resume": self._resume,
            "save": self._save,
            "validate": self._validate,
            "trace": self._trace,
            "stop": self._stop,
        }
        self.commands = tuple(name for name in self._planners if name not in self.cannot)

    def plan(self, do: str, args: Mapping[str, Any], expect: Mapping[str, Any]) -> Plan:
        if do in self.cannot:
            raise BadValue(f"{do}: {self.cannot[do]}.")
        for name, value in expect.items():
            if (now := plain(self._settings.value(name))) != value:  # commands contain lists, not tuples
                raise BadValue(f"{name} is {now!r}, not {value!r} as expected.")
        return self._planners[do](args)

    def _unsupported(self) -> dict[str, str]:
        loop, cannot = self._loop, {}
        run, host = loop.run, loop.host
        if host is not None and run.world_size > 1 and not loop.is_in_team:
            why = f"{host.name} runs {run.world_size} ranks, which hookpoint does not coordinate"
            return dict.fromkeys(("set", "call", "log-every", "pause", "resume", "save", "validate", "trace", "stop"), why)
        if host is not None:
            cannot["validate"] = f"{host.name} runs validation itself"
            if "save" in host.cannot:
                cannot["save"] = f"{host.name} does not support it: {host.cannot['save']}"
        if not loop.log_every:
            cannot["log-every"] = "log_every is 0 in this run: there are no log steps"
        if not self._recorder.is_supported:
            cannot["trace"] = "this run has no profiler"
        return cannot

    # The commands

    def _set(self, args: Mapping[str, Any]) -> Plan:
        settings, values = self._settings, args.get("values")
        if not isinstance(values, dict) or not values:
            raise BadValue("set: no values given.")
        settings.check(values)
        was = {name: settings.value(name) for name in values}
        change = settings.change(values)

        def act() -> dict[str, Any]:
            change.apply()
            notes = [f"{', '.join(others)} may set {name} again" for name in values if (others := settings.who_else_sets(name))]
            now = {name: settings.value(name) for name in values}
            return {"was": was, "now": now, **({"note": "; ".join(notes)} if notes else {})}

        return Plan(act, change.undo)

    def _call(self, args: Mapping[str, Any]) -> Plan:
        name = args.get("action")
        if not isinstance(name, str):
            raise BadValue("call: no action given.")
        action = self._settings.find_action(name)

        def act() -> dict[str, Any]:
            if action is not None:
                action()
            return {}

        return Plan(act, is_permanent=action is not None)

    def _log_every(self, args: Mapping[str, Any]) -> Plan:
        return self._set({"values": {"log_every": args.get("steps")}})

    def _pause(self, args: Mapping[str, Any]) -> Plan:
        clocks = self._loop.clocks

        def act() -> dict[str, Any]:
            was_paused = clocks.is_paused
            self._loop.pause()
            return {"note": "the run was already paused"} if was_paused else {}

        return Plan(act)

    def _resume(self, args: Mapping[str, Any]) -> Plan:
        clocks = self._loop.clocks

        def act() -> dict[str, Any]:
            if not clocks.is_paused:
                return {"note": "the run was not paused"}
            self._loop.resume()
            return {}

        return Plan(act)

    def _save(self, args: Mapping[str, Any]) -> Plan:
        tag = args.get("tag", "manual")
        if not isinstance(tag, str) or not 0 < len(tag) <= 100 or not tag.isprintable() or "/" in tag or tag.startswith("."):
            raise BadValue(f"save: the tag must be a short string without slashes, got {str(tag)[:50]!r}.")
        self._loop.check_save()

        def act() -> dict[str, Any]:
            path, problem = self._loop.save(tag)
            if problem:
                raise BadValue(f"save: {problem.splitlines()[0]}")
            return {"path": str(path)}

        return Plan(act)

    def _validate(self, args: Mapping[str, Any]) -> Plan:
        run = self._loop.run
        if run.val_loader is None:
            raise BadValue(
                "validate: this run has no validation data: pass it to fit(train, val), or validate in the loop first."
            )

        def act() -> dict[str, Any]:
            values = run.evaluate(run.val_loader, results=dict)
            return {"values": {name: float(value) for name, value in values.items()}}

        return Plan(act)

    def _trace(self, args: Mapping[str, Any]) -> Plan:
        steps = args.get("steps")
        if type(steps) is not int or not 1 <= steps <= MAX_TRACE_STEPS:
            raise BadValue(f"trace: steps must be an integer from 1 to {MAX_TRACE_STEPS}, got {steps!r}.")
        if self._recorder.is_recording:
            raise BadValue("trace: another trace is being recorded.")

        def act() -> dict[str, Any]:
            if problem := self._recorder.start(steps):
                raise BadValue(f"trace: {problem}.")
            return {}

        return Plan(act, self._recorder.cancel)

    def _stop(self, args: Mapping[str, Any]) -> Plan:
        reason = args.get("reason") or "stopped by a command"
        if not isinstance(reason, str) or len(reason) > MAX_TEXT:
            raise BadValue(f"stop: the reason must be a string of at most {MAX_TEXT} characters.")

        def act() -> dict[str, Any]:
            self._loop.run.stop(reason, same_on_all_ranks=True)
            return {}

        return Plan(act)


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message.

    If the error is a HookpointError that lists valid names, these names are added. If the error is not a HookpointError, its
    type is added.

    >>> reason_of(BadValue("there is no action 'x'.", known="Noise.reset"))
    "there is no action 'x'. Known: Noise.reset"
    """
    headline, *cures = str(error).splitlines() or [""]
    if not isinstance(error, HookpointError):
        return f"{type(error).__name__}: {headline}"
    choices = [cure.split(maxsplit=1) for cure in cures]
    return " ".join([headline, *(f"{verb.capitalize()}: {names}" for verb, names in choices if verb in ("known", "choose"))])
