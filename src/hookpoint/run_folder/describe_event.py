"""Describe the events in events.jsonl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookpoint.run_folder.formatting import number, shown
from hookpoint.run_folder.json_records import number_of
from hookpoint.storage.json_rows import OWN_KEYS


def describe_event(event: Mapping[str, Any]) -> str:
    """Describe an event in one line. If the kind of event is unknown, or a field is missing, list the event's fields.

    >>> describe_event({"event": "best", "metric": "loss", "value": 0.5, "previous": 0.75})
    'best loss so far: 0.5 (before: 0.75)'
    >>> describe_event({"event": "lunch", "dish": "soup"})
    'lunch: dish soup'
    >>> describe_event({"event": "control", "do": "set", "args": {"values": {"lr": 0.1}}, "status": "applied", "by": "me@vm:7"})
    'set lr=0.1: applied, by me@vm:7'
    >>> describe_event({"event": "exception", "type": "KeyboardInterrupt", "text": ""})
    'failed with KeyboardInterrupt'
    """
    try:
        text = _TEXTS[event["event"]](event)
    except (KeyError, TypeError):
        fields = ", ".join(f"{name} {_value(value)}" for name, value in event.items() if name not in OWN_KEYS)
        text = f"{event.get('event')}: {fields}" if fields else str(event.get("event"))
    return shown(text)


def describe_order(do: Any, args: Any) -> str:
    """Return a one-line description of a command that was sent to a run.

    >>> describe_order("set", {"values": {"learning_rate": 0.01}}), describe_order("stop", {"reason": "too slow"})
    ('set learning_rate=0.01', 'stop too slow')
    """
    if not isinstance(args, Mapping):
        return str(do)
    values = args.get("values")
    if isinstance(values, Mapping):
        return " ".join([str(do), *(f"{name}={_value(value)}" for name, value in values.items())])
    return " ".join([str(do), *map(_value, args.values())])


def _value(value: Any) -> str:
    as_number = number_of(value)
    if as_number is not None and not isinstance(value, int):
        return number(as_number)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _saved(event: Mapping[str, Any]) -> str:
    took = f" in {_value(event['seconds'])} s" if "seconds" in event else ""
    folder = str(event["path"]).replace("\\", "/").rpartition("/")[2]
    return f"saved {folder} ({_value(event['tags'])}){took}"


def _best(event: Mapping[str, Any]) -> str:
    before = f" (before: {_value(event['previous'])})" if event.get("previous") is not None else ""
    return f"best {event['metric']} so far: {_value(event['value'])}{before}"


def _control(event: Mapping[str, Any]) -> str:
    """Describe a command's sender, request and outcome."""
    was, now, values = event.get("was"), event.get("now"), event.get("values")
    status = f"{event['status']} again" if event.get("replayed") else event["status"]
    details = [str(event[name]).rstrip(".") for name in ("path", "reason", "note") if event.get(name)]
    if isinstance(now, Mapping):
        before = was if isinstance(was, Mapping) else {}
        details += [f"{name} {_value(before[name])} -> {_value(now[name])}" for name in now if name in before]
    if isinstance(values, Mapping):
        details += [f"{name} {_value(value)}" for name, value in values.items()]
    sender = [f"by {event['by']}"] if event.get("by") else []
    return f"{describe_order(event['do'], event.get('args'))}: {', '.join([status, *details, *sender])}"


_TEXTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "best": _best,
    "control": _control,
    "exception": lambda event: f"failed with {event['type']}" + (f": {event['text']}" if event["text"] else ""),
    "restore": lambda event: (
        f"restored the weights from step {event['step_of_best']}, {event['metric']} {_value(event['value'])}"
    ),
    "resume": lambda event: f"resumed from {event['path']}",
    "save": _saved,
    "save_failed": lambda event: f"cannot save (failure {event['in_a_row']} in a row): {event['reason']}",
    "save_refused": lambda event: f"did not save: {event['reason']}",
    "setting": lambda event: (
        f"{event['param']} set to {_value(event['value'])}, from {_value(event['previous'])}, by {event['by']}"
    ),
    "setting_refused": lambda event: f"refused line {event['line']} of {event['file']}: {event['reason']}",
    "signal": lambda event: f"received {event['received']}",
    "stop": lambda event: f"stop requested: {event['reason']}",
    "top": lambda event: f"{event['metric']} {_value(event['value'])} is number {event['place']} of the best",
}
