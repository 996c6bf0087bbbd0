"""Random numbers: seeded together, kept, and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

import torch

Item = TypeVar("Item")


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, those of all devices included."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


class RngState(NamedTuple):
    """Where every generator stands."""

    python: Any
    host: torch.Tensor
    numpy: Any
    devices: list[torch.Tensor] | None

    @classmethod
    def now(cls) -> RngState:
        numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
        return cls(random.getstate(), torch.get_rng_state(), numpy, devices)

    def restore(self) -> None:
        random.setstate(self.python)
        torch.set_rng_state(self.host)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        if self.devices is not None:
            torch.cuda.set_rng_state_all(self.devices)


@contextmanager
def rng_kept() -> Iterator[None]:
    """Put every generator back to where it was found."""
    found = RngState.now()
    try:
        yield
    finally:
        found.restore()


def apart(source: Generator[Item, None, None]) -> Generator[Item, None, None]:
    """Yield what the source yields; the random numbers it draws are missing from nobody else's."""
    own = RngState.now()
    with closing(source):
        while True:
            with rng_kept():
                own.restore()
                try:
                    item = next(source)
                except StopIteration:
                    return
                finally:
                    own = RngState.now()
            yield item
            del item


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Use torch's deterministic algorithms inside the block, where that is wanted."""
    if not wanted:
        yield
        return
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
        torch.backends.cudnn.benchmark = benchmark
