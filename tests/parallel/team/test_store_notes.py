from __future__ import annotations

import os
import re
import signal
import threading

import pytest
import torch.distributed as dist

from hookpoint.parallel.team._store_notes import StoreNotes


def test_a_stopped_rank_is_named_by_another_rank(launch):
    def train():
        import logging
        import os
        import re
        import signal

        import torch

        from hookpoint import LambdaCallback, Runner

        rank, reports = int(os.environ["RANK"]), []

        class Wake(logging.Handler):
            def emit(self, record):
                said = record.getMessage()
                found = re.search(r"rank 1 \(process (\d+) on .*\) is stopped", said)
                if "has waited" in said and found:
                    reports.append(said)
                    os.kill(int(found.group(1)), signal.SIGCONT)

        logging.getLogger("hookpoint").addHandler(Wake(logging.WARNING))

        def stop(run):
            if rank == 1 and run.iteration == 3:
                os.kill(os.getpid(), signal.SIGSTOP)

        model = torch.nn.Linear(2, 1)
        runner = Runner(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            torch.nn.functional.mse_loss,
            callbacks=[LambdaCallback(on_train_iter_begin=stop)],
            extra_callbacks=[],
            monitors=[],
            hang_report_seconds=0.3,
        )
        run = runner.fit((torch.ones(32, 2), torch.ones(32, 1)), epochs=1, batch_size=4)
        return {"step": run.step, "reports": reports}

    chief, other = launch(train).results
    assert chief["step"] == other["step"] == 8 / 2
    assert re.match(r"Linear, rank 0, has waited \d+ s for other ranks, at batch 4 of epoch 1\.", chief["reports"][0])
    assert "kill -CONT" in chief["reports"][0]
    assert not other["reports"]


def test_a_busy_rank_is_named_with_its_stack(launch):
    def train():
        import logging
        import os
        import time
        from pathlib import Path

        from hookpoint import LambdaCallback, Loop

        rank, reports = int(os.environ["RANK"]), []
        flag = Path(os.environ["RESULTS"], "seen")

        class Note(logging.Handler):
            def emit(self, record):
                if "has waited" in record.getMessage() and "busy_elsewhere" in record.getMessage():
                    reports.append(record.getMessage())
                    flag.touch()

        logging.getLogger("hookpoint").addHandler(Note(logging.WARNING))

        def busy_elsewhere(run):
            while rank == 1 and run.iteration == 2 and not flag.exists():
                time.sleep(0.01)

        with Loop(
            [LambdaCallback(on_train_iter_end=busy_elsewhere)],
            extra_callbacks=[],
            monitors=[],
            hang_report_seconds=0.3,
        ) as run:
            for batch in run.batches(range(6)):
                run.log(loss=float(batch))
                run.team.barrier()
        return {"step": run.step, "reports": reports}

    chief, other = launch(train).results
    assert chief["step"] == other["step"] == 6
    assert re.search(r"(?s)rank 1 \(process \d+ on .*\) has been at batch .*, in\n.* in .*busy_elsewhere", chief["reports"][0])
    assert not other["reports"]


@pytest.mark.parametrize("how", [pytest.param("hangs", marks=pytest.mark.slow), "is stopped"])
def test_a_hanging_rank_ends_all_ranks_and_the_next_start_resumes(how, launch, tmp_path):
    def train(folder, how):
        import os
        import signal
        import threading
        from pathlib import Path

        from subject import RANK, train

        from hookpoint import Callback
        from hookpoint.callbacks import StepTimeout

        class Hangs(Callback):
            def on_train_iter_begin(self, run):
                if RANK == 1 and run.step == 5 and how == "hangs":
                    threading.Event().wait()
                if RANK == 1 and run.step == 5 and how == "is stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)

        Path(folder, f"pid-{RANK}").write_text(str(os.getpid()))
        more = (Hangs(), StepTimeout(1.0, first_seconds=60, then="exit")) if how else ()
        return train("data", f"{folder}/run", more=more, epochs=2)["step"]

    def supervise():
        """Kill a process that cannot end itself when the other one has ended, as torchrun does."""
        while not is_over.wait(0.01):
            if any((tmp_path / "run").glob("stacks-*.txt")):
                first, second = (int((tmp_path / f"pid-{rank}").read_text()) for rank in (0, 1))
                try:
                    os.kill(first, 0)
                except ProcessLookupError:
                    os.kill(second, signal.SIGKILL)
                    return

    is_over = threading.Event()
    supervisor = threading.Thread(target=supervise)
    if how == "is stopped":
        supervisor.start()
    try:
        outcome = launch(train, check=False, folder=str(tmp_path), how=how)
    finally:
        is_over.set()
        if how == "is stopped":
            supervisor.join()
    assert outcome.status, outcome.printed
    assert "exiting with code 75" in outcome.printed
    assert launch(train, folder=str(tmp_path), how="").results == [12, 12]


def test_there_are_no_notes_without_a_default_store():
    assert not dist.is_initialized()
    assert StoreNotes.in_default_store(0, 2) is None


def test_a_store_that_fails_is_not_used_again():
    asked = []

    class Gone:
        def set(self, key, value):
            asked.append(key)
            raise RuntimeError("connection reset")

    notes = StoreNotes(0, 2, Gone())
    assert not notes.put({"count": 1})
    assert not notes.put({"count": 2})
    assert notes.read() == [None, None]
    assert asked == ["0"]
