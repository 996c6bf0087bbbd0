"""Each piece of the state matters: without any one of them, the results differ."""

from __future__ import annotations

import signal

import pytest
from scale import FULL, chosen
from subject import Variant

KILLED_AT = 13  # in the middle of the second epoch; the newest checkpoint is of step 12

RUNNER, LOOP = Variant(), Variant(kind="loop")
PIECES = {
    "generators": (RUNNER, ["rng"]),
    "generator of torch": (RUNNER, ["rng", "torch"]),
    "generator of Python": (RUNNER, ["rng", "python"]),
    "generator of NumPy": (RUNNER, ["rng", "numpy"]),
    "place in the data": (Variant(own_generator=True), ["data"]),
    "place in the data, own loop": (Variant(kind="loop", own_generator=True), ["data"]),
    "place in the epoch": (RUNNER, ["place"]),
    "model": (RUNNER, ["parts", "model"]),
    "optimizer": (RUNNER, ["parts", "optimizer"]),
    "optimizer, own loop": (LOOP, ["parts", "optimizer"]),
    "scheduler": (RUNNER, ["parts", "lr_scheduler"]),
    "scheduler, own loop": (LOOP, ["parts", "lr_scheduler"]),
    "scaler": (Variant(fp16=True), ["parts", "stepper", "scaler"]),
    "stepper": (Variant(plateau=True), ["parts", "stepper"]),
    "validation's schedule": (Variant(plateau=True), ["parts", "fit/validation"]),
    "callbacks": (RUNNER, ["callbacks"]),
    "callbacks, own loop": (LOOP, ["callbacks"]),
    "logbook": (RUNNER, ["logbook"]),
    "logbook, own loop": (LOOP, ["logbook"]),
    "clocks": (RUNNER, ["clocks"]),
    "clocks, own loop": (LOOP, ["clocks"]),
}
SAMPLE = [
    "generators",
    "place in the data",
    "optimizer",
    "clocks, own loop",
]
VARIANTS = sorted({variant for variant, _ in PIECES.values()}, key=str)


@pytest.mark.parametrize("name", PIECES if FULL else SAMPLE)
def test_a_missing_piece_of_state_changes_the_results(name, trial, tally):
    variant, piece = PIECES[name]
    run = trial(variant)
    step = 3 * 8 - 5 if variant.plateau else KILLED_AT  # after the first validation, which runs every other epoch
    assert run.start(site="on_iter_begin", step=step).wait() == -signal.SIGKILL
    assert run.start("pieces.forget", piece=piece).wait() == 0, run.started[-1].log
    last = run.start()
    refused = last.wait() != 0
    differs = not refused and bool(run.differences(last))
    tally("a piece of state forgotten", pieces=1, differs=differs, refused=refused)
    assert differs or refused


@pytest.mark.parametrize("variant", chosen(VARIANTS, 2), ids=str)
def test_a_rewritten_complete_checkpoint_gives_the_same_results(variant, trial):
    run = trial(variant)
    step = 3 * 8 - 5 if variant.plateau else KILLED_AT
    assert run.start(site="on_iter_begin", step=step).wait() == -signal.SIGKILL
    assert run.start("pieces.forget", piece=[]).wait() == 0
    last = run.start()
    assert not run.differences(last), last.log


@pytest.mark.parametrize(
    ("kind", "piece"),
    chosen(
        [
            ("runner", ["parts", "gradients"]),
            ("runner", ["parts", "stepper"]),
            ("runner", []),
            ("loop", ["parts", "gradients"]),
            ("loop", []),
        ],
        3,
    ),
    ids=lambda value: value if isinstance(value, str) else "/".join(value) or "nothing",
)
def test_accumulated_gradients_are_part_of_the_state(kind, piece, trial, tally):
    run = trial(Variant(kind=kind, accumulate=2))
    stopped = run.start(site="on_backward_end", step=KILLED_AT, sends=signal.SIGTERM)  # after the first batch of two
    assert stopped.wait() == 143, stopped.log
    assert run.newest()["clocks"]["iteration"] == 2 * KILLED_AT - 1
    assert run.start("pieces.forget", piece=piece).wait() == 0, run.started[-1].log
    last = run.start()
    differs = bool(run.differences(last))
    tally("a piece of state forgotten", pieces=bool(piece), differs=differs, refused=0)
    assert differs == bool(piece), last.log
