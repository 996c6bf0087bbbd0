from __future__ import annotations

import re

import pytest

from hookpoint.callbacks import CheckpointConfig
from hookpoint.core.checkpoint.store import Kept


def kept(config, *minutes):
    return [one.step for one in config.keep([Kept(f"step-{s}", s, 60.0 * at) for s, at in enumerate(minutes, 1)])]


@pytest.mark.parametrize(
    ("given", "schedule"),
    [
        ({}, "Every(steps=1)"),
        ({"save_checkpoint_steps": 100}, "Every(steps=100)"),
        ({"save_checkpoint_seconds": 60}, "Every(seconds=60)"),
        ({"save_checkpoint_steps": None, "save_checkpoint_seconds": 0.5}, "Every(seconds=0.5)"),
        ({"save_checkpoint_steps": 0, "save_checkpoint_seconds": 60}, "Every(seconds=60)"),
        ({"save_checkpoint_steps": 100, "save_checkpoint_seconds": 60}, "(Every(steps=100) | Every(seconds=60))"),
    ],
)
def test_the_schedule_combines_steps_and_seconds(given, schedule):
    assert repr(CheckpointConfig(**given).schedule) == schedule


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, [4, 5, 6, 7, 8]),
        ({"keep_checkpoint_max": 2}, [7, 8]),
        ({"keep_checkpoint_max": 0, "keep_checkpoint_per_n_minutes": 10}, [1, 3, 5, 7]),
        ({"keep_checkpoint_max": 2, "keep_checkpoint_per_n_minutes": 10}, [1, 3, 5, 7, 8]),
        ({"keep_checkpoint_max": 0}, [8]),
        ({"keep_checkpoint_max": None, "keep_checkpoint_per_n_minutes": None}, [8]),
    ],
)
def test_the_rules_for_keeping_checkpoints_are_combined(given, steps):
    assert kept(CheckpointConfig(**given), *range(0, 40, 5)) == steps


def test_arguments_are_in_the_order_of_mindspore():
    config = CheckpointConfig(10, 0, 3, 0, True, True, None, None, None, "AES-GCM", True, True)
    assert (config.async_save, config.exception_save) == (True, True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"save_checkpoint_steps": 0},
            "CheckpointConfig never saves.\n  set       save_checkpoint_steps or save_checkpoint_seconds above 0",
        ),
        (
            {"save_checkpoint_steps": -1},
            "CheckpointConfig: save_checkpoint_steps must be an integer >= 1, got -1.",
        ),
        (
            {"save_checkpoint_seconds": -1},
            "CheckpointConfig: save_checkpoint_seconds must be a number > 0, got -1.",
        ),
        (
            {"keep_checkpoint_max": 1.5},
            "CheckpointConfig: keep_checkpoint_max must be an integer >= 1, got 1.5.",
        ),
        (
            {"keep_checkpoint_per_n_minutes": "10"},
            "CheckpointConfig: keep_checkpoint_per_n_minutes must be a number > 0, got '10'.",
        ),
        (
            {"integrated_save": False},
            (
                "CheckpointConfig: integrated_save is not supported: checkpoints are never split."
                "\n  leave     integrated_save out"
            ),
        ),
        (
            {"saved_network": object()},
            "CheckpointConfig: saved_network is not supported: the run's model is saved.",
        ),
        ({"enc_key": b"secret"}, "CheckpointConfig: enc_key is not supported: do not write a key in code;"),
        ({"enc_mode": "SM4-CBC"}, "CheckpointConfig: enc_mode is not supported: checkpoints are encrypted with AES-GCM only."),
        ({"incremental": True}, "CheckpointConfig: incremental is not supported: every checkpoint is complete."),
        ({"enable_redundance": True}, "CheckpointConfig: enable_redundance is not supported: every checkpoint is complete."),
    ],
)
def test_invalid_and_unsupported_arguments_raise(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        CheckpointConfig(**given)


def test_the_error_does_not_contain_the_key():
    with pytest.raises(ValueError, match="enc_key") as caught:
        CheckpointConfig(enc_key=b"secret")
    assert "secret" not in str(caught.value)
