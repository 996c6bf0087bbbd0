"""Randomness: save and restore the state of random generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


class PlainRandomness:
    """All random generators of a run as one stateful object: Python's, and NumPy's if NumPy is in use.

    An engine adds its framework's generators.
    """

    def state_dict(self) -> dict[str, Any]:
        state = {"python": state_of(random)}
        if "numpy" in sys.modules:
            state["numpy"] = state_of(sys.modules["numpy"].random)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        put_state(random, state["python"])
        if "numpy" in state:
            put_state(import_module("numpy").random, state["numpy"])


def state_of(generator: Any) -> Any:
    """Return the state of a Python or NumPy generator, in plain types. For a global generator, pass its module."""
    if hasattr(generator, "getstate"):
        version, numbers, gauss = generator.getstate()
        return [version, list(numbers), gauss]
    if hasattr(generator, "get_state"):
        return _plain(generator.get_state(legacy=False))
    return _plain(generator.bit_generator.state)


def put_state(generator: Any, state: Any) -> None:
    """Restore the state that `state_of` returned."""
    if hasattr(generator, "setstate"):
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers), gauss))
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value
