from __future__ import annotations

import json
import re

import pytest
import torch

import hookpoint
from hookpoint import Callback, CallbackPipeline, Every, PeriodicTrigger, callbacks
from hookpoint.callbacks import BackupAndRestore, CheckpointConfig, MaxSaver, MinSaver, ModelCheckpoint, ModelSaver, TopKSaver
from hookpoint.callbacks._shared.saver import Saver
from hookpoint.core.errors import BadArgument, BadLoop, CompileError, NothingToSaveTo
from hookpoint.core.loop.loop import Loop
from hookpoint.core.team.team import Team

SAVERS = [name for name in callbacks.__all__ if isinstance(one := getattr(callbacks, name), type) and issubclass(one, Saver)]


def test_every_saver_sets_the_saves_attribute():
    assert SAVERS == ["BackupAndRestore", "MaxSaver", "MinSaver", "ModelCheckpoint", "ModelSaver", "TopKSaver"]
    assert all(getattr(callbacks, name).saves for name in SAVERS)


def test_a_saver_runs_on_all_ranks_even_with_ranks_chief(train_on_disk, disk):
    train_on_disk([saver := MinSaver("score", ranks="chief")], [{"score": 1.0}])
    assert saver.ranks == "all"
    assert disk.saved == [(3, ["best-score"])]


def test_a_saver_without_a_store_raises_before_the_run_begins():
    with pytest.raises(NothingToSaveTo, match=r"^MinSaver\(loss\) has nowhere to save to"), Loop([MinSaver("loss")]):
        pytest.fail("the run must not begin")


@pytest.mark.parametrize("make", [lambda: ModelSaver(tag="exception"), lambda: ModelCheckpoint("exception")])
def test_a_tag_that_no_run_resumes_from_raises(make):
    with pytest.raises(BadArgument, match=r"the tag 'exception' is reserved: a run never resumes"):
        make()


@pytest.mark.parametrize("tag", ["stop", "end", "signal"])
@pytest.mark.parametrize("make", [lambda tag: ModelSaver(tag=tag, max_to_keep=None), ModelCheckpoint])
def test_a_tag_that_the_run_uses_itself_raises(make, tag):
    with pytest.raises(BadArgument, match=rf"the tag '{tag}' is reserved: a run deletes its checkpoints with this tag"):
        make(tag)


def test_savers_that_save_at_the_same_step_share_a_checkpoint(train_on_disk, disk):
    train_on_disk([ModelSaver(), MinSaver("score"), BackupAndRestore()], [{"score": 2.0}, {"score": 3.0}, {"score": 1.0}])
    assert disk.saved == [
        (3, ["model", "best-score", "backup"]),
        (6, ["model", "backup"]),
        (9, ["model", "best-score", "backup"]),
    ]


CUT_SHORT = "and {} saves only at the end of complete epochs; use .when(Every(steps=n))"


def break_epochs(savers, store, scores=(2.0, 1.0, 3.0), leave=lambda run, batch: batch == 2, **options):
    """Train on three of the five batches of each epoch."""
    with Loop(savers, store=store, model=torch.nn.Linear(1, 1), **options) as run:
        for epoch in run.epochs(len(scores)):
            for batch in run.batches(range(5)):
                if leave(run, batch):
                    break
            run.log(score=scores[epoch - 1])
    return [(step, tags) for step, tags in store.saved if tags != ["end"]]


@pytest.mark.parametrize(
    ("saver", "saved"),
    [
        (MinSaver("score"), [(3, ["best-score"]), (6, ["best-score"])]),
        (MaxSaver("score"), [(3, ["best-score"]), (9, ["best-score"])]),
        (TopKSaver("score", k=1), [(3, ["top-score", "best-score"]), (6, ["top-score", "best-score"])]),
        (ModelCheckpoint(monitor="score", save_best_only=True), [(3, ["best-score"]), (6, ["best-score"])]),
    ],
)
def test_savers_of_best_values_also_save_epochs_that_end_with_a_break(saver, saved, disk, caplog):
    assert break_epochs([saver], disk) == saved
    assert not caplog.messages


@pytest.mark.parametrize(
    ("saver", "name"),
    [
        (ModelSaver(), "ModelSaver"),
        (BackupAndRestore(), "BackupAndRestore"),
        (ModelCheckpoint(monitor="score"), "ModelCheckpoint(CKP)"),
        (MinSaver("score").when(Every(epochs=1)), "MinSaver(score)"),
    ],
)
def test_savers_that_skip_epochs_that_end_with_a_break_warn_once(saver, name, disk, caplog):
    break_epochs([saver], disk)
    assert caplog.messages == [f"epoch 1 was cut short, {CUT_SHORT.format(name)}"]


def test_of_all_ranks_only_the_chief_warns_about_a_break(disk, caplog):
    class SecondRank(Team):
        """The second of two ranks that always do the same."""

        rank, size = 1, 2

        def gather(self, value):
            return [value, value]

    disk.join = lambda team: None
    break_epochs([ModelSaver()], disk, team=SecondRank)
    assert not caplog.messages


@pytest.mark.parametrize("saver", [ModelSaver().when(Every(steps=2)), CallbackPipeline([ModelSaver()]).when(Every(steps=2))])
def test_a_saver_with_a_step_schedule_does_not_warn_about_a_break(saver, disk, caplog):
    assert len(break_epochs([saver], disk)) == 4
    assert not caplog.messages


@pytest.mark.parametrize("saver", [ModelSaver(), MinSaver("score")])
def test_a_stop_inside_an_epoch_saves_only_the_end(saver, disk, caplog):
    assert break_epochs([saver], disk, leave=lambda run, batch: run.stop("enough")) == [(1, ["stop"])]
    assert not caplog.messages


def test_a_break_in_the_last_epoch_does_not_warn(disk, caplog):
    break_epochs([ModelSaver()], disk, scores=[1.0])
    assert disk.saved == [(3, ["end"])]
    assert not caplog.messages


def test_a_step_is_requested_once_however_often_a_saver_is_triggered(train_on_disk, disk):
    saver = ModelSaver().when(Every(steps=3) | Every(epochs=1))
    asked = []

    class Listens(Callback):
        def on_save(self, run):
            asked.append(run.step)

    train_on_disk([saver, Listens()], [{}, {}])
    assert asked == [step for step, _ in disk.saved]
    assert [step for step, tags in disk.saved if "model" in tags] == [3, 6]


def test_a_resumed_run_does_not_request_its_first_step_again(train_on_disk, disk):
    def saver():
        return ModelSaver().when(Every(steps=3) | Every(epochs=1))

    class Fails(Callback):
        def on_save(self):
            raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        train_on_disk([saver(), Fails()], [{}])
    assert disk.saved == [(3, ["model"])]
    train_on_disk([saver()], [{}])
    assert [tags for step, tags in disk.saved if "model" in tags] == [["model"]]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            lambda: MinSaver("loss"),
            lambda: MaxSaver("loss"),
            r"^MinSaver\(loss\) and MaxSaver\(loss\) both use the tag 'best-loss' and would delete each other's checkpoints.",
        ),
        (lambda: ModelSaver(), lambda: ModelSaver(3), "^ModelSaver and ModelSaver#2 both use the tag 'model'"),
        (lambda: TopKSaver("acc", 2), lambda: TopKSaver("acc", 3), r"TopKSaver\(acc\)#2 both use the tag 'top-acc'"),
        (
            lambda: MinSaver("loss"),
            lambda: ModelCheckpoint(monitor="loss"),
            r"ModelCheckpoint\(CKP\) both use .* 'best-loss'",
        ),
        (
            lambda: BackupAndRestore(),
            lambda: BackupAndRestore(),
            "BackupAndRestore#2 both use the tag 'backup'",
        ),
    ],
)
def test_two_savers_with_the_same_tag_raise_before_anything_is_deleted(disk, first, second, message):
    with pytest.raises(CompileError, match=message) as caught, Loop([first(), second()], store=disk):
        pytest.fail("the run must not begin")
    assert "give      one of them another tag=, prefix= or filename=" in str(caught.value)
    assert disk.saved == []


def test_savers_with_different_tags_work_together(train_on_disk, disk):
    train_on_disk(
        [ModelSaver(), ModelSaver(2, None, tag="other"), MinSaver("a"), MaxSaver("a", filename="most"), MinSaver("b")],
        [{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 0.0}],
    )
    assert [disk.kept(tag) for tag in ("other", "best-a", "best-most", "best-b")] == [[6, 9], [3], [6], [9]]


def test_a_saver_that_is_also_in_a_wrapper_counts_once(train_on_disk, disk):
    saver = ModelSaver()
    train_on_disk([saver, PeriodicTrigger(saver, every_k_epochs=1)], [{}])
    assert disk.saved[0] == (3, ["model"])


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda place: ModelSaver(checkpoint_dir=place), "ModelSaver(checkpoint_dir='runs/x')"),
        (lambda place: MinSaver("a", checkpoint_dir=place), "MinSaver(checkpoint_dir='runs/x')"),
        (lambda place: MaxSaver("a", checkpoint_dir=place), "MaxSaver(checkpoint_dir='runs/x')"),
        (lambda place: ModelCheckpoint(directory=place), "ModelCheckpoint(directory='runs/x')"),
        (lambda place: ModelCheckpoint(filepath=place), "ModelCheckpoint(filepath='runs/x')"),
        (lambda place: BackupAndRestore(place), "BackupAndRestore(backup_dir='runs/x')"),
    ],
)
def test_a_checkpoint_folder_argument_raises(make, argument):
    make(None)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make("runs/x")
    owner, name = re.match(r"(\w+)\((\w+)=", argument).groups()
    assert str(caught.value) == (
        f"{owner}: {name} is not supported; checkpoints are in the workdir."
        f"\n  leave     {name} out, and pass workdir='runs/x' to the Runner or Loop"
    )


@pytest.mark.parametrize(
    ("given", "workdir"),
    [
        ("runs/x/{epoch:02d}-{val_loss:.2f}.keras", "runs/x"),
        ("runs/{epoch}/model.pt", "runs"),
        ("runs/x/model.pt", "runs/x"),
        ("{epoch}.pt", "runs/mine"),
        ("model.pt", "runs/mine"),
        ("runs/v1.5", "runs/v1.5"),
    ],
)
def test_the_suggested_workdir_is_a_folder(given, workdir):
    with pytest.raises(BadLoop, match=re.escape(f"workdir='{workdir}' to")):
        ModelCheckpoint(filepath=given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MinSaver(""), "MinSaver: monitor_stat must be a non-empty string, got ''."),
        (lambda: MaxSaver(None), "MaxSaver: monitor_stat must be a non-empty string, got None."),
        (lambda: MinSaver("a", filename=""), "MinSaver: filename must be a non-empty string, got ''."),
        (lambda: TopKSaver(3), "TopKSaver: monitor_stat must be a non-empty string, got 3."),
        (lambda: TopKSaver("a", filename=""), "TopKSaver: filename must be a non-empty string, got ''."),
        (lambda: ModelSaver(tag=""), "ModelSaver: tag must be a non-empty string, got ''."),
        (lambda: ModelCheckpoint(monitor=["a"]), "ModelCheckpoint: monitor must be a non-empty string, got ['a']."),
    ],
)
def test_names_of_metrics_files_and_tags_must_be_non_empty_strings(make, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


# On a real disk


def tags_of(workdir):
    folders = sorted((workdir / "checkpoints").iterdir())
    return {path.name: json.loads((path / "manifest.json").read_text())["tags"] for path in folders if not path.is_symlink()}


def train_on_a_real_disk(workdir, savers, scores):
    with hookpoint.Loop(savers, workdir=workdir, extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(len(scores)):
            for _ in run.batches(range(10)):
                pass
            run.log(score=scores[epoch - 1])
    return run


def savers():
    return [ModelSaver(2, None), MinSaver("score"), MaxSaver("score", "most"), TopKSaver("score", 2)]


EXPECTED = {
    "best-most": ["model", "best-most"],
    "best-score": ["model", "best-score", "top-score"],
    "step-00000020": ["model", "best-score", "top-score"],
    "step-00000030": ["model", "top-score"],
    "step-00000050": ["model", "best-most"],
    "step-00000060": ["model"],
}
SCORES = (3.0, 1.0, 2.0, 3.0, 4.0, 3.5)


def test_only_the_expected_checkpoints_are_kept(tmp_path):
    train_on_a_real_disk(tmp_path, savers(), SCORES)
    assert tags_of(tmp_path) == EXPECTED


def test_a_run_resumed_after_each_epoch_keeps_the_same_checkpoints(tmp_path):
    for epochs in range(1, len(SCORES) + 1):
        train_on_a_real_disk(tmp_path, savers(), SCORES[:epochs])
    assert tags_of(tmp_path) == EXPECTED


@pytest.mark.parametrize("background", [False, True])
def test_saving_in_the_background_keeps_the_same_checkpoints(tmp_path, background):
    config = CheckpointConfig(save_checkpoint_steps=4, keep_checkpoint_max=2, async_save=background)
    run = train_on_a_real_disk(tmp_path, [ModelCheckpoint("mine", config=config, monitor="score")], (2.0, 1.0, 3.0))
    assert run.step == 30
    found = {name: [tag for tag in tags if tag != "end"] for name, tags in tags_of(tmp_path).items()}
    assert {name for name, tags in found.items() if "mine" in tags} == {"step-00000028"}, "and the end, which counts"
    assert "step-00000030" in found
    assert {name for name, tags in found.items() if "best-score" in tags} == {"best-score", "step-00000020-2"}


def test_a_metric_name_with_a_path_creates_no_files_elsewhere(tmp_path):
    with hookpoint.Loop([MinSaver("../val/loss")], workdir=tmp_path / "run", extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            run.log({"../val/loss": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert sorted(tags_of(tmp_path / "run").values()) == [["best-../val/loss"]] * 2
