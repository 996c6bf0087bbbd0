from __future__ import annotations

import csv
import json
import math
import os
import signal
import stat
import subprocess
import sys

import pytest
import torch

import hookpoint
from hookpoint import Every
from hookpoint.callbacks import ModelSaver
from hookpoint.core.errors import BadOption
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import CSVLogger, JSONWriter
from hookpoint.monitors.csv_logger import before_row


def rows(path, separator=","):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter=separator))


WHOLE = """\
epoch,loss,rate,val_loss
1,2.0,1.0,
2,3.0,0.5,0.25
3,4.0,0.3333333333333333,
4,5.0,0.25,0.125
"""


def test_each_epoch_is_a_row(train_validated, tmp_path):
    train_validated(CSVLogger(), workdir=tmp_path)
    assert (tmp_path / "log.csv").read_text() == WHOLE


def test_rows_are_written_during_the_run(tmp_path):
    seen = []
    with Loop([CSVLogger()], workdir=tmp_path) as run:
        for _ in run.epochs(3):
            run.log(loss=1.0)
            run.monitors.drain()
            seen.append((tmp_path / "log.csv").read_text().count("\n") if (tmp_path / "log.csv").exists() else 0)
    assert seen == [0, 2, 3]


def test_file_name_and_separator_can_be_chosen(train_validated, tmp_path):
    train_validated(CSVLogger("mine.tsv", "\t"), workdir=tmp_path, epochs=1)
    assert (tmp_path / "mine.tsv").read_text() == "epoch\tloss\trate\n1\t2.0\t1.0\n"


def test_values_survive_the_round_trip(tmp_path):
    values = {"nan": math.nan, "up": math.inf, "down": -math.inf, "tiny": 5e-324, "third": 1 / 3, "a,b": 0.1, "epoch": 9.0}
    with Loop([CSVLogger()], workdir=tmp_path) as run:
        for _ in run.epochs(1):
            run.log(values | {"tensor": torch.tensor(0.5)})
    (row,) = rows(tmp_path / "log.csv")
    assert row.pop("epoch") == "1"
    assert math.isnan(float(row.pop("nan")))
    expected = {k: v for k, v in values.items() if k not in ("nan", "epoch")} | {"values/epoch": 9.0, "tensor": 0.5}
    assert {name: float(value) for name, value in row.items()} == expected


def test_an_epoch_left_early_has_a_row(tmp_path):
    with Loop([CSVLogger()], workdir=tmp_path) as run:
        for batch in run.batches(range(4)):
            run.log(loss=batch)
            if batch == 1:
                break
    assert (tmp_path / "log.csv").read_text() == "epoch,loss\n1,0.5\n"


def test_without_a_workdir_nothing_is_written(train_validated, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    train_validated(CSVLogger())
    assert list(tmp_path.iterdir()) == []
    assert caplog.messages == []


@pytest.mark.parametrize("monitor", [CSVLogger, JSONWriter])
def test_without_a_workdir_two_monitors_do_not_conflict(monitor, caplog):
    with Loop([monitor(), monitor()]) as run:
        run.log(loss=1.0)
    assert caplog.messages == []


def test_a_validation_outside_a_run_is_not_written(train_validated, tmp_path):
    logger = CSVLogger()
    train_validated(logger, workdir=tmp_path)
    with Loop([logger], workdir=tmp_path, run_points=False) as run:
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
    assert (tmp_path / "log.csv").read_text() == WHOLE


def test_a_new_workdir_is_private(train_validated, tmp_path):
    train_validated(CSVLogger(), workdir=tmp_path / "runs" / "mine", epochs=1)
    assert stat.S_IMODE(os.stat(tmp_path / "runs" / "mine").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(tmp_path / "runs" / "mine" / "log.csv").st_mode) == 0o600


# Existing files


def test_a_fresh_run_moves_an_old_table_aside(train_validated, tmp_path):
    for _ in range(3):
        train_validated(CSVLogger(), workdir=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ["log.csv", "log.1.csv", "log.2.csv"], WHOLE
    )


def test_append_continues_an_existing_table(train_validated, tmp_path):
    train_validated(CSVLogger(), workdir=tmp_path, epochs=1)
    train_validated(CSVLogger(append=True), workdir=tmp_path, epochs=2)
    train_validated(CSVLogger(append=True), workdir=tmp_path, epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]
    assert [row["epoch"] for row in rows(tmp_path / "log.csv")] == ["1", "1", "2", "1"]
    assert [row["val_loss"] for row in rows(tmp_path / "log.csv")] == ["", "", "0.25", ""]


def test_append_without_a_table_creates_one(train_validated, tmp_path):
    train_validated(CSVLogger(append=True), workdir=tmp_path)
    assert (tmp_path / "log.csv").read_text() == WHOLE


def test_append_false_replaces_an_existing_table(train_validated, tmp_path):
    train_validated(CSVLogger(), workdir=tmp_path)
    train_validated(CSVLogger(append=False), workdir=tmp_path, epochs=1)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"log.csv": "epoch,loss,rate\n1,2.0,1.0\n"}


@pytest.mark.parametrize("append", [None, True])
@pytest.mark.parametrize("content", ["my,notes\n1,2\n", "\x00\xff", "epoc"])
def test_a_file_with_other_columns_is_renamed(train_validated, tmp_path, append, content):
    (tmp_path / "log.csv").write_text(content)
    train_validated(CSVLogger(append=append), workdir=tmp_path)
    assert (tmp_path / "log.csv").read_text() == WHOLE
    assert (tmp_path / "log.1.csv").read_text() == content


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), lambda path: path.mkdir(), os.mkfifo])
def test_links_folders_and_pipes_are_renamed_unread(train_validated, tmp_path, make):
    make(tmp_path / "log.csv")
    train_validated(CSVLogger(append=True), workdir=tmp_path)
    assert (tmp_path / "log.csv").read_text() == WHOLE
    assert os.path.lexists(tmp_path / "log.1.csv")


# Resuming


@pytest.mark.thin(31)
@pytest.mark.parametrize("append", [None, True, False])
@pytest.mark.parametrize("save", [Every(steps=1), Every(steps=2), Every(epochs=1)], ids=str)
@pytest.mark.parametrize("cut_at", range(4, 13))
def test_each_epoch_is_written_once_after_an_interruption(train_validated, cut_off, disk, tmp_path, save, cut_at, append):
    with pytest.raises(cut_off):
        train_validated(CSVLogger(append=append), workdir=tmp_path, cut_at=cut_at, save=save, store=disk)
    train_validated(CSVLogger(append=append), workdir=tmp_path, save=save, store=disk)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"log.csv": WHOLE}


def test_each_epoch_is_written_once_after_many_resumes_of_one_instance(train_validated, cut_off, disk, tmp_path):
    logger = CSVLogger()
    for cut_at in (4, 5, 4, 7, 8, 7, 10, 10):
        with pytest.raises(cut_off):
            train_validated(logger, workdir=tmp_path, cut_at=cut_at, save=Every(steps=3), store=disk)
    train_validated(logger, workdir=tmp_path, save=Every(steps=3), store=disk)
    assert (tmp_path / "log.csv").read_text() == WHOLE


@pytest.mark.parametrize("cut_at", [2, 5, 8])
def test_a_resumed_run_keeps_the_rows_that_it_was_appended_to(train_validated, cut_off, disk, tmp_path, cut_at):
    train_validated(CSVLogger(), workdir=tmp_path)
    with pytest.raises(cut_off):
        train_validated(CSVLogger(append=True), workdir=tmp_path, cut_at=cut_at, save=Every(steps=1), store=disk)
    train_validated(CSVLogger(append=True), workdir=tmp_path, save=Every(steps=1), store=disk)
    assert (tmp_path / "log.csv").read_text() == WHOLE + WHOLE.partition("\n")[2]


def test_an_earlier_table_is_renamed_if_the_run_resumes_before_its_first_row(train_validated, cut_off, disk, tmp_path):
    train_validated(CSVLogger(), workdir=tmp_path)
    for cut_at in (2, 3):
        with pytest.raises(cut_off):
            train_validated(CSVLogger(), workdir=tmp_path, cut_at=cut_at, save=Every(steps=1), store=disk)
    train_validated(CSVLogger(), workdir=tmp_path, save=Every(steps=1), store=disk)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(["log.csv", "log.1.csv"], WHOLE)


def test_rows_after_the_checkpoint_are_cut(train_validated, cut_off, disk, tmp_path):
    with pytest.raises(cut_off):
        train_validated(CSVLogger(), workdir=tmp_path, cut_at=11, save=Every(epochs=2), store=disk)
    assert len(rows(tmp_path / "log.csv")) == 3
    with Loop([CSVLogger(), ModelSaver().when(Every(epochs=2))], workdir=tmp_path, store=disk) as run:
        for _ in run.epochs(3):
            run.log(other=7.0)
    assert (tmp_path / "log.csv").read_text() == "epoch,loss,rate,val_loss,other\n1,2.0,1.0,,\n2,3.0,0.5,0.25,\n3,,,,7.0\n"


def test_a_resume_without_state_in_the_checkpoint_continues_the_table(train_validated, disk, tmp_path):
    train_validated(CSVLogger(), workdir=tmp_path, epochs=2, save=Every(epochs=1), store=disk)
    del disk.newest["callbacks"]["CSVLogger"]
    train_validated(CSVLogger(), workdir=tmp_path, save=Every(epochs=1), store=disk)
    assert (tmp_path / "log.csv").read_text() == WHOLE


def test_before_row_removes_rows_of_later_epochs_from_the_end():
    table = [{"epoch": one} for one in ("3", "1", "2", "3", "4")]
    assert [row["epoch"] for row in before_row(table, {"epoch": "3"}, "epoch")] == ["3", "1", "2"]
    assert before_row(table, {"epoch": "9"}, "epoch") == table
    assert before_row([{"epoch": "x"}, {"epoch": ""}], {"epoch": "1"}, "epoch") == [{"epoch": "x"}, {"epoch": ""}]


def test_state_dict_has_the_rows_on_disk_and_the_pending_values(tmp_path):
    logger, states = CSVLogger(), []
    with Loop([logger], workdir=tmp_path) as run:
        states.append(logger.state_dict())
        for epoch in run.epochs(2):
            run.log(rate=0.5)
            for batch in run.batches(range(2)):
                run.log(loss=batch)
                run.monitors.settle()
                states.append(logger.state_dict())
            assert epoch
    assert states == [
        {"rows": rows, "gathered": gathered}
        for rows, gathered in [(0, {}), *[(0, {"rate": 0.5})] * 2, *[(1, {"rate": 0.5})] * 2]
    ]


def test_a_failed_fsync_does_not_fail_the_checkpoint(tmp_path, monkeypatch, caplog):
    logger = CSVLogger()
    with Loop([logger], workdir=tmp_path) as run:
        for _ in run.epochs(1):
            run.log(loss=1.0)
        run.monitors.settle()
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("the disk is on fire")))
            assert logger.state_dict() == {"rows": 1, "gathered": {}}
    assert caplog.messages == ["log.csv may not be on disk: the disk is on fire; a resumed run may lose rows"]


# Failures


def test_a_full_disk_does_not_end_the_run_and_loses_no_row(tmp_path):
    program = """
import resource, sys
from hookpoint.core.errors import BadOption
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import CSVLogger
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
with Loop([CSVLogger()], workdir=sys.argv[1]) as run:
    for epoch in run.epochs(8):
        run.log(loss=epoch / 3)
        run.monitors.drain()
        if epoch == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (70, hard))
        if epoch == 6:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
print(run.epoch)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "8\n", done.stderr
    assert "CSVLogger failed at on_records: OSError: [Errno 27] File too large; the run continues" in done.stderr
    assert [(row["epoch"], float(row["loss"])) for row in rows(tmp_path / "log.csv")] == [
        (str(one), one / 3) for one in range(1, 9)
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_an_unwritable_workdir_is_reported_and_the_run_continues(train_validated, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    assert train_validated(CSVLogger(), workdir=tmp_path / "file").epoch == 4
    assert "CSVLogger failed at on_records: " in caplog.text


@pytest.mark.parametrize("filename", ["", ".", "..", "a/b.csv", "/etc/passwd", "a\\b", "a\0b", None, 3])
def test_a_file_name_that_is_a_path_raises(filename):
    with pytest.raises(ValueError, match="filename must be a plain name in the workdir"):
        CSVLogger(filename)


@pytest.mark.parametrize("filename", ["run.json", "scalars.jsonl", "checkpoints"])
def test_the_name_of_another_file_of_the_run_raises(filename):
    with pytest.raises(ValueError, match=f"filename='{filename}' is the name of one of the run's own files"):
        CSVLogger(filename)


def test_a_second_logger_of_the_same_file_is_reported_and_not_called(train, tmp_path, caplog):
    train([CSVLogger(), CSVLogger(rows="step")], [{"loss": 0.5}, {"loss": 0.25}], batches=None, workdir=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"log.csv": "epoch,loss\n1,0.5\n2,0.25\n"}
    assert "another CSVLogger of this run already writes log.csv" in caplog.text


def test_the_file_of_a_json_writer_is_reported_and_not_written(train, tmp_path, caplog):
    monitors = [JSONWriter("log.csv"), CSVLogger()]
    train(monitors, [{"loss": 0.5}], batches=None, workdir=tmp_path)
    assert json.loads((tmp_path / "log.csv").read_text())["loss"] == 0.5
    assert "CSVLogger: the JSONWriter of this run already writes log.csv" in caplog.text


@pytest.mark.parametrize("separator", ["", ",,", '"', "\n", "\r", "a", "1", None])
def test_an_invalid_separator_raises(separator):
    with pytest.raises(ValueError, match="separator must be one character"):
        CSVLogger(separator=separator)


# Rows per step


STEPS = """\
step,epoch,rate,loss,val_loss
0,1,1.0,,
2,1,,1.5,
4,1,,3.5,
4,2,0.5,,
6,2,,2.5,
8,2,,4.5,0.25
"""


def test_each_log_step_is_a_row(train_validated, tmp_path):
    train_validated(CSVLogger(rows="step"), workdir=tmp_path, epochs=2, batches=4)
    assert (tmp_path / "log.csv").read_text() == STEPS


@pytest.mark.parametrize("cut_at", [3, 6, 7])
def test_each_step_is_written_once_after_a_resume(train_validated, cut_off, disk, tmp_path, cut_at):
    given = {"workdir": tmp_path, "epochs": 2, "batches": 4, "save": Every(steps=1), "store": disk}
    with pytest.raises(cut_off):
        train_validated(CSVLogger(rows="step"), cut_at=cut_at, **given)
    train_validated(CSVLogger(rows="step"), **given)
    assert (tmp_path / "log.csv").read_text() == STEPS


@pytest.mark.parametrize("cut_at", [3, 5, 6, 8])
def test_a_resumed_epoch_without_a_log_step_has_no_row_for_its_mean(train_validated, cut_off, disk, tmp_path, cut_at):
    (tmp_path / "whole").mkdir()
    train_validated(CSVLogger(rows="step"), workdir=tmp_path / "whole", epochs=2, batches=5)
    given = {"workdir": tmp_path, "epochs": 2, "batches": 5, "save": Every(steps=2), "store": disk}
    with pytest.raises(cut_off):
        train_validated(CSVLogger(rows="step"), cut_at=cut_at, **given)
    train_validated(CSVLogger(rows="step"), **given)
    assert (tmp_path / "log.csv").read_text() == (tmp_path / "whole/log.csv").read_text()


def test_values_after_the_last_step_and_reserved_names_have_rows(tmp_path):
    with Loop([CSVLogger(rows="step")], workdir=tmp_path) as run:
        for _ in run.batches(range(3)):
            run.put_scalar("step", 7.0)
        run.put_scalar("epoch", 8.0)
    assert (tmp_path / "log.csv").read_text().splitlines() == [
        "step,epoch,values/step,values/epoch",
        "0,1,7.0,",
        "1,1,7.0,",
        "2,1,7.0,",
        "3,1,,8.0",
    ]


def test_a_table_of_epochs_is_not_continued_with_steps(train_validated, tmp_path):
    train_validated(CSVLogger(), workdir=tmp_path)
    train_validated(CSVLogger(rows="step", append=True), workdir=tmp_path, epochs=2, batches=4)
    assert (tmp_path / "log.csv").read_text() == STEPS
    assert (tmp_path / "log.1.csv").read_text() == WHOLE


def test_an_unknown_value_of_rows_raises():
    with pytest.raises(BadOption) as caught:
        CSVLogger(rows="batch")
    assert str(caught.value) == "CSVLogger.rows is 'batch'.\n  choose    'epoch', 'step'"


def test_values_after_the_last_epoch_have_a_row(tmp_path):
    for _ in range(2):  # the second time, the run is finished and loads its state
        with hookpoint.Loop([ModelSaver()], monitors=[CSVLogger()], workdir=tmp_path) as run:
            for epoch in run.epochs(2):
                run.log(loss=1 / epoch)
            run.log(accuracy=0.75)
        assert (tmp_path / "log.csv").read_text() == "epoch,loss,accuracy\n1,1.0,\n2,0.5,\n2,,0.75\n"


def test_values_after_the_last_epoch_are_not_values_of_a_later_epoch(tmp_path):
    for epochs in (3, 4):
        saver = ModelSaver().when(Every(epochs=2))  # the checkpoint after epoch 3 is the one at the end of the run
        with hookpoint.Loop([saver], monitors=[CSVLogger()], workdir=tmp_path) as run:
            for epoch in run.epochs(epochs):
                run.log(loss=float(epoch))
            run.log(accuracy=epochs / 4)
    assert (tmp_path / "log.csv").read_text() == "epoch,loss,accuracy\n1,1.0,\n2,2.0,\n3,3.0,\n3,,0.75\n4,4.0,\n4,,1.0\n"


def test_without_epochs_values_between_passes_belong_to_the_next_epoch_after_a_resume_too(tmp_path):
    def train(workdir, *, stops=False):
        with hookpoint.Loop([ModelSaver()], monitors=[CSVLogger()], workdir=workdir) as run:
            for loss in (1.0, 2.0):
                for _ in run.batches(range(2)):
                    run.log(loss=loss)
                for _ in run.batches(range(2), mode="val"):
                    run.log(loss=loss / 2)
                    if stops:
                        os.kill(os.getpid(), signal.SIGINT)
        return (workdir / "log.csv").read_text()

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", stops=True)
    assert train(tmp_path / "stopped") == train(tmp_path / "whole")


def test_a_failed_epoch_has_no_row(tmp_path):
    with pytest.raises(MemoryError), hookpoint.Loop(monitors=[CSVLogger()], workdir=tmp_path) as run:
        for epoch in run.epochs(2):
            run.log(loss=1 / epoch)
            if epoch == 2:
                raise MemoryError
    assert (tmp_path / "log.csv").read_text() == "epoch,loss\n1,1.0\n"
