"""`hookpoint board`: rejected arguments, output and exit."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

import hookpoint


def test_a_path_that_is_not_a_folder_is_named(command, tmp_path):
    assert "nothing is not a folder" in command("board", "nothing", code=2).stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_other_machines_need_a_token_file(command, host):
    message = command("board", "--host", host, code=2).stderr
    assert f"--host {host} lets other machines connect, so it needs --token-file FILE; a tunnel (ssh -L" in message


def test_a_token_file_that_others_can_read_is_rejected(command, tmp_path):
    (tmp_path / "token").write_text("x" * 40)
    (tmp_path / "token").chmod(0o644)
    message = command("board", "--host", "0.0.0.0", "--token-file", "token", code=65).stderr
    assert "token must be a file that only you can read. Type chmod 600 token" in message


def test_a_port_in_use_is_named(command):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = command("board", "--port", str(port), code=69).stderr
    assert message.startswith(f"hookpoint: cannot listen on 127.0.0.1, port {port}: ")
    assert message.endswith("; leave out --port to use a free port\n")


def test_an_address_of_another_machine_is_named(command):
    message = command("board", "--host", "203.0.113.7", "--token-file", "token", code=69).stderr
    assert message.startswith("hookpoint: cannot listen on 203.0.113.7: ")


def test_a_missing_package_is_named(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "hookpoint.board.server", None)
    assert "pip install 'hookpoint[board]'" in command("board", code=2).stderr


@pytest.mark.slow  # tests/board runs the server in the test process
def test_the_board_prints_its_address_and_ends_with_ctrl_c(tmp_path, train_run):
    train_run()
    arguments = [sys.executable, "-W", "error", "-m", "hookpoint", "board", "--port", "0", "--no-open"]
    with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = urlsplit(process.stdout.readline().strip())
        assert url.hostname == "127.0.0.1"
        stream = HTTPConnection(url.hostname, url.port, timeout=250)
        stream.request("GET", "/api/stream", headers={"Authorization": f"Bearer {url.query.removeprefix('token=')}"})
        assert stream.getresponse().readline() == b"retry: 1000\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=250)
        stream.close()
    assert (process.returncode, output) == (130, "")
    assert errors.strip() == "Ctrl-C ends the board."


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_unanswered_commands(tmp_path, steered):
    with steered() as training:
        hookpoint.control(training.workdir).pause()
        arguments = [sys.executable, "-W", "error", "-m", "hookpoint", "board", "--port", "0", "--no-open"]
        with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            url = urlsplit(process.stdout.readline().strip())
            headers = {"Authorization": f"Bearer {url.query.removeprefix('token=')}"}
            runs = HTTPConnection(url.hostname, url.port, timeout=250)
            runs.request("GET", "/api/runs", headers=headers)
            (run,) = json.loads(runs.getresponse().read())["runs"]
            headers |= {"X-Hookpoint": "1", "Content-Type": "application/json"}
            waiting = HTTPConnection(url.hostname, url.port, timeout=250)
            waiting.request("POST", f"/api/run/{run['key']}/control", body=b'{"do": "validate"}', headers=headers)
            while not hookpoint.control(training.workdir).pending():
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
            waiting.close()
            runs.close()
        assert (process.returncode, errors.strip()) == (130, "Ctrl-C ends the board.")
