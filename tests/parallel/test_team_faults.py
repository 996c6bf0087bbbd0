from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from collections import Counter, defaultdict
from contextlib import suppress

import pytest

from hookpoint.storage.run_file import read_run_file
from hookpoint.storage.verify import verify

FULL = os.environ.get("HOOKPOINT_FAULTS") == "all"
SAME = ("step", "weights", "optimizer", "rate", "generators", "seen", "metrics", "scalars")


def test_a_failed_save_is_reported_on_all_ranks_at_once(launch, tmp_path):
    def fail(folder):
        import errno
        import time
        from functools import partial

        import subject
        from subject import RANK

        from hookpoint import Callback
        from hookpoint.core.errors import CannotSave, NotSaveable
        from hookpoint.storage.disk._fs_calls import intercepted

        class Clock(Callback):
            ended = 0.0

            def on_train_iter_end(self, run):
                self.step, self.ended = run.step, time.monotonic()

        class Odd(Callback):
            per_rank_state = True

            def __init__(self, fails):
                super().__init__()
                self.fails, self.asked = fails, 0

            def state_dict(self):
                self.asked += 1
                if RANK == 1 and self.asked > 2:
                    return self.fails()
                return {"asked": self.asked}

        def give(thing):
            return {"thing": thing}

        def refuse():
            raise KeyError("nothing to give")

        failed = []

        def once(operation, proceed):
            if RANK == 0 and operation.name == "create" and "staging-step-00000004" in operation.path and not failed:
                failed.append(operation.path)
                raise OSError(errno.ENOSPC, "No space left on device", operation.path)
            return proceed()

        def always(operation, proceed):
            if RANK == 0 and operation.name == "create" and "staging-step" in operation.path:
                raise OSError(errno.ENOSPC, "No space left on device", operation.path)
            return proceed()

        train = partial(subject.train, epochs=2)
        found = {"whole": train("data", f"{folder}/whole")}
        with intercepted(once):
            found["once"] = train("data", f"{folder}/once")
        found["faults"] = len(failed)
        clock = Clock()
        with intercepted(always):
            try:
                train("data", f"{folder}/always", more=(clock,))
            except CannotSave as error:
                found["always"] = [clock.step, time.monotonic() - clock.ended, error.errno == errno.ENOSPC]
        for name, fails in (("unsaveable", lambda: give(object())), ("raises", refuse)):
            clock = Clock()
            try:
                train("data", f"{folder}/{name}", more=(clock, Odd(fails)))
            except (NotSaveable, KeyError, RuntimeError) as error:
                found[name] = [clock.step, time.monotonic() - clock.ended, f"{type(error).__name__}: {error}"]
        return found

    first, second = launch(fail, folder=str(tmp_path)).results
    assert (first["faults"], second["faults"]) == (1, 0)
    for result in (first, second):
        assert [name for name in SAME if result["whole"][name] != result["once"][name]] == []
        assert result["always"][::2] == [6, True]  # the third checkpoint in a row that could not be written
        assert "NotSaveable" in result["unsaveable"][2]
        assert "Odd" in result["unsaveable"][2]
        assert "nothing to give" in result["raises"][2]
        for name in ("always", "unsaveable", "raises"):
            assert result[name][1] < 5.0, (name, result[name])
    for name in ("unsaveable", "raises"):
        assert first[name][0] == second[name][0]
    assert verify(tmp_path / "once").ok


def test_a_save_without_memory_on_one_rank_fails_on_all_and_training_continues(launch, tmp_path):
    def hungry(folder):
        import subject
        from subject import RANK

        from hookpoint import Callback

        class Hungry(Callback):
            per_rank_state = True
            asked = 0

            def state_dict(self):
                self.asked += 1
                return {"rows": bytes(1 << 62 if RANK == 1 and self.asked == 3 else 1)}

        callback = Hungry()
        return [subject.train("data", f"{folder}/run", epochs=2, more=(callback,))["step"], callback.asked]

    first, second = launch(hungry, folder=str(tmp_path)).results
    assert first == second
    reasons = [json.loads(line).get("reason") for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert len([reason for reason in reasons if reason and "not enough memory for a checkpoint" in reason]) == 1
    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize("rank", [0, 1])
def test_a_crash_loop_of_one_rank_is_rejected_on_all_ranks(rank, launch, tmp_path):
    def crash(folder, rank):
        import os

        from subject import RANK, train

        from hookpoint import Callback

        os.utime(__file__, (1, 1))  # a new process would count from 0

        class Crash(Callback):
            def on_train_iter_begin(self, run):
                if rank == RANK and run.step == 5:
                    raise ValueError("no such sample")

        try:
            train("data", f"{folder}/run", more=(Crash(),), epochs=2, max_crashes=2)
        except Exception as error:
            return [type(error).__name__, str(error)]

    for number in (1, 2):
        outcome = launch(crash, folder=str(tmp_path), rank=rank)
        assert outcome.results[rank] == ["ValueError", "no such sample"]
        [crashed] = read_run_file(tmp_path / "run")["crashes"]
        assert (crashed["step"], crashed["count"]) == (5, number), outcome.results
    refused, other = launch(crash, folder=str(tmp_path), rank=rank).results
    assert refused == other
    assert refused[0] == "CannotResume"
    assert "2 x epoch 1, iteration 5, step 5: " in refused[1]


def test_a_signal_to_one_rank_stops_all_ranks_with_a_checkpoint(launch, tmp_path):
    def stop(folder):
        import os
        import signal

        from subject import RANK, Ledger, train

        from hookpoint import Callback

        class Signalled(Callback):
            def on_train_iter_begin(self, run):
                if RANK == 1 and run.step == 7:
                    os.kill(os.getpid(), signal.SIGTERM)

        ledger, found = Ledger(), {"whole": train("data", f"{folder}/whole", epochs=2, every=4)}
        try:
            train("data", f"{folder}/run", more=(Signalled(),), ledger=ledger, epochs=2, every=4)
        except SystemExit as end:
            found["ended"] = [end.code, ledger.steps[-1]]
        found["resumed"] = train("data", f"{folder}/run", epochs=2, every=4)
        return found

    first, second = launch(stop, folder=str(tmp_path)).results
    assert first["ended"] == second["ended"]
    assert first["ended"] in ([143, 8], [143, 9])  # at the end of that iteration, or one later
    for result in (first, second):
        assert [name for name in SAME if result["whole"][name] != result["resumed"][name]] == []


def test_a_run_restarted_after_a_kill_resumes_bit_for_bit(launch, tmp_path):
    from torch.distributed import TCPStore

    def killed(folder, kills):
        import os
        import signal

        from subject import RANK, train

        from hookpoint import Callback

        class Kill(Callback):
            def on_train_iter_begin(self, run):
                if kills and RANK == 1 and run.step == 8:
                    os.kill(os.getpid(), signal.SIGKILL)

        run = train("data", f"{folder}/run", more=(Kill(),), epochs=2, every=3)
        return [run, train("data", f"{folder}/whole", epochs=2, every=3)]

    # They use the store of the previous ranks, which has the addresses of dead processes, as with torchrun.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for attempt in (0, 1):
        place = {"MASTER_PORT": str(store.port), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        outcome = launch(killed, check=False, env=place, folder=str(tmp_path), kills=attempt == 0)
        assert bool(outcome.status) is (attempt == 0), outcome.printed
    for rank, (run, whole) in enumerate(outcome.results):
        assert [name for name in SAME if run[name] != whole[name]] == [], rank
    assert len(read_run_file(tmp_path / "run")["resumed"]) == 1
    assert verify(tmp_path / "run").ok


@pytest.mark.timeout(400)
def test_a_different_number_of_ranks_resumes_with_every_sample_once(launch, sample, tmp_path):
    def begin(folder, kinds, stop_at):
        from subject import Ledger, train

        for kind in kinds:
            train(kind, f"{folder}/{kind}", norm=False, every=4, ledger=Ledger(stop_at=stop_at, trace=f"{folder}/{kind}.trace"))

    def go_on(folder, kinds, stop_at, epochs):
        from subject import Ledger, train

        from hookpoint.core.errors import CannotResume

        found = {}
        for kind in kinds:
            try:
                train(kind, f"{folder}/{kind}", norm=False, epochs=epochs)
            except CannotResume as error:
                found[f"{kind} refused"] = str(error)
            options = {"norm": False, "allow_world_change": True, "epochs": epochs, "every": 4}
            trace = f"{folder}/{kind}.trace"
            train(kind, f"{folder}/{kind}", ledger=Ledger(stop_at=stop_at, trace=trace), **options)
            found[kind] = train(kind, f"{folder}/{kind}", ledger=Ledger(trace=trace), **options)
        return found

    def every_sample_once(folder, kinds, ranks, epochs):
        for kind in kinds:
            seen = defaultdict(Counter)
            for line in (folder / f"{kind}.trace").read_text().splitlines():
                epoch, *samples = map(int, line.strip("[]").split(","))
                seen[epoch].update(samples)
            assert sorted(seen) == list(range(1, epochs + 1))
            assert seen[1] == Counter(range(44)), (folder, kind, seen)  # the epoch shared by both runs
            # DistributedSampler repeats samples until all ranks have the same number; sharded data does not.
            more = -44 % ranks if kind == "loop" else 0
            for epoch in range(2, epochs + 1):
                assert set(seen[epoch]) == set(range(44)), (folder, kind, seen)
                assert seen[epoch].total() == 44 + more, (folder, kind, seen)

    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for folder in (one, two):
        folder.mkdir()
    launch(begin, folder=str(two), kinds=["data", "loop", "sharded"], stop_at=2)
    shutil.copytree(two, three)
    every, epochs = ["data", "loop", "sharded"], sample(2, 3)
    launch(begin, ranks=1, folder=str(one), kinds=sample(["data"], every), stop_at=2)

    for folder, ranks, before, kinds in (
        (two, 1, 2, sample(["sharded"], every)),
        (one, 2, 1, sample(["data"], every)),
        (three, 3, 2, sample(["data", "loop"], every)),
    ):
        # In the custom loop a step has two batches, so the last epochs on three ranks have fewer steps.
        outcome = launch(go_on, ranks=ranks, folder=str(folder), kinds=kinds, stop_at=3, epochs=epochs)
        results = outcome.results
        line = f"is resumed by {ranks}: from here on, the run is not bitwise identical"
        assert outcome.printed.count(line) == len(kinds)  # only the chief logs it, once
        every_sample_once(folder, kinds, ranks, epochs)
        for kind in kinds:
            assert all("allow_world_change=True" in result[f"{kind} refused"] for result in results)
            assert len({result[kind]["weights"] for result in results}) == 1
            assert all(result[kind]["metrics"] == results[0][kind]["metrics"] for result in results)
            facts = read_run_file(folder / kind)
            assert facts["inexact"] == [f"from step 2 on: {ranks} ranks instead of {before}"]
            assert facts["status"] == "finished"
            assert verify(folder / kind).ok


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20 if FULL else 2))
def test_a_run_with_killed_ranks_restarts_and_ends_with_the_same_result(launch, tmp_path, number, whole):
    kind = ("data", "sharded")[number % 2]
    pids, workdir = tmp_path / "pids", tmp_path / "run"
    pids.mkdir()
    chance = random.Random(number)
    killed = []

    def kill():
        """Kill one of the ranks at a random time after it has started, once or twice."""
        for _ in range(chance.choice((1, 2))):
            victim, seen = pids / f"rank{chance.randrange(2)}", set(killed)
            while not is_over.wait(0.005):
                pid = int(victim.read_text() or 0) if victim.exists() else 0
                if pid and pid not in seen:
                    break
            if is_over.wait(chance.uniform(0.0, 0.4)):
                return
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    is_over = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        options = ("--max-restarts", "10", "--monitor-interval", "0.1")
        results = launch("subject.py", torchrun=options, kind=kind, workdir=str(workdir), pids=str(pids)).results
    finally:
        is_over.set()
        killer.join()
    assert killed
    for rank, (result, expected) in enumerate(zip(results, whole(kind), strict=True)):
        assert [name for name in SAME if result[name] != expected[name]] == [], rank
    assert verify(workdir).ok


@pytest.fixture(scope="module")
def wholes():
    return {}


@pytest.fixture
def whole(launch, tmp_path, wholes):
    """Return the uninterrupted run of a kind, by rank; computed once."""

    def both(folder):
        from subject import train

        return {kind: train(kind, f"{folder}/{kind}") for kind in ("data", "sharded")}

    if not wholes:
        results = launch(both, folder=str(tmp_path / "whole")).results
        wholes.update({kind: [result[kind] for result in results] for kind in ("data", "sharded")})
    return wholes.__getitem__
