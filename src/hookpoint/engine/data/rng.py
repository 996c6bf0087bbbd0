"""Random generators: seed, save and restore all of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar

import torch

from hookpoint.engine.data.torch_randomness import TorchRandomness

Item = TypeVar("Item")

RANDOMNESS = TorchRandomness()


def seed_all(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch, including those of all devices."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


@contextmanager
def rng_kept() -> Iterator[None]:
    """Restore every generator after the block."""
    found = RANDOMNESS.state_dict()
    try:
        yield
    finally:
        RANDOMNESS.load_state_dict(found)


def separate_rng(source: Generator[Item, None, None]) -> Generator[Item, None, None]:
    """Yield from a source that draws from its own copy of the random generators."""
    own = RANDOMNESS.state_dict()
    with closing(source):
        while True:
            with rng_kept():
                RANDOMNESS.load_state_dict(own)
                try:
                    item = next(source)
                except StopIteration:
                    return
                finally:
                    own = RANDOMNESS.state_dict()
            yield item
            del item


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Use torch's deterministic algorithms inside the block, if `wanted`."""
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
