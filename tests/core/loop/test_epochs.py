from __future__ import annotations

import pytest
import torch

import hookpoint
from hookpoint import Callback, LambdaCallback
from hookpoint.callbacks import ModelSaver
from hookpoint.core.loop.loop import Loop


def test_a_second_loop_whose_epochs_are_already_done_warns(caplog):
    with Loop() as run:
        first, second = list(run.epochs(2)), list(run.epochs(2))
    assert (first, second) == ([1, 2], [])
    expected = "run.epochs(2) runs no epochs: epoch 2 is already done; write run.epochs(4) for 2 more"
    assert [record.message for record in caplog.records] == [expected]


def test_a_second_loop_in_a_resumed_run_warns_too(tmp_path, caplog, capsys):
    def train(*totals):
        model = torch.nn.Linear(1, 1).requires_grad_(False)
        with hookpoint.Loop([ModelSaver()], model=model, workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
            return [list(run.epochs(total)) for total in totals]

    assert (train(2), train(3, 1)) == ([[1, 2]], [[3], []])
    assert [record.message for record in caplog.records] == [
        "run.epochs(1) runs no epochs: epoch 3 is already done; write run.epochs(4) for 1 more"
    ]
    assert "already finished" not in capsys.readouterr().err
    caplog.clear()
    assert train(1, 2, 3) == [[], [], []]  # the script's first loops have ended before the checkpoint
    assert caplog.records == []
    assert "run has already finished (3 of 3 epochs)" in capsys.readouterr().err


def test_a_second_loop_with_a_larger_total_or_after_a_stop_does_not_warn(caplog):
    with Loop() as run:
        assert [*run.epochs(2), *run.epochs(3), *run.epochs(None if run.epoch < 3 else 4)] == [1, 2, 3, 4]
        run.stop()
        assert list(run.epochs(2)) == []
    assert caplog.records == []


def test_epochs_count_from_one():
    with Loop() as run:
        seen = []
        for epoch in run.epochs(3):
            assert run.epoch == epoch
            seen.append(epoch)
    assert seen == [1, 2, 3]


def test_epochs_continue_up_to_the_given_total():
    with Loop() as run:
        assert list(run.epochs(2)) == [1, 2]
        assert list(run.epochs(2)) == []
        assert list(run.epochs(4)) == [3, 4]
        assert list(run.epochs(0)) == []


def test_without_a_total_epochs_end_when_the_run_is_stopped():
    with Loop() as run:
        for epoch in run.epochs():
            assert run.max_epochs is None
            if epoch == 4:
                run.stop("enough")
    assert run.epoch == 4


def test_epoch_complete_is_false_until_on_epoch_end():
    seen = []
    look = LambdaCallback(
        on_epoch_begin=lambda run, epoch: seen.append(("begin", epoch, run.epoch_complete)),
        on_epoch_end=lambda run, epoch: seen.append(("end", epoch, run.epoch_complete)),
    )
    with Loop([look]) as run:
        seen.extend(("body", epoch, run.epoch_complete) for epoch in run.epochs(2))
    assert seen == [(what, epoch, what == "end") for epoch in (1, 2) for what in ("begin", "body", "end")]


@pytest.mark.parametrize(
    ("body", "complete"),
    [
        (lambda run: list(run.batches("ab")), True),
        (lambda run: list(run.batches(iter("ab"))), True),
        (lambda run: next(run.batches("ab")), False),
        (lambda run: None, True),
        (lambda run: list(run.batches("ab", mode="val")), True),
        (lambda run: next(run.batches("ab", mode="val")), True),
        (lambda run: [run.stop_epoch() for _ in run.batches("ab")], False),
        (lambda run: [run.stop_epoch() for batch in run.batches("ab") if batch == "b"], True),
        (lambda run: [run.stop_epoch() for batch in run.batches(iter("ab")) if batch == "b"], False),
        (lambda run: [run.stop("why") for _ in run.batches("ab")], False),
        (lambda run: [run.stop("why") for batch in run.batches("ab") if batch == "b"], True),
        (lambda run: [run.skip_batch() for _ in run.batches("ab")], True),
    ],
    ids=[
        "all batches",
        "all of an unsized loader",
        "a broken off pass",
        "no training",
        "validation",
        "broken off validation",
        "stop_epoch",
        "stop_epoch in the last batch",
        "stop_epoch in the last batch of an unsized loader",
        "stop",
        "stop in the last batch",
        "skipped batches",
    ],
)
def test_an_epoch_is_complete_when_its_training_saw_all_its_data(body, complete):
    seen = []
    with Loop([LambdaCallback(on_epoch_end=lambda run: seen.append(run.epoch_complete))]) as run:
        for _ in run.epochs(1):
            body(run)
    assert seen == [complete]
    assert run.epoch_complete == complete


def test_a_trigger_runs_only_for_complete_epochs():
    class Trigger(Callback):
        def __init__(self):
            self.epochs = []

        def on_trigger(self, epoch):
            self.epochs.append(epoch)

    trigger = Trigger()
    with Loop([trigger]) as run:
        for epoch in run.epochs(3):
            for _ in run.batches("ab"):
                if epoch == 2:
                    run.stop_epoch()
    assert trigger.epochs == [1, 3]


def test_an_epoch_stopped_at_on_epoch_begin_is_not_yielded():
    stop = LambdaCallback(on_epoch_begin=lambda run, epoch: epoch == 2 and run.stop_epoch())
    with Loop([stop]) as run:
        assert list(run.epochs(3)) == [1, 3]


def test_epochs_left_by_break_can_be_continued():
    with Loop() as run:
        for epoch in run.epochs(4):
            if epoch == 2:
                break
        assert list(run.epochs(4)) == [3, 4]


def test_two_iterators_over_epochs_share_the_count():
    with Loop() as run:
        first, second = run.epochs(3), run.epochs(3)
        assert [next(first), next(second), next(first)] == [1, 2, 3]
        assert list(first) == list(second) == []
