"""Checks of what a fit is given, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookpoint.core.callback.main_callback import MainCallback
from hookpoint.core.errors import BadLoop, text
from hookpoint.core.schedule.when import When


def overrides(main: Any, *methods: str) -> bool:
    """Say whether a MainCallback has its own version of any of these methods."""
    return any(getattr(type(main), method) is not getattr(MainCallback, method) for method in methods)


def refuse_several(optimizer: Any) -> None:
    """Refuse a mapping of optimizers where nobody says when each of them steps."""
    if isinstance(optimizer, Mapping):
        raise BadLoop(
            text(
                "several optimizers are given; when each of them steps only their owner knows.",
                write="a MainCallback whose on_iter_backward uses run.optimizer['name']",
            )
        )


def check_schedule(name: str, given: Any) -> None:
    """Refuse a number where a schedule belongs: of epochs or of steps, nobody could tell."""
    if given is not None and not isinstance(given, When):
        number = given if isinstance(given, int) and given > 0 else 2
        raise BadLoop(text(f"{name}={given!r} is no schedule.", write=f"{name}=Every(epochs={number}), or Every(steps=...)"))


def check_counts(**counts: Any) -> None:
    """Refuse a number of epochs or steps that is none."""
    for name, number in counts.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise BadLoop(text(f"{name}={number!r}.", give="an integer, 0 or more"))
