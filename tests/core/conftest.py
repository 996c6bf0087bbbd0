"""What the tests of the core share."""

from __future__ import annotations

import pytest

from hookpoint.core.loop import Loop


@pytest.fixture
def train():
    """Run a small loop over these callbacks and return its run; `body` is what each training iteration does."""

    def go(callbacks, *, epochs=1, batches=(1,), val=None, body=lambda run: None, **given):
        with Loop(callbacks, **given) as run:
            for _ in run.epochs(epochs):
                for _ in run.batches(batches):
                    body(run)
                if val is not None:
                    for _ in run.batches(val, mode="val"):
                        pass
        return run

    return go
