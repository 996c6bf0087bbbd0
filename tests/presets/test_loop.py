from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, Loop
from hookpoint.callbacks import JSONWriter, ModelSaver
from hookpoint.core.errors import BadArgument


@pytest.mark.parametrize("seconds", [0, -1, None, "600", True, float("nan")])
def test_wait_seconds_must_be_a_positive_number(seconds):
    with pytest.raises(BadArgument, match=r"Loop: wait_seconds must be a number > 0, got"):
        Loop(wait_seconds=seconds)


@pytest.mark.parametrize("resume", [True, False, None])
def test_resume_must_be_a_string_or_a_path(resume, tmp_path):
    with pytest.raises(
        BadArgument, match=rf'^resume must be a string or a path, got {resume}\.\n  choose    "auto", "never", '
    ):
        Loop(workdir=tmp_path, resume=resume)


def test_a_single_monitor_needs_no_list(tmp_path):
    with Loop(extra_callbacks=OnlyOne(), monitors=JSONWriter(), workdir=tmp_path) as run:
        assert [type(callback) for callback in run.callbacks.values()] == [OnlyOne, JSONWriter]


class OnlyOne(Callback):
    def on_run_end(self): ...


def test_a_loop_with_a_saver_warns_if_its_checkpoints_lack_what_the_script_trains(tmp_path, caplog):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters())
    given = {"model": model, "optimizer": optimizer}

    def warned(epochs=1, saver=ModelSaver, **objects):
        caplog.clear()
        with Loop([saver()], extra_callbacks=[], monitors=[], workdir=tmp_path / "".join(objects), **objects) as run:
            for _ in run.epochs(epochs):
                for batch in run.batches([1]):
                    run.log(loss=batch)
                    optimizer.step()
        return [record.getMessage().partition(";")[0] for record in caplog.records]

    nothing = "the checkpoints of this run contain no model and no optimizer, so they cannot restore what the script trains"
    assert warned() == [nothing]
    assert warned(saver=Callback, criterion=None) == []
    assert warned(optimizer=optimizer) == ["the checkpoints of this run contain no model"]
    assert warned(model=model) == warned(**given) == warned(state={"ours": model}) == []
    assert warned(epochs=2, **given) == warned(epochs=2, state={"ours": model}) == []
    from_scratch = "the checkpoint contains no optimizer. If the script has one, its state is not restored"
    without_state = "the checkpoints of this run do not contain the model, because it has no state_dict and load_state_dict"
    assert warned(model={"w": 0.0}, device=None) == [without_state]
    assert warned(model={"w": 0.0}, criterion=None, optimizer=optimizer) == [without_state]
    assert warned(model={"w": 0.0}, state={"ours": model}) == []
    assert warned(epochs=2, model=model) == [from_scratch]
    model.requires_grad_(False)
    assert warned(epochs=3, model=model) == []
