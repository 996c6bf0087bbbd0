"""StrictSync without a GPU: the tests watch torch's sync debug mode."""

from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, Every

MODES = {0: "default", 1: "warn", 2: "error"}


@pytest.fixture
def switch(monkeypatch):
    """Fake the sync debug mode: a list whose last item is the current mode."""
    modes = ["warn"]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: list(MODES.values()).index(modes[-1]))
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: modes.append(MODES.get(mode, mode)))
    return modes


@pytest.fixture
def strict(runner, switch, monkeypatch):
    """Create a strict runner on the CPU, and pretend that CUDA is available."""

    def make(*callbacks):
        one = runner(*callbacks, strict_sync=True)
        monkeypatch.setattr("hookpoint.engine._strict_sync.torch.cuda.is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", list)
        monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: None)
        return one

    return make


class Watch(Callback):
    """Record the mode at the points of a run."""

    def __init__(self, switch):
        self.switch, self.seen = switch, {}

    def run(self, hookpoint=None, logs=None):
        self.seen.setdefault(hookpoint, set()).add(self.switch[-1])


def test_syncs_raise_only_in_training_passes(strict, switch, batches):
    watch = Watch(switch)
    strict(watch).fit(batches, batches, epochs=2)
    for point in ("on_run_begin", "on_epoch_begin", "on_train_epoch_end", "on_val_iter_end", "on_epoch_end", "on_run_end"):
        assert watch.seen[point] == {"warn"}, point
    for point in ("on_train_epoch_begin", "on_train_iter_begin", "on_backward_end", "on_step_end", "on_train_iter_end"):
        assert watch.seen[point] == {"error"}, point
    assert switch[-1] == "warn"


def test_a_validation_in_the_middle_of_training_may_sync(strict, switch, batches):
    watch = Watch(switch)
    strict(watch).fit(batches, batches[:1], epochs=1, validate_every=Every(steps=2))
    assert watch.seen["on_val_iter_end"] == {"warn"}
    assert watch.seen["on_train_iter_end"] == {"error"}
    assert switch[-1] == "warn"


def test_a_prediction_in_the_middle_of_training_may_sync(strict, switch, batches):
    class Predict(Callback):
        def on_train_iter_begin(self, run):
            one.predict([run.batch[0]])

    watch = Watch(switch)
    one = strict(Predict(), watch)
    one.fit(batches, epochs=1)
    assert watch.seen["on_pred_iter_end"] == {"warn"}
    assert watch.seen["on_train_iter_end"] == {"error"}


def test_the_sync_mode_is_restored_after_an_error(strict, switch, batches):
    class Fail(Callback):
        def on_train_iter_end(self):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        strict(Fail()).fit(batches, epochs=1)
    assert switch == ["warn", "error", "warn"]


def test_validate_alone_does_not_change_the_sync_mode(strict, switch, batches):
    strict().validate(batches)
    assert switch == ["warn"]


def test_the_sync_mode_is_unchanged_without_a_gpu(runner, switch, batches):
    runner(strict_sync=True).fit(batches, batches, epochs=1)
    assert switch == ["warn"]
