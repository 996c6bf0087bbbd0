from __future__ import annotations

import io
import random

import numpy as np
import pytest
import torch

from hookpoint.engine.data.rng import TorchRandomness, deterministic_algorithms, rng_kept, seed_all, separate_rng


def draw():
    return random.random(), np.random.rand(), np.random.randn(), torch.rand(1).item(), torch.randn(1).item()


@pytest.mark.parametrize("seed", [0, 7, 2**40, -1])
def test_seed_all_seeds_every_generator(seed):
    seed_all(seed)
    first = draw()
    assert draw() != first
    seed_all(seed)
    assert draw() == first


@pytest.mark.parametrize("fails", [False, True])
def test_rng_kept_restores_every_generator(fails):
    seed_all(1)
    expected = draw()
    seed_all(1)
    with pytest.raises(ValueError, match="inside") if fails else rng_kept(), rng_kept():
        draw()
        if fails:
            raise ValueError("inside")
    assert draw() == expected


def test_separate_rng_does_not_affect_other_draws():
    def source():
        for _ in range(3):
            yield draw()

    seed_all(1)
    alone = list(source())
    seed_all(2)
    others = [draw() for _ in range(3)]

    seed_all(1)
    drawn = separate_rng(source())
    got = [next(drawn)]
    seed_all(2)
    mine = [draw()]
    got.append(next(drawn))
    mine.append(draw())
    got.extend(drawn)
    mine.append(draw())
    assert got == alone
    assert mine == others


@pytest.mark.parametrize("ends", ["close", "error"])
def test_separate_rng_closes_its_source_and_restores_the_generators(ends):
    closed = []

    def source():
        try:
            draw()
            yield 1
            draw()
            raise ValueError("source")
        finally:
            closed.append(True)

    seed_all(1)
    expected = draw()
    seed_all(1)
    drawn = separate_rng(source())
    assert next(drawn) == 1
    if ends == "close":
        drawn.close()
    else:
        with pytest.raises(ValueError, match="source"):
            next(drawn)
    assert closed == [True]
    assert draw() == expected


@pytest.mark.parametrize("warns", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_deterministic_algorithms_are_restored_after_the_block(before, warns):
    torch.use_deterministic_algorithms(before, warn_only=warns)
    torch.backends.cudnn.benchmark = True
    try:
        with pytest.raises(ValueError, match="inside"), deterministic_algorithms(True):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            assert not torch.backends.cudnn.benchmark
            raise ValueError("inside")
        assert torch.are_deterministic_algorithms_enabled() == before
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warns
        assert torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False


def test_deterministic_algorithms_false_changes_nothing():
    with deterministic_algorithms(False):
        assert not torch.are_deterministic_algorithms_enabled()


# Checkpoints


def test_every_generator_is_restored_from_a_weights_only_file():
    randomness, file = TorchRandomness(), io.BytesIO()
    draw()
    torch.save(randomness.state_dict(), file)
    expected = [draw(), draw()]
    seed_all(1)
    file.seek(0)
    randomness.load_state_dict(torch.load(file, weights_only=True))
    assert [draw(), draw()] == expected


class Devices:
    """Fake CUDA generators, with a state for each device."""

    def __init__(self, monkeypatch, *states, used=True):
        self.states = [torch.tensor(state, dtype=torch.uint8) for state in states]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(self.states))
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.states))
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(self.states))
        monkeypatch.setattr(torch.cuda, "set_rng_state", self.put)

    def put(self, state, device):
        self.states[device] = state

    @property
    def numbers(self):
        return [state.tolist() for state in self.states]


@pytest.mark.parametrize(
    ("saved", "there", "expected"),
    [
        ([1, 2], [8, 9], [1, 2]),
        ([1, 2, 3], [8, 9], [1, 2]),
        ([1], [8, 9], [1, 9]),
        ([], [8, 9], [8, 9]),
        ([1, 2], [], []),
    ],
)
def test_devices_present_at_save_and_load_are_restored(monkeypatch, saved, there, expected):
    Devices(monkeypatch, *saved)
    state = TorchRandomness().state_dict()
    devices = Devices(monkeypatch, *there)
    TorchRandomness().load_state_dict(state)
    assert devices.numbers == expected


def test_an_unused_cuda_device_is_not_saved(monkeypatch):
    Devices(monkeypatch, 1, used=False)
    assert "cuda" not in TorchRandomness().state_dict()
