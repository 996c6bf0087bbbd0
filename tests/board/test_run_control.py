"""Commands from the page are answered immediately, or later through the stream."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

import hookpoint
from hookpoint.board import _application, _run_control


@pytest.fixture
def impatient(monkeypatch):
    """Return `impatient()`: requests in this block do not wait for answers; other requests wait as long as necessary."""
    monkeypatch.setattr(_application, "WAIT_SECONDS", 250.0)

    @contextmanager
    def block():
        with monkeypatch.context() as inside:
            inside.setattr(_application, "WAIT_SECONDS", 0.0)
            yield

    return block


def answer(client, body):
    status, _, content = client.command("live", body)
    assert status == 200, content
    return json.loads(content)


def test_commands_waiting_for_a_paused_run_do_not_block_others(board, steered, impatient):
    with steered() as training:
        client = board()
        with client.stream("live") as message:
            assert answer(client, {"do": "pause"})["status"] == "applied"
            with impatient():
                waiting = [answer(client, {"do": "validate"}) for _ in range(20)]
            assert {one["status"] for one in waiting} == {"waiting"}
            assert answer(client, {"do": "resume"})["status"] == "applied"
            later = {}
            while not {one["id"] for one in waiting} <= set(later):
                found = message("answer")
                later[found["id"]] = found
        found = later[waiting[0]["id"]]
        assert (found["do"], found["status"]) == ("validate", "refused")
        assert "this run has no validation data" in found["text"]
        assert training.error is None


def test_a_command_is_rejected_if_too_many_are_waiting(board, steered, impatient, monkeypatch):
    monkeypatch.setattr(_application, "MAX_COMMANDS", 1)
    with steered():
        client = board()
        answer(client, {"do": "pause"})
        with impatient():
            answer(client, {"do": "validate"})
        status, _, content = client.command("live", {"do": "resume"})
        assert (status, content) == (503, b"1 commands are already waiting for an answer")


def test_a_command_is_withdrawn_if_no_step_takes_it_in_time(board, steered, monkeypatch):
    monkeypatch.setattr(_run_control, "ANSWER_SECONDS", 0.2)
    with steered() as training:
        client = board()
        training.gate.clear()
        found = answer(client, {"do": "stop"})
        training.gate.set()
        assert found["status"] == "withdrawn"
        hookpoint.control(training.workdir).save()  # the run was not stopped


def test_a_waiting_command_is_answered_when_the_run_ends(board, steered, impatient):
    with steered() as training:
        client = board()
        with client.stream("live") as message:
            answer(client, {"do": "pause"})
            with impatient():
                waiting = answer(client, {"do": "validate"})
            training.end()
            while (found := message("answer"))["id"] != waiting["id"]:
                pass
        assert found["status"] == "lost" or "no validation data" in found["text"]


def test_a_command_to_a_killed_run_is_lost(steered, monkeypatch):
    with steered() as training:
        training.gate.clear()
        sent = _run_control.SentCommand(training.workdir, "validate", {}, None)
        monkeypatch.setattr(sent, "_is_running", lambda: False)
        assert sent.answer()["text"] == "lost: the run ended before it answered"
        training.gate.set()


def test_a_command_to_a_finished_run_is_refused(board, train_run):
    train_run()
    status, _, content = board().command("mine", {"do": "stop"})
    assert (status, json.loads(content)["status"]) == (200, "refused")
