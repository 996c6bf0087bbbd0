"""`hookpoint.control` sends commands to real training runs and returns their answers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from hookpoint import Callback, Knob, LambdaCallback, Loop, ObjAttrParam, control
from hookpoint.core.errors import BadArgument, BadControlFile, NotApplied, NotTraining
from hookpoint.steering.control_command import ControlCommand
from hookpoint.steering.control_folder import ControlFolder
from hookpoint.steering.control_order import ControlOrder

ALPHA = "Tunable.alpha"


def test_knobs_have_values_types_bounds_and_descriptions(steered):
    with steered(log_every=7) as live:
        knobs = control(live.workdir).knobs()
    alpha, mode, log_every = knobs[ALPHA], knobs["Tunable.mode"], knobs["log_every"]
    assert (alpha.value, alpha.type, alpha.low, alpha.high, alpha.about) == (0.5, "float", 0.0, 1.0, "strength of nothing")
    assert (mode.value, mode.type, mode.choices) == ("fast", "str", ("fast", "slow"))
    assert (log_every.value, log_every.type, log_every.low) == (7, "int", 1)


def test_a_registered_attribute_has_no_bounds_whatever_its_name(steered):
    model = SimpleNamespace(momentum=-0.5)
    register = LambdaCallback(on_setup=lambda run: run.hyper.register(ObjAttrParam(model, "momentum")))
    with steered(callbacks=[register]) as live:
        knob = control(live.workdir).knobs()["momentum"]
        control(live.workdir).set({"momentum": -1.0})
    assert (knob.value, knob.low, model.momentum) == (-0.5, None, -1.0)


def test_set_applies_values_answers_and_logs_an_event(steered):
    with steered() as live:
        ctl = control(live.workdir)
        answer = ctl.set({ALPHA: 0.25, "Tunable.mode": "slow"}, expect={ALPHA: 0.5})
        assert (answer.status, answer.was, answer.now) == (
            "applied",
            {ALPHA: 0.5, "Tunable.mode": "fast"},
            {ALPHA: 0.25, "Tunable.mode": "slow"},
        )
        assert (live.tunable.alpha, live.tunable.mode) == (0.25, "slow")
        assert ctl.knobs()[ALPHA].value == 0.25
        assert ctl.pending() == []
    alphas = live.tunable.alphas
    assert alphas[answer.iteration - 1 : answer.iteration + 1] == [0.5, 0.25]
    (event,) = live.events()
    assert (event["do"], event["status"], event["step"], event["id"]) == ("set", "applied", answer.step, answer.id)
    assert event["by"].endswith(f":{os.getpid()}")


def test_values_that_the_run_changes_are_published_by_the_next_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("hookpoint.steering.steering.PUBLISH_SECONDS", 0.0)
    seen = []

    class Schedule(Callback):
        knobs = (Knob("alpha", float),)
        alpha = 0.0

        def on_epoch_begin(self, run):
            seen.append(control(tmp_path).knobs()["Schedule.alpha"].value)
            self.alpha = run.epoch / 4

    with Loop([Schedule()], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(3):
            list(run.batches(range(2)))
    assert seen == [0.0, 0.25, 0.5]


def test_a_refused_command_has_a_reason_and_changes_nothing(steered):
    asked = [
        ({ALPHA: 1.5}, {}, "must be <= 1"),
        ({ALPHA: "much"}, {}, "must be a finite float"),
        ({ALPHA: 0.1, "Tunable.mode": "medium"}, {}, "must be one of"),
        ({"Tunable.alhpa": 0.1}, {}, "Tunable.alhpa"),
        ({ALPHA: 0.1}, {ALPHA: 0.4}, "0.4"),
        ({}, {}, ""),
    ]
    with steered() as live:
        ctl = control(live.workdir)
        orders = [ctl.send("set", {"values": values}, expect=expect) for values, expect, _ in asked]
        answers = [order.wait() for order in orders]
        with pytest.raises(NotApplied, match=r"set was refused: .*must be >= 0") as raised:
            ctl.set({ALPHA: -1.0})
    assert [answer.status for answer in answers] == ["refused"] * len(asked)
    assert [answer.reason for answer, (_, _, reason) in zip(answers, asked, strict=True) if reason not in answer.reason] == []
    assert raised.value.answer.status == "refused"
    assert set(live.tunable.alphas) == {0.5}
    assert [event["status"] for event in live.events()] == ["refused"] * (len(asked) + 1)


@pytest.mark.parametrize(
    ("send", "message"),
    [
        (lambda ctl: ctl.send("sett"), "there is no command 'sett'"),
        (lambda ctl: ctl.set({ALPHA: float("nan")}), "must be finite"),
        (lambda ctl: ctl.set({ALPHA: 0.1}, expect={ALPHA: float("inf")}), "must be finite"),
        (lambda ctl: ctl.send("set", {"values": {ALPHA: [0.1, float("nan")]}}), "must be finite"),
        (lambda ctl: ctl.set({ALPHA: 0.1}, timeout=0), "timeout must be a number of seconds > 0, got 0"),
        (lambda ctl: ctl.set({ALPHA: 0.1}, timeout="5"), "timeout must be a number of seconds > 0, got '5'"),
        (lambda ctl: ctl.set({ALPHA: 0.1}, timeout=float("nan")), "timeout must be a number of seconds > 0, got nan"),
    ],
)
def test_invalid_arguments_raise_and_send_nothing(steered, send, message):
    with steered() as live:
        with pytest.raises(BadArgument, match=message):
            send(control(live.workdir))
        assert control(live.workdir).pending() == []


def test_timeouts_may_be_infinite_and_values_may_be_numpy_scalars(steered):
    with steered() as live:
        ctl = control(live.workdir)
        assert ctl.set({ALPHA: np.float32(0.25)}, expect={ALPHA: np.float64(0.5)}, timeout=float("inf")).now == {ALPHA: 0.25}
        assert ctl.log_every(np.int64(5), timeout=np.int64(60)).now == {"log_every": 5}
        order = ctl.send("pause")
        assert order.wait(float("inf")).status == "applied"
        with pytest.raises(BadArgument, match="timeout must be a number of seconds > 0, got '5'"):
            ctl.send("resume").wait("5")


def test_a_paused_run_saves_and_resumes_without_training(steered):
    with steered() as live:
        ctl = control(live.workdir)
        ctl.pause()
        assert ctl.live().paused
        steps = len(live.tunable.alphas)
        saved = ctl.save("mine")
        assert saved.path.endswith(f"step-{saved.step:08d}")
        assert (live.workdir / "checkpoints" / f"step-{saved.step:08d}").is_dir()
        ctl.set({ALPHA: 0.75})
        assert len(live.tunable.alphas) == steps
        ctl.resume()
        assert not ctl.live().paused
    assert [event["do"] for event in live.events()] == ["pause", "save", "set", "resume"]
    assert live.tunable.alphas[steps : steps + 1] in ([0.75], [])


def test_stop_ends_the_run_with_its_reason(steered):
    with steered() as live:
        control(live.workdir).stop("seen enough")
        live.end()
        with pytest.raises(NotTraining, match="no process is training in"):
            control(live.workdir).knobs()
    assert '"seen enough"' in (live.workdir / "run.json").read_text()


def test_commands_from_several_controllers_are_applied_in_sequence(steered):
    answers = []

    def steer(number):
        ctl = control(live.workdir)
        orders = [ctl.send("set", {"values": {ALPHA: (number * 10 + one) / 100}}) for one in range(4)]
        answers.extend(order.wait() for order in orders)

    with steered() as live:
        threads = [threading.Thread(target=steer, args=[number]) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert control(live.workdir).pending() == []
    assert [answer.status for answer in answers] == ["applied"] * 12
    events = live.events()
    assert sorted(event["id"] for event in events) == sorted(answer.id for answer in answers)
    values = [0.5, *(event["now"][ALPHA] for event in events)]
    assert [event["was"][ALPHA] for event in events] == values[:-1]
    assert live.tunable.alpha == values[-1]
    assert [entry.number for entry in control(live.workdir).journal()] == list(range(1, 13))


# Commands that do not apply


def test_a_withdrawn_command_is_never_applied(steered):
    with steered() as live:
        ctl = control(live.workdir)
        live.gate.clear()
        order = ctl.send("set", {"values": {ALPHA: 0.1}})
        assert [one.command.id for one in ctl.pending()] == [order.id]
        assert order.withdraw()
        assert order.withdraw()
        live.gate.set()
        assert order.wait().status == "withdrawn"
        ctl.log_every(3)  # a later command is applied
    assert set(live.tunable.alphas) == {0.5}


def test_a_command_is_withdrawn_after_its_timeout(steered):
    with steered() as live:
        ctl = control(live.workdir)
        live.gate.clear()
        with pytest.raises(NotApplied, match="set was withdrawn") as raised:
            ctl.set({ALPHA: 0.1}, timeout=0.05)
        live.gate.set()
        ctl.log_every(3)
    assert raised.value.answer.status == "withdrawn"
    assert set(live.tunable.alphas) == {0.5}


def test_an_applied_command_cannot_be_withdrawn(steered):
    with steered() as live:
        order = control(live.workdir).send("set", {"values": {ALPHA: 0.1}})
        order.wait()
        assert not order.withdraw()
        assert order.answer().status == "applied"
        assert "applied" in repr(order)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C may come just after a file was opened
def test_ctrl_c_while_waiting_withdraws_the_command(steered):
    with steered() as live:
        ctl = control(live.workdir)
        live.gate.clear()

        def interrupt():
            while not ctl.pending():
                pass
            signal.raise_signal(signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            ctl.set({ALPHA: 0.1})
        assert ctl.pending() == []
        live.gate.set()
        ctl.log_every(3)
    assert set(live.tunable.alphas) == {0.5}


def test_a_command_is_lost_if_the_run_ends_first(steered):
    with steered() as live:
        live.gate.clear()
        order = control(live.workdir).send("set", {"values": {ALPHA: 0.1}})
        live.end()
        assert order.wait().status == "lost"
    with steered() as again:  # the same folder
        assert order.wait().status == "lost"
        control(again.workdir).log_every(3)
    assert 0.1 not in again.tunable.alphas


def test_a_command_for_an_earlier_start_is_lost(steered):
    with steered() as live:
        command = ControlCommand("set", {"values": {ALPHA: 0.1}}, attempt="0" * 32)
        with ControlFolder(live.workdir) as folder:
            folder.send(command)
        control(live.workdir).log_every(3)
        with ControlFolder(live.workdir) as folder:
            assert folder.answer(command.id).status == "lost"
            assert folder.waiting() == []
    assert set(live.tunable.alphas) == {0.5}


# Runs that cannot be steered


def test_a_killed_run_is_reported_at_once(training):
    with training() as live:
        ctl = control(live.workdir)
        assert "log_every" in ctl.knobs()
        order = ctl.send("log-every", {"steps": 3}, timeout=None)  # the run is waiting for an epoch to begin
        live.process.kill()
        live.process.wait()
        assert order.wait().status == "lost"
        with pytest.raises(NotTraining, match="no process is training"):
            ctl.send("pause")


DIES = """
    import os, signal, sys, time
    from hookpoint import Callback, Loop
    from hookpoint import callbacks as cb

    class Fragile(Callback):
        actions = ("die",)

        def die(self):
            if sys.argv[2] == "dies":
                os.kill(os.getpid(), signal.SIGKILL)

        def on_iter_begin(self, run):
            print("training", flush=True)
            time.sleep(0.01 * (sys.argv[2] == "dies"))

    savers = [cb.ModelSaver()] if sys.argv[2] == "resumes" else []
    with Loop([Fragile(), *savers], workdir=sys.argv[1], extra_callbacks=[], monitors=[cb.JSONWriter()], log_every=0) as run:
        for _ in run.batches(range(3000)):
            pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_saved", [False, True], ids=["before the first checkpoint", "after a checkpoint"])
def test_the_answer_of_a_killed_run_depends_on_its_checkpoints(tmp_path, is_saved):
    def start(what):
        arguments = [sys.executable, "-c", textwrap.dedent(DIES), str(tmp_path), what]
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    with start("dies") as killed:
        assert killed.stdout.readline() == "training\n"
        ctl = control(tmp_path)
        if is_saved:
            ctl.save()
        order = ctl.send("call", {"action": "Fragile.die"})
        answer = order.wait()
    with start("resumes") as restarted:
        restarted.communicate(timeout=250)
    rows = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    event = [row for row in rows if row.get("do") == "call"][-1]
    if is_saved:
        assert (answer.status, event["status"], event.get("replayed")) == ("applied", "applied", True)
        assert answer.note == "the run was killed right after it applied the command; a resume replays the command"
    else:
        assert (answer.status, event["status"], event.get("replayed")) == ("lost", "lost", None)
        assert answer.reason == "the run was killed before its first checkpoint; it starts from scratch, without this command"


def test_a_folder_without_a_run_raises_and_stays_empty(tmp_path):
    with pytest.raises(NotTraining, match="no process is training in"):
        control(tmp_path).pause()
    assert control(tmp_path).pending() == control(tmp_path).journal() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "use", [lambda ctl: ctl.pause(), lambda ctl: ctl.journal(), lambda ctl: ctl.pending(), lambda ctl: ctl.forget(1)]
)
def test_a_path_that_is_not_a_folder_raises(tmp_path, use):
    (tmp_path / "file").touch()
    with pytest.raises(NotTraining, match=r"there is no run folder .*nothing"):
        use(control(tmp_path / "nothing"))
    with pytest.raises(NotTraining, match="file is not a folder"):
        use(control(tmp_path / "file"))
    assert not (tmp_path / "nothing").exists()


def test_control_of_a_run_with_control_off_names_its_process(steered):
    with steered(control=False) as live, pytest.raises(NotTraining, match=f"process {os.getpid()} .* does not accept commands"):
        control(live.workdir).pause()


def test_a_control_folder_that_others_can_write_to_raises(steered):
    with steered() as live:
        os.chmod(live.workdir / ".control", 0o770)
        with pytest.raises(BadControlFile, match="others can write to it"):
            control(live.workdir).pause()
        os.chmod(live.workdir / ".control", 0o700)


def test_a_command_to_a_deleted_folder_is_lost(steered):
    with steered() as live:
        live.gate.clear()
        order = control(live.workdir).send("set", {"values": {ALPHA: 0.1}})
        live.end()
    shutil.rmtree(live.workdir)
    fresh = ControlOrder(live.workdir, order.command, 30.0)
    assert not fresh.withdraw()
    assert fresh.wait().status == "lost"
    assert fresh.wait() is fresh.wait()
