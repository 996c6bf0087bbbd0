"""Random numbers: seeded together, kept, and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, those of all devices included."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def rng_kept() -> Iterator[None]:
    """Put every generator back to where it was found."""
    python, host = random.getstate(), torch.get_rng_state()
    numpy: Any = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(host)
        if numpy is not None:
            sys.modules["numpy"].random.set_state(numpy)
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Use torch's deterministic algorithms inside the block, where that is wanted."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = benchmark
