"""Where a pass stands, and what monitors are told of it."""

from __future__ import annotations

import pytest

from hookpoint import Callback
from hookpoint.core.loop.loop import Loop


class Unsized:
    def __iter__(self):
        return iter(range(3))


class CannotTell(Unsized):
    def __len__(self):
        raise TypeError("this kind of data has no length")


def test_progress_counts_the_batches_that_are_done():
    seen = []
    with Loop() as run:
        assert run.progress is None
        for _ in run.epochs(1):
            assert run.progress is None
            seen += [run.progress for _ in run.batches(range(3))]
            assert run.progress is None
    assert run.progress is None
    assert seen == [("train", 0, 3), ("train", 1, 3), ("train", 2, 3)]


def test_the_innermost_pass_counts():
    seen = []
    with Loop() as run:
        for batch in run.batches(range(2)):
            if batch == 1:
                for _ in run.batches(range(5), mode="val"):
                    seen.append(run.progress)
                    break
                run.log(x=1)
                seen.append(run.progress)
    assert seen == [("val", 0, 5), ("train", 1, 2)]


def test_progress_is_complete_at_the_end_of_a_pass():
    class Look(Callback):
        def on_train_epoch_begin(self, run):
            self.begin = run.progress

        def on_train_epoch_end(self, run):
            self.end = run.progress

    look = Look()
    with Loop([look]) as run:
        for _ in run.batches(range(4)):
            pass
    assert (look.begin, look.end) == (("train", 0, 4), ("train", 4, 4))


@pytest.mark.parametrize("loader", [Unsized(), CannotTell(), iter(range(3))], ids=["none", "raises", "iterator"])
def test_a_loader_may_not_know_its_length(loader):
    with Loop() as run:
        for batch in run.batches(loader):
            assert run.progress == ("train", batch, None)
            if batch == 1:
                run.stop()
    assert run.iteration == 2
    assert run.epoch_complete is False


@pytest.mark.parametrize("log_every", [50, 100, 128, 200])
def test_a_log_step_sends_the_mean_of_everything_since_the_last_one(log_every, monitor):
    with Loop([monitor], log_every=log_every) as run:
        for batch in run.batches(range(400)):
            run.log(loss=batch)
    sent = [(record.step, record.scalars()["loss"]) for record in monitor.records if record.at == "step"]
    steps = range(log_every, 401, log_every)
    assert sent == [(step, step - (log_every + 1) / 2) for step in steps]


def test_what_is_logged_between_passes_is_sent_with_the_clocks_of_then(monitor):
    with Loop([monitor], log_every=2) as run:
        for epoch in run.epochs(2):
            run.log(rate=epoch)
            for _ in run.batches(range(4)):
                pass
    assert [(r.at, r.step, r.epoch, r.scalars()) for r in monitor.records if r.kind == "scalars"] == [
        ("value", 0, 1, {"rate": 1.0}),
        ("value", 4, 2, {"rate": 2.0}),
    ]


def test_records_of_means_say_which_kind_of_pass_they_are_of(monitor):
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
