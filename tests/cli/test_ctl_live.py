"""`hookpoint ctl` with a run in progress."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import torch
from click.shell_completion import ShellComplete

import hookpoint
from hookpoint import control
from hookpoint.cli.main import main
from hookpoint.steering.control_answer import ControlAnswer
from hookpoint.steering.control_folder import ControlFolder

EVIL = "\x1b[2J\x07\u202e"


def test_without_a_command_knobs_and_pending_commands_are_listed(command, steered):
    with steered() as live:
        live.gate.clear()
        order = control(live.workdir).send("set", {"values": {"Tunable.alpha": 0.25}})
        result = command("ctl", "live")
        order.withdraw()
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith("live ")
    assert lines[1].startswith(f"running, process {os.getpid()} on ")
    assert "Tunable.alpha 0.5 0 to 1 strength of nothing" in lines
    assert "Tunable.mode fast fast | slow" in lines
    assert "log_every 50 >= 1" in " ".join(lines)
    pending = lines[lines.index("pending") + 1]
    assert pending.split()[1:3] == ["set", "Tunable.alpha=0.25"]
    assert pending.endswith(f":{os.getpid()}")


def test_an_applied_command_prints_its_step_and_changes(command, steered):
    with steered() as live:
        said = command("ctl", "live", "set", "Tunable.alpha=0.25", "Tunable.mode=slow", "--expect", "Tunable.alpha=0.5").stdout
        assert (live.tunable.alpha, live.tunable.mode) == (0.25, "slow")
    assert said.startswith("applied at step ")
    assert said.endswith(": Tunable.alpha 0.5 -> 0.25, Tunable.mode fast -> slow\n")


def test_int_settings_of_the_optimizer_accept_floats(command, steered):
    optimizer = torch.optim.Adam(torch.nn.Linear(1, 1).parameters())  # the default weight_decay is the int 0
    step = hookpoint.LambdaCallback(on_train_iter_end=lambda run: optimizer.step())
    with steered(optimizer=optimizer, callbacks=[step]) as live:
        command("ctl", "live", "set", "weight_decay=0.01", "lr=1")
        command("ctl", "live", "set", "lr=0.5")
        live.end()
    assert (optimizer.param_groups[0]["weight_decay"], optimizer.param_groups[0]["lr"]) == (0.01, 0.5)


def test_a_count_of_the_optimizer_stays_an_integer(command, steered):
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    optimizer.param_groups[0]["ns_steps"] = 5  # as in Muon
    step = hookpoint.LambdaCallback(on_train_iter_end=lambda run: optimizer.step())
    with steered(optimizer=optimizer, callbacks=[step]) as live:
        command("ctl", "live", "set", "ns_steps=4.0")
        assert "ns_steps must be an integer, got 2.5" in command("ctl", "live", "set", "ns_steps=2.5", code=2).stderr
        live.end()
    assert type(optimizer.param_groups[0]["ns_steps"]) is int


def test_each_command_is_sent_with_its_arguments(command, steered):
    with steered() as live:
        assert command("ctl", "live", "pause").stdout.startswith("applied at step ")
        assert command("ctl", "live").stdout.splitlines()[1].startswith("paused, process ")
        assert "checkpoints/step-" in command("ctl", "live", "save", "mine").stdout
        command("ctl", "live", "resume")
        assert "50 -> 10" in command("ctl", "live", "log-every", "10").stdout
        command("ctl", "live", "stop", "seen", "enough")
        live.end()
    assert [event["do"] for event in live.events()] == ["pause", "save", "resume", "log-every", "stop"]
    assert json.loads((live.workdir / "run.json").read_text())["reason"] == "seen enough"


def test_a_refused_command_has_exit_code_1(command, steered):
    with steered():
        result = command("ctl", "live", "set", "Tunable.alpha=2", code=1)
        assert result.stdout == ""
        assert result.stderr.startswith("hookpoint: refused: ")
        assert "must be <= 1" in result.stderr
        assert "no validation" in command("ctl", "live", "validate", code=1).stderr


def test_validate_prints_the_metrics(command, tmp_path, until):
    begun = threading.Event()
    model, inputs = torch.nn.Linear(2, 1), torch.ones(8, 2)
    data, optimizer = (inputs, inputs.sum(1, keepdim=True)), torch.optim.SGD(model.parameters(), lr=0.01)
    callbacks = [hookpoint.LambdaCallback(on_train_iter_begin=lambda run: begun.set())]
    options = {"workdir": tmp_path / "runs" / "my run", "extra_callbacks": [], "monitors": [], "callbacks": callbacks}
    runner = hookpoint.Runner(model, optimizer, torch.nn.MSELoss(), **options)
    training = threading.Thread(target=lambda: runner.fit(data, data, epochs=10**6, batch_size=4))
    training.start()
    try:
        begun.wait(60)
        said = command("ctl", "my run", "validate").stdout
        listed = json.loads(command("ctl", "my run", "validate", "--json").stdout)
        ctl = control(options["workdir"])
        ctl.pause()
        resuming = threading.Thread(target=lambda: (until(ctl.pending), ctl.resume()))  # two commands would share sys.stdout
        resuming.start()
        late = command("ctl", "my run", "validate").stderr
        resuming.join()
    finally:
        control(options["workdir"]).stop()
        training.join()
    assert re.fullmatch(r"applied at step \d+: val_loss \S+\n", said)
    assert (listed["status"], list(listed["values"])) == ("applied", ["val_loss"])
    assert late == "the run is paused; the command will be applied after: hookpoint ctl 'runs/my run' resume\n"


def test_a_lost_command_has_exit_code_1(command, steered, until):
    with steered() as live:
        live.gate.clear()

        def end():
            until(control(live.workdir).pending)
            live.end()

        ending = threading.Thread(target=end)
        ending.start()
        said = command("ctl", "live", "set", "Tunable.alpha=0.25", code=1).stderr
        ending.join()
    assert said == "hookpoint: lost: the run ended before it applied the command\n"
    assert set(live.tunable.alphas) == {0.5}


def test_a_withdrawn_command_has_exit_code_75(command, steered):
    with steered() as live:
        live.gate.clear()
        said = command("ctl", "live", "set", "Tunable.alpha=0.25", "--timeout", "0.1", code=75).stderr
        live.gate.set()
    assert said == "hookpoint: withdrawn: the run did not take the command in time\n"
    assert set(live.tunable.alphas) == {0.5}


def test_json_output(command, steered):
    with steered():
        listed = json.loads(command("ctl", "live", "--json").stdout)
        applied = json.loads(command("ctl", "live", "set", "Tunable.alpha=0.25", "--json").stdout)
        refused = json.loads(command("ctl", "live", "set", "Tunable.alpha=2", "--json", code=1).stdout)
        sent = json.loads(command("ctl", "live", "log-every", "7", "--no-wait", "--json").stdout)
        again = json.loads(command("ctl", "live", "--json").stdout)
    knobs = {knob["name"]: knob for knob in listed["knobs"]}
    assert (listed["training"], listed["paused"], listed["pending"]) == (True, False, [])
    assert (knobs["Tunable.alpha"]["low"], knobs["Tunable.alpha"]["value"]) == (0.0, 0.5)
    assert (applied["status"], applied["now"]) == ("applied", {"Tunable.alpha": 0.25})
    assert refused["status"] == "refused"
    assert set(sent) == {"id", "status"}
    assert again["journal"][0]["order"]["args"] == {"values": {"Tunable.alpha": 0.25}}
    ended = json.loads(command("ctl", "live", "--json", code=1).stdout)
    assert (ended["training"], ended["pending"]) == (False, [])
    assert json.loads(command("ctl", "live", "pause", "--json", code=1).stdout)["status"] == "refused"


# Ctrl-C


def test_ctrl_c_withdraws_the_command(tmp_path, steered, until):
    with steered() as live:
        live.gate.clear()
        arguments = [sys.executable, "-m", "hookpoint", "ctl", "live", "set", "Tunable.alpha=0.25"]
        with subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            until(control(live.workdir).pending)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=250)
        assert (said, process.returncode) == (("", "hookpoint: withdrawn: the sender withdrew the command\n"), 75)
        assert control(live.workdir).pending() == []
        live.gate.set()
    assert set(live.tunable.alphas) == {0.5}


# Completion


def completed(*words, incomplete=""):
    complete = ShellComplete(main, {}, "hookpoint", "_HOOKPOINT_COMPLETE")
    return {item.value: item.help for item in complete.get_completions(["ctl", *words], incomplete)}


def test_shells_complete_runs_commands_and_knobs_with_their_values(command, steered):
    with steered():
        assert "live" in completed(incomplete="li")
        assert set(completed("live", incomplete="s")) == {"set", "save", "stop"}
        assert completed("live", "set", incomplete="Tunable.a") == {"Tunable.alpha=0.5": "strength of nothing"}
        assert set(completed("live", "set", incomplete="Tunable.m")) == {"Tunable.mode=fast", "Tunable.mode=slow"}
        assert "log_every=50" in completed("live", "set", "Tunable.alpha=0.1")
    assert completed("live", "set") == {}
    assert completed("nothing", "set") == {}


# Names and texts from files


def test_hostile_texts_are_escaped(command, steered):
    with steered() as live:
        live.gate.clear()
        order = control(live.workdir).send("stop", {"reason": EVIL})
        with ControlFolder(live.workdir) as folder:
            record = json.loads((live.workdir / ".control" / "live.json").read_text())
            record["knobs"] += [{"name": EVIL, "type": EVIL, "value": EVIL, "choices": [EVIL], "about": EVIL}]
            record["actions"] += [{"name": EVIL, "about": EVIL}]
            record["cannot"] |= {EVIL: EVIL}
            (live.workdir / ".control" / "live.json").write_text(json.dumps(record))
            listed = command("ctl", "live").stdout
            assert not any(character in listed for character in EVIL if not character.isprintable())
            assert completed("live", "set", incomplete="\x1b") == {}
            order.withdraw()
            sent = control(live.workdir).send("pause")
            folder.put_answer(ControlAnswer(sent.id, "refused", reason=EVIL))
            assert "\x1b" not in str(sent.wait())


# Output of the other commands


def test_show_and_tail_list_commands_with_sender_and_outcome(command, steered):
    by = f":{os.getpid()}"
    with steered() as live:
        ctl = control(live.workdir)
        ctl.set({"Tunable.alpha": 0.25})
        with pytest.raises(hookpoint.errors.NotApplied):
            ctl.set({"Tunable.alpha": 2.0})
        ctl.pause()
        assert "running, paused" in command("show", "live").stdout
        ctl.resume()
    shown, tailed = command("show", "live").stdout, command("tail", "live", "--no-follow", "-n", "100").stdout
    for said in (shown, tailed):
        lines = [" ".join(line.split()) for line in said.splitlines()]
        assert any(
            "set Tunable.alpha=0.25: applied, Tunable.alpha 0.5 -> 0.25, by " in line and line.endswith(by) for line in lines
        )
        assert any("set Tunable.alpha=2: refused, " in line and line.endswith(by) for line in lines)
        assert any("pause: applied, by " in line for line in lines)
