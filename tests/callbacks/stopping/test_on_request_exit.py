from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from hookpoint import on
from hookpoint.callbacks import OnRequestExit
from hookpoint.callbacks.stopping import on_request_exit
from hookpoint.core.errors import NothingToSaveTo


@pytest.fixture(autouse=True)
def watchful(monkeypatch):
    """Check the file at every step, because tests take less than a second."""
    monkeypatch.setattr(on_request_exit, "CHECK_SECONDS", 0.0)


def at(iteration, do):
    return lambda run, batch: do() if run.current_iteration == iteration else None


def kill(number):
    return lambda: os.kill(os.getpid(), number)


def test_a_signal_stops_the_run_after_the_step(train, disk):
    before = signal.getsignal(signal.SIGUSR2)
    run = train([OnRequestExit(sig=signal.SIGUSR2)], epochs=2, step=at(2, kill(signal.SIGUSR2)), store=disk)
    assert run.step == 2
    assert run._verdicts.reason == "OnRequestExit: SIGUSR2 was received"
    assert signal.getsignal(signal.SIGUSR2) is before
    assert disk.saved == [(2, ["stop"])]


def test_a_stopped_run_resumes(train, disk):
    train([OnRequestExit(sig=signal.SIGUSR2)], epochs=2, step=at(2, kill(signal.SIGUSR2)), store=disk)
    assert train([OnRequestExit(sig=signal.SIGUSR2)], epochs=2, store=disk).step == 6


def test_a_signal_between_iterations_stops_the_run_at_the_end_of_the_epoch(train):
    sends = on("on_train_epoch_end")(lambda run: os.kill(os.getpid(), signal.SIGUSR2))
    assert train([OnRequestExit(save_ckpt=False, sig=signal.SIGUSR2), sends], epochs=2).step == 3


def test_the_old_handler_is_restored_after_an_error(train):
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(ZeroDivisionError):
        train([OnRequestExit(save_ckpt=False, sig=signal.SIGUSR2)], epochs=2, step=at(2, lambda: 1 / 0))
    assert signal.getsignal(signal.SIGUSR2) is before


@pytest.mark.parametrize("number", [2, 3])
def test_several_callbacks_restore_the_old_handler(train, number):
    before = signal.getsignal(signal.SIGUSR2)
    several = [OnRequestExit(save_ckpt=False, sig=signal.SIGUSR2) for _ in range(number)]
    for _ in range(2):
        assert train(several, epochs=2, step=at(2, kill(signal.SIGUSR2))).step == 2
        assert signal.getsignal(signal.SIGUSR2) is before


def test_a_handler_installed_during_the_run_is_kept(train):
    before, own = signal.getsignal(signal.SIGUSR2), lambda *_: None
    try:
        train([OnRequestExit(save_ckpt=False, sig=signal.SIGUSR2)], step=at(2, lambda: signal.signal(signal.SIGUSR2, own)))
        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_second_run_handles_the_signal_again(train):
    callback = OnRequestExit(save_ckpt=False, sig=signal.SIGUSR2)
    for _ in range(2):
        assert train([callback], epochs=2, step=at(2, kill(signal.SIGUSR2))).step == 2
    assert train([callback], epochs=2).step == 6


def test_a_signal_of_the_loop_is_handled_by_the_loop(train, disk):
    with pytest.raises(SystemExit) as caught:
        train([OnRequestExit()], epochs=2, step=at(2, kill(signal.SIGTERM)), store=disk)
    assert caught.value.code == 143
    assert disk.saved == [(2, ["signal"])]


def test_without_save_ckpt_nothing_is_saved(train, disk):
    run = train([OnRequestExit(save_ckpt=False, sig=signal.SIGUSR2)], epochs=2, step=at(2, kill(signal.SIGUSR2)), store=disk)
    assert run.step == 2
    assert disk.saved == []


def test_a_file_stops_the_run_and_is_deleted(train, tmp_path):
    file = tmp_path / "REQUEST_EXIT.tmp"
    run = train([OnRequestExit(save_ckpt=False)], epochs=2, step=at(4, file.touch), workdir=tmp_path)
    assert run.step == 4
    assert run._verdicts.reason == "OnRequestExit: found REQUEST_EXIT.tmp"
    assert not file.exists()


def test_the_file_can_have_another_name(train, tmp_path):
    file = tmp_path / "stop"
    assert train([OnRequestExit(save_ckpt=False, file="stop")], epochs=2, step=at(4, file.touch), workdir=tmp_path).step == 4


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), lambda path: path.mkdir(), os.mkfifo])
def test_a_link_folder_or_fifo_is_ignored(train, tmp_path, make):
    make(tmp_path / "REQUEST_EXIT.tmp")
    assert train([OnRequestExit(save_ckpt=False)], epochs=2, workdir=tmp_path).step == 6


def test_a_file_of_another_user_is_ignored(train, tmp_path, monkeypatch):
    (tmp_path / "REQUEST_EXIT.tmp").touch()
    monkeypatch.setattr(on_request_exit.os, "geteuid", lambda: -5)
    assert train([OnRequestExit(save_ckpt=False)], epochs=2, workdir=tmp_path).step == 6


def test_a_file_that_cannot_be_deleted_stops_the_run_with_a_warning(train, tmp_path, monkeypatch, caplog):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "REQUEST_EXIT.tmp").touch()
    monkeypatch.setattr(on_request_exit.Path, "unlink", refuse)
    assert train([OnRequestExit(save_ckpt=False)], epochs=2, workdir=tmp_path).step == 1
    assert "REQUEST_EXIT.tmp: Permission denied; this file will also stop the next run" in caplog.text


def test_the_file_is_checked_at_most_once_per_check_seconds(train, tmp_path, monkeypatch):
    monkeypatch.setattr(on_request_exit, "CHECK_SECONDS", 1000.0)
    looks = []
    monkeypatch.setattr(on_request_exit, "_is_own_file", lambda path: looks.append(path))
    train([OnRequestExit(save_ckpt=False)], batches=50, workdir=tmp_path)
    assert len(looks) == 2  # at the first step and at the end of the epoch


def test_outside_the_main_thread_the_signal_is_ignored_with_a_warning(train, caplog):
    steps = []
    thread = threading.Thread(
        target=lambda: steps.append(train([OnRequestExit(save_ckpt=False, sig=signal.SIGUSR2)], epochs=2).step)
    )
    with caplog.at_level(logging.WARNING):
        thread.start()
        thread.join()
    assert steps == [6]
    assert caplog.messages == ["OnRequestExit cannot handle SIGUSR2: only the main thread receives signals"]


def test_saving_without_a_store_raises(train):
    with pytest.raises(NothingToSaveTo, match="OnRequestExit has nowhere to save to"):
        train([OnRequestExit()], epochs=2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sig": signal.SIGKILL}, "no program can handle this signal"),
        ({"sig": signal.SIGSTOP}, "no program can handle this signal"),
        ({"sig": signal.SIGUSR1}, "already requests a checkpoint"),
        ({"sig": 12345}, "is not a signal"),
        ({"save_mindir": True}, "hookpoint does not write MindIR files"),
        ({"file_name": "Net"}, r"OnRequestExit: file_name is not supported; checkpoints are in"),
        ({"directory": "./"}, r"OnRequestExit: directory is not supported; checkpoints are in"),
        ({"file": "a/b"}, "must be the name of a file"),
        ({"file": ""}, "must be the name of a file"),
    ],
)
def test_invalid_arguments_raise(options, says):
    with pytest.raises(ValueError, match=says):
        OnRequestExit(**options)


def test_a_real_process_stops_on_a_signal_and_resumes_later(tmp_path):
    program = f"""
import os, signal, sys
from hookpoint import Loop
from hookpoint.callbacks import OnRequestExit
with Loop([OnRequestExit(sig=signal.SIGUSR2)], workdir={str(tmp_path)!r}, extra_callbacks=[], monitors=[]) as run:
    for epoch in run.epochs(2):
        for batch in run.batches(range(50)):
            if len(sys.argv) > 1 and run.current_iteration == 30:
                print("ready", flush=True)
                sys.stdin.readline()
print(run.step)
"""
    asked = subprocess.Popen([sys.executable, "-c", program, "wait"], stdin=-1, stdout=-1, text=True)
    assert asked.stdout.readline() == "ready\n"
    asked.send_signal(signal.SIGUSR2)
    assert asked.communicate("go\n", timeout=250)[0] == "30\n"
    assert asked.returncode == 0
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert again.stdout == "100\n"
