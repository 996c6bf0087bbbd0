"""Commands to a run of two ranks: all of them apply a command at the same iteration, or none does."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import hookpoint
from hookpoint.core.errors import NotTraining
from hookpoint.steering.control_folder import ControlFolder
from hookpoint.storage.run_file import read_run_file


def train(
    workdir,
    commands,
    *,
    epochs=3,
    save_every=None,
    kill_at=None,
    code=None,
    wait=0.0,
    seconds=600.0,
    val=True,
    log=None,
    accumulate=1,
    profiled=(),
):
    """Train on this rank. The chief sends the commands of each iteration; `code` sets the learning rate without a command."""
    import os
    import signal
    import time
    from pathlib import Path

    import torch

    import hookpoint
    from hookpoint import Callback, Every, Knob
    from hookpoint import callbacks as cb
    from hookpoint.core.loop.services import machine_of
    from hookpoint.parallel.team import init_process
    from hookpoint.steering.control_command import ControlCommand

    rank, steps, ids = int(os.environ["RANK"]), [], []
    profile = torch.profiler.profile()
    init_process.SECONDS = seconds  # how long a rank waits for the others

    class Drop:
        name, value = "drop", 0.5

        def get_value(self):
            return self.value

        def set_value(self, value):
            if value == 7.0 and rank == 1:
                raise ValueError("not on this rank")
            self.value = value

    class Subject(Callback):
        knobs = (Knob("alpha", float),)
        actions = ("halve",)
        alpha = 0.0

        def on_setup(self, run):
            run.hyper.register(Drop())

        def halve(self):
            if rank == 1:
                raise ValueError("not on this rank")

        def on_knob(self, value):
            if value == 7.0 and rank == 1:
                raise ValueError("not on this rank")

        def on_train_iter_end(self, run):
            settings = [run.hyper[name] for name in ("lr", "momentum", "drop")]
            row = [run.iteration, *settings, machine_of(run).logbook.log_every, self.alpha]
            steps.append(row)
            if log is not None:
                with Path(log, f"rank{rank}").open("a") as file:
                    file.write(f"{os.getppid()} {row}\n")
            if wait:
                time.sleep(wait)

        def on_iter_end(self, run):
            if run.mode != "train":
                return
            steering = machine_of(run).control
            if run.iteration in profiled and rank == 0:
                (profile.start if run.iteration == profiled[0] else profile.stop)()
            for do, args in commands.get(str(run.iteration), ()) if rank == 0 else ():
                command = ControlCommand(do, args, steering.attempt, by="test")
                ids.append(command.id)
                steering.submit(command)
            if code is not None and run.iteration == code[0]:
                run.hyper.set("lr", code[1], same_on_all_ranks=True)
            if kill_at == run.iteration:
                os.kill(os.getpid(), signal.SIGKILL)

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    saver = [] if save_every is None else [cb.ModelSaver(max_to_keep=2).when(Every(steps=save_every))]
    inputs = torch.arange(96.0).reshape(32, 3) / 96
    data = (inputs, inputs.sum(1, keepdim=True))
    runner = hookpoint.Runner(
        model,
        optimizer,
        torch.nn.MSELoss(),
        callbacks=[*saver, Subject()],
        workdir=workdir,
        monitors=[cb.JSONWriter()],
        extra_callbacks=[],
        log_every=2,
        seed=0,
        accumulate=accumulate,
        allow_world_change=True,
    )
    run = runner.fit(data, data if val else None, epochs=epochs, batch_size=4)
    weights = [parameter.detach().flatten().tolist() for parameter in model.parameters()]
    return {"steps": steps, "ids": ids, "weights": weights, "step": run.step, "reason": run.stop_reason}


def answers_of(workdir, ids):
    with ControlFolder(workdir) as folder:
        return [folder.answer(command_id) for command_id in ids]


def events_of(workdir):
    rows = [json.loads(line) for line in Path(workdir, "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["event"] == "control"]


def test_both_ranks_apply_a_command_at_the_same_iteration_or_neither_does(launch, tmp_path):
    def setting(**values):
        return ["set", {"values": values}]

    commands = {
        "2": [setting(lr=0.05)],
        "4": [["set", {"values": {"Subject.alpha": 7.0, "momentum": 0.0}}], setting(lr=-1.0), setting(lr=0.3, drop=7.0)],
        "6": [["validate", {}], ["log-every", {"steps": 3}], ["save", {"tag": "x"}]],
    }
    first, second = launch(train, workdir=str(tmp_path / "run"), commands=commands).results
    assert first["steps"] == second["steps"]
    assert first["weights"] == second["weights"]
    answers = answers_of(tmp_path / "run", first["ids"])
    assert [answer.status for answer in answers] == ["applied", *["refused"] * 3, "applied", "applied", "applied"]
    assert answers[1].reason == answers[3].reason == "rank 1: ValueError: not on this rank"
    assert {answer.ranks for answer in answers if answer.status == "applied"} == {2}
    applied = answers[0].iteration
    assert 2 <= applied <= 3  # one iteration later, if the ranks have not communicated in between
    assert [row[1] for row in first["steps"]] == [0.1] * applied + [0.05] * (12 - applied)
    assert {(row[2], row[3], row[5]) for row in first["steps"]} == {(0.5, 0.5, 0.0)}
    assert Path(answers[-1].path, "manifest.json").exists()
    assert Counter(event["id"] for event in events_of(tmp_path / "run")) == Counter(first["ids"])


@pytest.mark.slow
def test_both_ranks_apply_commands_that_waited_for_the_end_of_a_pause(launch, tmp_path):
    commands = {"4": [["pause", {}], ["validate", {}], ["trace", {"steps": 2}], ["resume", {}]]}
    first, second = launch(train, workdir=str(tmp_path / "run"), commands=commands).results
    assert first["steps"] == second["steps"]
    assert [answer.status for answer in answers_of(tmp_path / "run", first["ids"])] == ["applied"] * 4


@pytest.mark.slow
def test_a_trace_that_rank_0_cannot_record_is_rejected(launch, tmp_path):
    commands = {"4": [["trace", {"steps": 100}]], "8": [["trace", {"steps": 1}]]}
    first, _ = launch(train, workdir=str(tmp_path / "run"), commands=commands, profiled=[2, 7]).results
    refused, applied = answers_of(tmp_path / "run", first["ids"])
    assert (refused.status, refused.reason) == ("refused", "trace: torch's profiler is in use.")
    assert applied.status == "applied"


@pytest.mark.slow
def test_an_action_that_fails_on_one_rank_ends_the_run(launch, tmp_path):
    commands = {"4": [["call", {"action": "Subject.halve"}]]}
    ended = launch(train, workdir=str(tmp_path / "run"), commands=commands, check=False)
    assert ended.results == [None, None]
    (event,) = events_of(tmp_path / "run")
    reason = "rank 1: ValueError: not on this rank; the command's effect on other ranks cannot be undone; the run ends"
    assert (event["status"], event["reason"]) == ("refused", reason)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [["set", {"values": {"lr": 0.01}}], ["validate", {}], ["log-every", {"steps": 3}]],
    ids=["set", "validate", "log-every"],
)
def test_a_killed_and_resumed_run_equals_the_uninterrupted_run(launch, tmp_path, command):
    commands = {"5": [command]}
    (whole, _) = launch(train, workdir=str(tmp_path / "whole"), commands=commands, save_every=4).results
    killed = launch(train, workdir=str(tmp_path / "run"), commands=commands, save_every=4, kill_at=7, check=False)
    assert killed.status
    first, second = launch(train, workdir=str(tmp_path / "run"), commands={}, save_every=4).results
    assert first["steps"] == second["steps"] == whole["steps"][4:]
    assert first["weights"] == second["weights"] == whole["weights"]
    if command[0] == "set":
        (answer,) = answers_of(tmp_path / "whole", whole["ids"])
        (coded, _) = launch(train, workdir=str(tmp_path / "code"), commands={}, code=[answer.iteration, 0.01]).results
        assert coded["weights"] == first["weights"]


@pytest.mark.slow
def test_commands_are_replayed_by_step_with_a_different_number_of_ranks(launch, tmp_path):
    workdir = str(tmp_path / "run")
    commands = {"9": [["set", {"values": {"lr": 0.01}}]]}
    killed = launch(train, workdir=workdir, commands=commands, save_every=2, accumulate=4, kill_at=14, epochs=5, check=False)
    assert killed.status
    (entry,) = hookpoint.control(workdir).journal()
    assert (entry.iteration, entry.step) == (12, 3)
    (resumed,) = launch(train, ranks=1, workdir=workdir, commands={}, save_every=2, epochs=5).results
    assert resumed["steps"][0][0] == 9  # the step after the checkpoint is iteration 9, and no longer iterations 9 to 12
    assert [row[1] for row in resumed["steps"]] == [0.1] + [0.01] * (len(resumed["steps"]) - 1)


@pytest.mark.slow
def test_a_pause_may_be_longer_than_the_timeout_between_ranks(launch, tmp_path):
    seen = {}

    def pause():
        controller = hookpoint.control(tmp_path / "run")
        while True:
            try:
                controller.pause(timeout=250)
                break
            except NotTraining:
                time.sleep(0.1)
        time.sleep(8)
        seen["live"] = controller.live().paused
        seen["save"] = controller.save("paused", timeout=250)
        seen["later"] = controller.send("validate", {})
        controller.resume(timeout=250)
        seen["validate"] = seen["later"].wait(60)

    thread = threading.Thread(target=pause)
    thread.start()
    workdir = str(tmp_path / "run")
    first, second = launch(train, workdir=workdir, commands={}, epochs=40, wait=0.02, seconds=4.0).results
    thread.join()
    assert first["steps"] == second["steps"]
    assert (first["step"], seen["live"], seen["validate"].status) == (160, True, "applied")


@pytest.mark.slow
def test_a_signal_during_a_pause_saves_and_ends_all_ranks(launch, tmp_path):
    def end():
        controller = hookpoint.control(tmp_path / "run")
        while True:
            try:
                controller.pause(timeout=250)
                break
            except NotTraining:
                time.sleep(0.1)
        os.kill(controller.live().holder.pid, signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    workdir = str(tmp_path / "run")
    launch(train, workdir=workdir, commands={}, epochs=400, wait=0.02, save_every=1000, check=False)
    thread.join()
    facts = read_run_file(tmp_path / "run")
    assert (facts["status"], facts["reason"]) == ("stopped", "SIGTERM was received")
    saved = [path for path in (tmp_path / "run" / "checkpoints").glob("step-*") if (path / "manifest.json").exists()]
    assert len(saved) == 1
