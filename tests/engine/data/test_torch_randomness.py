from __future__ import annotations

import io
import random

import numpy as np
import pytest
import torch

from hookpoint.engine.data.rng import TorchRandomness, seed_all


def draw():
    return random.random(), np.random.randn(), torch.rand(1).item(), torch.randn(1).item()


def test_every_generator_goes_on_from_a_file_that_cannot_run_code():
    randomness, file = TorchRandomness(), io.BytesIO()
    draw()
    torch.save(randomness.state_dict(), file)
    expected = [draw(), draw()]
    seed_all(1)
    file.seek(0)
    randomness.load_state_dict(torch.load(file, weights_only=True))
    assert [draw(), draw()] == expected


class Devices:
    """Stands for CUDA: a state for each device."""

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
def test_devices_that_are_there_and_were_there_get_their_state_back(monkeypatch, saved, there, expected):
    Devices(monkeypatch, *saved)
    state = TorchRandomness().state_dict()
    devices = Devices(monkeypatch, *there)
    TorchRandomness().load_state_dict(state)
    assert devices.numbers == expected


def test_a_device_that_nobody_has_used_is_left_alone(monkeypatch):
    Devices(monkeypatch, 1, used=False)
    assert "cuda" not in TorchRandomness().state_dict()
