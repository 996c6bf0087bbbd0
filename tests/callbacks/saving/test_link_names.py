"""Names from a template: links beside the checkpoints, safe for any metric and value."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hookpoint import Loop, errors, load_info
from hookpoint.callbacks import CheckpointConfig, ModelCheckpoint
from hookpoint.cli.main import main
from hookpoint.storage.checkpoint.layout import is_link_name, link_name


def train(workdir, saver, epochs=2, name="loss"):
    with Loop([saver], workdir=workdir, extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(epochs):
            for batch in run.batches([1.0, 2.0]):
                run.log({name: batch / epoch})


def links(workdir):
    folder = workdir / "checkpoints"
    return {path.name: os.readlink(path) for path in folder.iterdir() if path.is_symlink() and path.name != "last"}


def test_each_checkpoint_gets_a_link_named_by_the_template(tmp_path):
    train(tmp_path, ModelCheckpoint(filename="{epoch:02d}-{loss:.3f}", append_info="epoch_num"))
    assert links(tmp_path) == {"01-1.500": "step-00000002", "02-0.750": "step-00000004"}
    assert load_info(tmp_path / "checkpoints" / "01-1.500") == {"epoch_num": 1}


def test_a_link_disappears_with_its_checkpoint(tmp_path):
    config = CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=3)  # including the checkpoint at the end
    train(tmp_path, ModelCheckpoint(config=config, filename="{step}"), epochs=3)
    assert links(tmp_path) == {"5": "step-00000005", "6": "step-00000006"}


def test_an_equal_name_moves_to_the_newer_checkpoint(tmp_path):
    train(tmp_path, ModelCheckpoint(filename="model"))
    assert links(tmp_path) == {"model": "step-00000004"}


def test_a_resumed_run_keeps_and_repairs_links(tmp_path):
    train(tmp_path, ModelCheckpoint(filename="{epoch}"))
    (tmp_path / "checkpoints" / "2").unlink()
    (tmp_path / "checkpoints" / "broken").symlink_to("step-00000099")
    train(tmp_path, ModelCheckpoint(filename="{epoch}"), epochs=3)
    assert links(tmp_path) == {"1": "step-00000002", "2": "step-00000004", "3": "step-00000006"}
    assert not (tmp_path / "previous").exists()


def test_a_link_can_be_resumed_from(tmp_path):
    train(tmp_path / "a", ModelCheckpoint(filename="{epoch}"))
    with Loop(
        [ModelCheckpoint()],
        workdir=tmp_path / "b",
        resume=tmp_path / "a" / "checkpoints" / "1",
        extra_callbacks=[],
        monitors=[],
    ) as run:
        assert run.epoch == 1


def test_clean_removes_the_links_of_deleted_checkpoints(tmp_path):
    train(tmp_path, ModelCheckpoint(filename="{epoch}"), epochs=3)
    assert CliRunner().invoke(main, ["clean", str(tmp_path), "--yes"]).exit_code == 0
    assert links(tmp_path) == {"3": "step-00000006"}
    assert CliRunner().invoke(main, ["clean", str(tmp_path), "--all", "--yes"]).exit_code == 0
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("name", ["val/top-1.5", "a b", "ünï", "..", "x" * 300, "loss[0]", "last", "../../etc"])
def test_any_metric_name_gives_a_safe_link_name(tmp_path, name):
    train(tmp_path, ModelCheckpoint(filename=f"{{{name}:.1f}}-{{epoch}}"), epochs=1, name=name)
    assert links(tmp_path) == {"1.5-1": "step-00000002"}


@settings(max_examples=60)
@given(st.text(max_size=200))
def test_any_text_gives_a_safe_link_name(text):
    name = link_name(text)
    assert is_link_name(name)
    assert "/" not in name
    assert len(name.encode()) <= 128


@pytest.mark.parametrize("taken", ["last", "best-loss", "step-00000001", "damaged-step-00000001"])
def test_reserved_names_are_prefixed(tmp_path, taken):
    train(tmp_path, ModelCheckpoint(filename=taken), epochs=1)
    assert links(tmp_path) == {f"x-{taken}": "step-00000002"}


def test_only_checkpoints_of_this_saver_get_a_link(tmp_path):
    with Loop([ModelCheckpoint(filename="{step}")], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            for batch in run.batches([1, 2]):
                if batch == 1:
                    run.save("mine")
    assert links(tmp_path) == {"2": "step-00000002"}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{epoch", "is not a template: expected '}'"),
        ("{}", "is not a template: a field has no name"),
        ("{epoch:.3f}-{loss:d}", "is not a template: Unknown format code 'd'"),
        ("a/{epoch}", "filename must be a name, not a path"),
        ("", "filename must be a template, got ''"),
        (3, "filename must be a template, got 3"),
    ],
)
def test_an_invalid_template_raises(template, text):
    with pytest.raises(errors.BadArgument, match=text):
        ModelCheckpoint(filename=template)


def test_a_metric_in_the_template_must_be_logged(tmp_path):
    assert ModelCheckpoint(filename="{epoch}-{val_loss:.2f}", monitor="loss").reads == ("loss", "val_loss")
    with pytest.raises(errors.MissingMetric, match="score"):
        train(tmp_path, ModelCheckpoint(filename="{score:.2f}"), epochs=3)
