"""`hookpoint show` describes a run."""

from __future__ import annotations

import json
import os

import pytest

from hookpoint import Callback, Loop
from hookpoint import callbacks as cb


def sections(text):
    """Return the lines under each heading."""
    found, name = {}, "top"
    for line in text.splitlines():
        if line and not line.startswith("  ") and name != "top":
            name = line
        elif not line:
            name = ""
            continue
        elif name == "":
            name = line
        found.setdefault(name, []).append(line.strip())
    return found


def test_show_describes_a_finished_run(command, train_run):
    train_run(epochs=2)
    text = command("show", "mine").stdout
    assert text.splitlines()[0] == "mine  runs/mine"
    for line in (
        "status   finished",
        "at       epoch 2 of 2, step 8",
        "  val_loss  1.5  step 8",
        "  loss      1.25  step 8  mean of the pass",
        "  depth      3",
        "  net.width  8",
        "  api_key    ***",
        "  step-00000004  ",
        "  best-val_loss  ",
        "best val_loss so far: 1.5 (before: 3)",
        "saved step-00000008 (model, best-val_loss) in",
        "  ModelSaver, MinSaver(val_loss), JSONWriter",
        "  hookpoint  ",
        "  scalars.jsonl  ",
    ):
        assert line in text, line
    assert "command  " in text


def test_json_output(command, train_run):
    train_run(epochs=2)
    output = json.loads(command("show", "mine", "--json").stdout)
    assert (output["name"], output["status"], output["step"]) == ("mine", "finished", 8)
    assert output["best"] == {"val_loss": {"value": 1.5, "step": 8, "mode": "min", "source": "run"}}
    assert output["last"]["loss"] == {"value": 1.25, "step": 8, "at": "epoch"}
    assert output["run"]["config"] == {"depth": 3, "net": {"width": 8}, "api_key": "***"}
    assert [one["name"] for one in output["checkpoints"]] == ["step-00000004", "step-00000008", "best-val_loss"]
    assert output["checkpoints"][1]["tags"] == ["model", "best-val_loss"]
    assert output["events"][-1]["event"] == "save"
    assert output["size_bytes"]["all"] == sum(size for name, size in output["size_bytes"].items() if name != "all")


def test_the_number_of_events_can_be_chosen(command, train_run):
    train_run(epochs=2)
    assert len(json.loads(command("show", "mine", "--json", "--events", "1").stdout)["events"]) == 1
    assert "events\n" not in command("show", "mine", "-n", "0").stdout


def test_a_run_is_found_by_path(command, train_run, tmp_path, monkeypatch):
    folder = train_run()
    assert command("show", folder).stdout.startswith("mine  ")
    assert command("show", "runs/mine").stdout.startswith("mine  ")
    monkeypatch.chdir(folder)
    assert command("show", ".").stdout.startswith("mine  ")


def test_a_name_is_used_if_the_path_is_not_a_run(command, train_run, tmp_path):
    train_run()
    (tmp_path / "mine").mkdir()
    assert command("show", "mine").stdout.startswith("mine  runs/mine")


def test_a_misspelled_name_gets_a_suggestion(command, train_run):
    train_run("resnet")
    assert command("show", "resnt", code=2).stderr == "hookpoint: there is no run resnt; did you mean resnet?\n"
    assert "to list all runs: hookpoint runs" in command("show", "xyz", code=2).stderr


def test_a_folder_of_runs_is_not_a_run(command, train_run):
    train_run()
    output = command("show", "runs", code=65).stderr
    assert output.startswith("hookpoint: there is no run in runs")
    assert "it contains runs/mine" in output


def test_a_file_is_not_a_run(command, tmp_path):
    (tmp_path / "file").write_text("")
    assert command("show", "file", code=2).stderr == "hookpoint: file is not a folder; expected a run folder\n"


def test_a_failed_run_shows_its_error(command, train_run):
    class Fail(Callback):
        def on_epoch_end(self):
            raise RuntimeError("no \x1b[2J more\nlines")

    with pytest.raises(RuntimeError):
        train_run(callbacks=[Fail()])
    text = command("show", "mine").stdout
    assert "status   failed" in text
    assert "because  RuntimeError: no ?[2J more lines" in text
    assert "failed with RuntimeError: no ?[2J more lines" in text
    assert "\x1b" not in text


def test_a_run_in_progress_shows_its_process(command, training):
    with training() as live:
        live.epoch()
        text = command("show", "live").stdout
        assert f"status   running, process {live.process.pid} on " in text


def test_a_guessed_best_value_is_labeled(command, train_run):
    train_run(callbacks=[])
    assert "val_loss  1.5  step 8  the minimum of all records" in command("show", "mine").stdout


def test_odd_settings_and_events_are_plain_text(command, tmp_path):
    config = {"[red]": "\x1b]0;title\x07", "deep": {str(n): {} for n in range(3)}, "long": "x" * 10_000}
    with Loop([cb.JSONWriter()], workdir=tmp_path / "runs" / "odd", extra_callbacks=[], monitors=[], config=config) as run:
        run.put_event("best", soup="[bold]no[/bold]")
        run.put_event("lunch", dish="soup", at="noon")
    text = command("show", "odd").stdout
    assert "[red]   ?]0;title?" in text
    assert "best: soup [bold]no[/bold]" in text
    assert "lunch: dish soup, values/at noon" in text
    assert max(map(len, text.splitlines())) < 500


def test_a_damaged_checkpoint_is_reported(command, train_run):
    folder = train_run()
    (folder / "checkpoints" / "step-00000004" / "manifest.json").unlink()
    assert "damaged: it has no manifest.json" in command("show", "mine").stdout


def test_pipes_in_a_run_folder_do_not_block(command, train_run):
    folder = train_run()
    (folder / "scalars.jsonl").unlink()
    (folder / "events.jsonl").unlink()
    os.mkfifo(folder / "scalars.jsonl")
    os.mkfifo(folder / "events.jsonl")
    assert "status   finished" in command("show", "mine").stdout


def test_lineage_and_data_are_shown(command):
    def train(workdir, epochs, **options):
        saver = cb.ModelSaver()
        with Loop([saver], workdir=workdir, name=workdir[-4:], extra_callbacks=[], monitors=[], **options) as run:
            for _ in run.epochs(epochs):
                for _ in run.batches([1, 2]):
                    pass

    train("runs/mine", 1)
    train("runs/mine", 2)
    train("runs/fork", 3, resume="runs/mine")
    lines = sections(command("show", "runs/fork").stdout)
    where = os.path.realpath("runs/mine")
    assert [line[21:] for line in lines["lineage"][1:]] == [
        f"resumed from  mine step-00000002 (step 2, epoch 1) in {where}",
        f"resumed from  mine step-00000004 (step 4, epoch 2) in {where}",
    ]
    assert lines["data"][1:] == ["train  list(2); 2 batches"]
    own = sections(command("show", "runs/mine").stdout)["lineage"]
    assert own[1].endswith("resumed from  mine step-00000002 (step 2, epoch 1)")


def test_invalid_lineage_and_data_are_ignored(command, tmp_path):
    workdir = tmp_path / "runs" / "odd"
    workdir.mkdir(parents=True)
    facts = {"format": 1, "status": "finished", "name": "odd", "lineage": [3, {"kind": "weights", "tensors": 2}]}
    odd = {"class": "a\x1b[31m", "inputs": [3, {"class": 3}, {"class": "b"}, {"class": "c", "length": 1}]}
    facts["data"] = {"train": {"graph": odd, "batches": "x"}, "val": 3, "other": {}}
    (workdir / "run.json").write_text(json.dumps(facts))
    text = command("show", "runs/odd").stdout
    assert "weights of  2 tensors of unknown origin" in text
    assert "\x1b" not in text
    assert "< [b, c(1)]" in text
