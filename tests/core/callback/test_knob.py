"""A wrong declaration of knobs is found when callbacks are compiled."""

from __future__ import annotations

import pytest

from hookpoint import Callback, Hooks, Knob
from hookpoint.core.errors import CompileError


def test_a_single_knob_instead_of_a_tuple_raises():
    class MixUp(Callback):
        knobs = Knob("alpha")
        alpha = 0.2

        def on_epoch_end(self): ...

    with pytest.raises(CompileError) as caught:
        Hooks([MixUp()])
    expected = 'MixUp.knobs must be a tuple, got a single Knob.\n  write     knobs = (Knob("alpha", float),)'
    assert str(caught.value) == expected
