"""The records that monitors receive about passes and epochs."""

from __future__ import annotations

import pytest

from hookpoint import Callback
from hookpoint.core.loop.loop import Loop


@pytest.mark.parametrize("log_every", [50, 100, 128, 200])
def test_a_log_step_sends_the_mean_since_the_previous_log_step(log_every, monitor):
    with Loop([monitor], log_every=log_every) as run:
        for batch in run.batches(range(400)):
            run.log(loss=batch)
    sent = [(record.step, record.scalars()["loss"]) for record in monitor.records if record.at == "step"]
    steps = range(log_every, 401, log_every)
    assert sent == [(step, step - (log_every + 1) / 2) for step in steps]


def test_a_value_logged_between_passes_is_sent_with_its_own_clocks(monitor):
    with Loop([monitor], log_every=2) as run:
        for epoch in run.epochs(2):
            run.log(rate=epoch)
            for _ in run.batches(range(4)):
                pass
    assert [(r.at, r.step, r.epoch, r.scalars()) for r in monitor.records if r.kind == "scalars"] == [
        ("value", 0, 1, {"rate": 1.0}),
        ("value", 4, 2, {"rate": 2.0}),
    ]


def test_records_of_means_have_the_mode_of_their_pass(monitor):
    with Loop([monitor], log_every=2) as run:
        for _ in run.batches(range(2)):
            run.log(loss=1.0)
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
        run.log(x=1.0)
    scalars = [(record.at, record.mode, *record.values) for record in monitor.records if record.kind == "scalars"]
    assert scalars == [
        ("step", "train", "loss"),
        ("epoch", "train", "loss"),
        ("epoch", "val", "val_loss"),
        ("value", None, "x"),
    ]


def test_the_end_of_an_epoch_is_an_event_after_all_its_values(monitor):
    class Late(Callback):
        def on_epoch_end(self, run):
            run.log(late=1.0)

    with Loop([Late(), monitor]) as run:
        for epoch in run.epochs(2):
            for _ in run.batches(range(2)):
                run.log(loss=1.0)
                if epoch == 2:
                    break
    assert [(record.kind, dict(record.values)) for record in monitor.records if "loss" not in record.values] == [
        ("scalars", {"late": 1.0}),
        ("event", {"epoch_end": {"complete": True}}),
        ("scalars", {"late": 1.0}),
        ("event", {"epoch_end": {"complete": False}}),
    ]
