"""Values in the manifest of a checkpoint: written, shown, and returned on load."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from hookpoint import Callback, Loop, errors, load_info
from hookpoint.callbacks import CheckpointConfig, ModelCheckpoint
from hookpoint.cli.main import main


def train(workdir, saver, epochs=2, callbacks=()):
    with Loop([saver, *callbacks], workdir=workdir, extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(epochs):
            for batch in run.batches([1.0, 2.0]):
                run.log(loss=batch / epoch)


GIVEN = ["epoch_num", "step_num", "loss", {"team": "vision", "shape": (3, 4)}, {"twice": lambda run: 2 * run.step}]


@pytest.mark.parametrize(
    "saver", [lambda: ModelCheckpoint(append_info=GIVEN), lambda: ModelCheckpoint(config=CheckpointConfig(append_info=GIVEN))]
)
def test_the_manifest_keeps_the_values_of_its_checkpoint(tmp_path, saver):
    train(tmp_path, saver())
    newest = {"epoch_num": 2, "step_num": 4, "loss": 0.75, "team": "vision", "shape": [3, 4], "twice": 8}
    assert load_info(tmp_path) == load_info(tmp_path / "checkpoints" / "last") == newest
    assert load_info(tmp_path / "checkpoints" / "step-00000002")["twice"] == 4


def test_a_resumed_run_gets_the_values_at_on_load(tmp_path):
    class Reads(Callback):
        def on_load(self, info):
            self.info = info

    train(tmp_path, ModelCheckpoint(append_info=["epoch_num", {"note": "first"}]))
    reads = Reads()
    train(tmp_path, ModelCheckpoint(), epochs=3, callbacks=[reads])
    assert reads.info == {"epoch_num": 2, "note": "first"}
    assert load_info(tmp_path) == {}


def test_show_prints_the_values_without_control_characters(tmp_path):
    train(tmp_path, ModelCheckpoint(append_info=["epoch_num", {"note": "with\x1b[31m colour"}]))
    shown = CliRunner().invoke(main, ["show", str(tmp_path)]).output
    assert "epoch_num: 2" in shown
    assert "\x1b" not in shown


def test_a_metric_without_a_value_is_left_out(tmp_path):
    train(tmp_path, ModelCheckpoint(append_info=["val_loss", "epoch_num"]))
    assert load_info(tmp_path) == {"epoch_num": 2}


def test_one_element_tensors_become_numbers(tmp_path):
    import torch

    train(tmp_path, ModelCheckpoint(append_info={"scale": torch.tensor(0.5)}))
    assert load_info(tmp_path) == {"scale": 0.5}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([3], r"append_info takes names and dicts with string keys, got 3"),
        ({1: 2}, r"append_info takes names and dicts with string keys"),
        ({"model": object()}, r"append_info\['model'\] may contain numbers, strings, lists and dicts, got object"),
    ],
)
def test_a_value_that_cannot_be_stored_raises(given, text):
    with pytest.raises(errors.BadArgument, match=text):
        ModelCheckpoint(append_info=given)
    with pytest.raises(errors.BadArgument, match=text):
        CheckpointConfig(append_info=given)


def test_a_missing_folder_raises(tmp_path):
    with pytest.raises(errors.CannotResume, match=r"^there is no folder .*nothing\.\n  give      a workdir or"):
        load_info(tmp_path / "nothing")


def test_loading_info_from_a_url_raises():
    with pytest.raises(errors.CannotResume, match=r"got s3://bucket/x\.\n  read      it with `hookpoint show s3://bucket/x`"):
        load_info("s3://bucket/x")
