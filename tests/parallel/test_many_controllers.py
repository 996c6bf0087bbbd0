"""Three controllers steer two ranks at once: each command gets one answer and one event, and the ranks never differ."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from hookpoint import control
from hookpoint.core.errors import HookpointError, NotTraining
from hookpoint.steering.control_folder import ControlFolder

START_SECONDS = 300  # a restart imports everything again, on a machine that may be busy
FINAL = {"applied", "refused", "withdrawn", "lost"}


def train(folder):
    """Train until a command stops the run. Each rank writes the settings of each iteration to a new file per start."""
    import os
    import time

    import torch

    from hookpoint import Callback, Every, Runner
    from hookpoint import callbacks as cb

    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    settings = open(f"{folder}/settings-{start}-{os.environ['RANK']}.jsonl", "w")  # noqa: SIM115
    with open(f"{folder}/pid-{start}-{os.environ['RANK']}", "w") as file:
        file.write(str(os.getpid()))

    class Record(Callback):
        def on_train_iter_end(self, run):
            row = [run.iteration, run.hyper["learning_rate"], run.hyper["momentum"]]
            settings.write(json.dumps(row) + "\n")
            settings.flush()
            time.sleep(0.005)

    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    data = inputs, inputs.sum(1, keepdim=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.5)
    callbacks = [Record(), cb.ModelSaver().when(Every(steps=20))]
    options = {"extra_callbacks": [], "monitors": [cb.JSONWriter()], "workdir": f"{folder}/run", "callbacks": callbacks}
    Runner(model, optimizer, torch.nn.MSELoss(), **options).fit(data, data, epochs=1_000_000, batch_size=8)
    return {}


def plan(controller, number):
    """Return `number` commands for a controller; each pause is followed by its resume."""
    chance, commands = random.Random(controller), []
    while len(commands) < number:
        rate = ("set", {"values": {"learning_rate": chance.randint(1, 1000) / 1e6}})
        both = ("set", {"values": {"learning_rate": chance.randint(1, 1000) / 1e6, "momentum": chance.randint(1, 9) / 10}})
        pause = [("pause", {}), rate, ("resume", {})]
        commands += chance.choice(
            [[rate], [both], [both], [("log-every", {"steps": chance.randint(1, 9)})], [("save", {})], pause]
        )
    return [*commands[: number - 1], ("resume", {})]


class Controllers:
    """Controllers in threads. `sent` has (id, answer) of each command."""

    def __init__(self, workdir):
        self._ctl, self._workdir, self.sent = control(workdir), workdir, []

    def steer(self, commands):
        for do, args in commands:
            order = self.send(do, args)
            self.sent.append((order.id, order.wait()))

    def send(self, do, args=None):
        """Send a command, once a process is training."""
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._ctl.send(do, args or {}, timeout=None)
            except (NotTraining, OSError):
                assert time.monotonic() < until, "nobody trains"
                time.sleep(0.05)

    def all(self, number, commands, before_stop):
        """Steer with `number` controllers at once, then stop the run."""
        with ThreadPoolExecutor(number) as threads:
            list(threads.map(self.steer, [plan(one, commands) for one in range(number)]))
        before_stop()
        while self.send("stop").wait().status != "applied":
            pass


def check(workdir, sent):
    """Check that each command has one final answer, which its sender received, and one event."""
    events = [json.loads(line) for line in (workdir / "events.jsonl").read_text().splitlines()]
    counts = Counter(event["id"] for event in events if event["event"] == "control" and not event.get("replayed"))
    with ControlFolder(workdir) as folder:
        for id, answer in sent:
            assert answer.status in FINAL
            assert folder.answer(id).status == answer.status
            assert counts[id] == 1, (id, answer)
        assert folder.waiting() == folder.taken() == []


def settings(folder, start):
    """Return the settings of each iteration, by rank."""
    files = [folder / f"settings-{start}-{rank}.jsonl" for rank in (0, 1)]
    lines = [file.read_text().splitlines() if file.exists() else [] for file in files]
    rows = [[json.loads(line) for line in lines if line.endswith("]")] for lines in lines]
    return [{iteration: values for iteration, *values in rank} for rank in rows]


def steer(launch, folder, controllers, commands, timeout=250, before_stop=lambda: None, **options):
    """Start two ranks and steer them until they are stopped; return the commands with their answers."""
    steering = Controllers(folder / "run")
    with ThreadPoolExecutor(1) as thread:
        steered = thread.submit(steering.all, controllers, commands, before_stop)
        launch(train, folder=str(folder), timeout=timeout, **options)
        steered.result()
    return steering.sent


@pytest.mark.slow
def test_each_command_gets_one_answer_and_one_event_and_the_ranks_never_differ(launch, tmp_path):
    sent = steer(launch, tmp_path, 3, 12)
    assert [answer.status for _, answer in sent] == ["applied"] * 36
    check(tmp_path / "run", sent)
    first, second = settings(tmp_path, 0)
    assert first == second
    assert len({tuple(values) for values in first.values()}) > 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_answers_and_ranks_stay_consistent_if_ranks_are_killed(launch, tmp_path):
    kills, chance, is_over = [], random.Random(1), threading.Event()

    def kill():
        """Kill a rank now and then, alternating between the chief and the other rank, each time after training has resumed."""
        while len(kills) < 3 and not is_over.wait(chance.uniform(0.5, 2.5)):
            with suppress(HookpointError, OSError):
                live = control(tmp_path / "run").live()
                has_checkpoint = list((tmp_path / "run" / "checkpoints").glob("step-*"))  # without one, a restart is a new run
                if live.attempt not in kills and has_checkpoint:
                    other = int((tmp_path / f"pid-{len(kills)}-1").read_text())  # of this start
                    os.kill(other if len(kills) % 2 else live.holder.pid, signal.SIGKILL)
                    kills.append(live.attempt)

    with ThreadPoolExecutor(1) as thread:
        killer = thread.submit(kill)
        try:
            options = {"timeout": 800, "torchrun": ["--max-restarts", "9"]}
            sent = steer(launch, tmp_path, 3, 12, before_stop=killer.result, **options)
        finally:
            is_over.set()
    assert len(kills) == 3
    assert len(sent) == 36
    check(tmp_path / "run", sent)
    for start in range(len(kills) + 1):
        first, second = settings(tmp_path, start)
        common = first.keys() & second.keys()
        assert {iteration: first[iteration] for iteration in common} == {iteration: second[iteration] for iteration in common}
