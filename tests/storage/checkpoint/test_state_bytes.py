"""State bytes: a state survives a round trip through bytes, and invalid bytes raise."""

from __future__ import annotations

import pickle

import pytest
import torch

from hookpoint.core.errors import DamagedCheckpoint, NotSaveable
from hookpoint.storage.checkpoint.state_bytes import MAGIC, packed, unpacked

PLAIN = {"clocks": {"epoch": 2}, "callbacks": {"mine": {1: (2, None), "inf": float("inf")}}}


def test_a_plain_state_is_json_and_survives_a_round_trip():
    data = packed(PLAIN)
    assert data.startswith(MAGIC + b" json ")
    assert unpacked(data, "the file") == PLAIN


def test_a_state_with_tensors_survives_a_round_trip():
    data = packed({"callbacks": {"mine": {"average": torch.arange(3.0)}}})
    assert data.startswith(MAGIC + b" pt ")
    assert unpacked(data, "the file")["callbacks"]["mine"]["average"].tolist() == [0.0, 1.0, 2.0]


def test_a_state_that_could_not_be_read_back_raises():
    with pytest.raises(NotSaveable, match="lock"):
        packed({"callbacks": {"mine": {"lock": object()}}})


class Code:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("data", [b"", pickle.dumps(Code()), MAGIC + b" exe abc\ncode"])
def test_other_bytes_are_rejected_without_running_code(data, capsys):
    with pytest.raises(DamagedCheckpoint, match="the file is not a hookpoint state"):
        unpacked(data, "the file")
    assert capsys.readouterr().out == ""


def test_a_changed_byte_is_detected():
    data = bytearray(packed(PLAIN))
    data[-3] ^= 1
    with pytest.raises(DamagedCheckpoint, match="the file differs from what was written"):
        unpacked(bytes(data), "the file")
