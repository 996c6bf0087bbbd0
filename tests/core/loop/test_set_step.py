from __future__ import annotations

import json

import pytest

from hookpoint import Callback, Every, LambdaCallback, Loop, errors
from hookpoint.callbacks import ModelSaver


class StartsAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_run_begin(self, run):
        run.set_step(self.step)


def train(callbacks, steps=3, **options):
    with Loop(callbacks, extra_callbacks=[], **options) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(steps)):
                run.log(loss=1.0)
    return run


def test_steps_are_counted_from_the_step_that_was_set(tmp_path):
    run = train([StartsAt(1000), ModelSaver()], log_every=2, workdir=tmp_path)
    assert (run.step, run.global_step, run.iteration) == (1003, 1003, 3)
    assert (tmp_path / "checkpoints" / "step-00001003").is_dir()
    records = [json.loads(line) for line in (tmp_path / "scalars.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["at"] == "step"] == [1002]


def test_schedules_continue_from_the_step():
    fired = []
    trigger = LambdaCallback(on_trigger=lambda run: fired.append(run.step)).when(Every(steps=10))
    train([StartsAt(95), trigger], steps=12)
    assert fired == [100]


def test_a_resumed_run_keeps_the_step_of_its_checkpoint(tmp_path):
    train([StartsAt(50), ModelSaver()], workdir=tmp_path)
    with Loop([StartsAt(50), ModelSaver()], extra_callbacks=[], workdir=tmp_path) as run:
        assert run.step == 53
        for _ in run.epochs(2):
            for _ in run.batches(range(3)):
                pass
    assert run.step == 56


@pytest.mark.parametrize("step", [-1, 2.0, True, "3"])
def test_a_step_that_is_not_a_count_raises(step):
    with pytest.raises(errors.BadArgument, match=r"run.set_step: step must be an integer >= 0, got"):
        train([StartsAt(step)])


def test_setting_the_step_after_training_has_begun_raises():
    class TooLate(Callback):
        def on_epoch_begin(self, run):
            run.set_step(3)

    with pytest.raises(errors.BadLoop, match=r"run.set_step\(3\): training has already begun.\n  call      it at on_run_begin"):
        train([TooLate()])
