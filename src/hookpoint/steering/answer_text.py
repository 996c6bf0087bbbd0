"""answer_text: describe a run's answer to a live-control command in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.steering.control_answer import APPLIED, ControlAnswer


def answer_text(answer: ControlAnswer) -> str:
    """Describe a run's answer to a live-control command in one line.

    An answer may contain text from untrusted files, so the description is escaped for the terminal.

    >>> answer_text(ControlAnswer("1", "applied", 12, was={"learning_rate": 0.1}, now={"learning_rate": 0.01}))
    'applied at step 12: learning_rate 0.1 -> 0.01'
    >>> answer_text(ControlAnswer("1", "refused", reason="there is no validation data"))
    'refused: there is no validation data'
    """
    at = f" at step {answer.step}" if answer.status == APPLIED and answer.step is not None else ""
    details = "; ".join(_details(answer))
    return f"{answer.status}{at}{': ' if details else ''}{details}"


def _details(answer: ControlAnswer) -> Iterator[str]:
    was, now = answer.was, answer.now
    if isinstance(now, Mapping):
        yield ", ".join(_change(name, was, value) for name, value in now.items())
    elif now is not None:
        yield f"{was} -> {now}"
    if isinstance(answer.values, Mapping):
        yield ", ".join(f"{name} {_value(value)}" for name, value in answer.values.items())
    yield from (str(text) for text in (answer.path, answer.reason, answer.note) if text)


def _change(name: str, was: Any, value: Any) -> str:
    before = f"{was[name]} -> " if isinstance(was, Mapping) and name in was else ""
    return f"{name} {before}{value}"


def _value(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
