"""Randomness: where the generators of random numbers stand, to be kept and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any, Protocol


class Randomness(Protocol):
    """Every generator that a run draws from, as one thing with a state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class HostRandomness:
    """Python's generator, and NumPy's where it is in use. An engine adds those of its framework."""

    def state_dict(self) -> dict[str, Any]:
        version, numbers, gauss = random.getstate()
        state: dict[str, Any] = {"python": [version, list(numbers), gauss]}
        if "numpy" in sys.modules:
            kept = sys.modules["numpy"].random.get_state(legacy=False)
            if kept["bit_generator"] == "MT19937":
                words = {"key": kept["state"]["key"].tolist(), "pos": int(kept["state"]["pos"])}
                state["numpy"] = [words, int(kept["has_gauss"]), float(kept["gauss"])]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        version, numbers, gauss = state["python"]
        random.setstate((version, tuple(numbers), gauss))
        if "numpy" in state:
            import_numpy = __import__("numpy")
            words, has_gauss, cached = state["numpy"]
            import_numpy.random.set_state(("MT19937", words["key"], words["pos"], has_gauss, cached))
