"""Ranks that are out of step raise an error that names their places, instead of waiting forever."""

from __future__ import annotations


def test_a_collective_call_on_only_one_rank_raises_within_the_timeout(launch):
    def alone():
        import time
        from functools import partial
        from pathlib import Path

        import torch

        from hookpoint import Callback
        from hookpoint.core.loop.loop import Loop
        from hookpoint.parallel.team.torch_team import TorchTeam

        class Lonely(Callback):
            def on_iter_end(self, run):
                if run.rank == 1 and run.iteration == 3:
                    run.reduce(1.0)

        torch.distributed.init_process_group("gloo")
        began, said = time.monotonic(), None
        waits = 2 if torch.distributed.get_rank() == 1 else 60  # the rank that gives up first is gone for the other rank
        try:
            with Loop([Lonely()], log_every=0, team=partial(TorchTeam, seconds=waits)) as run:
                for _ in run.epochs(1):
                    for _ in run.batches(range(1000)):
                        time.sleep(0.001)
        except RuntimeError as error:
            said = [str(error), type(error).__name__, getattr(error, "__notes__", [])]
        ended = time.monotonic() - began
        folder = Path(os.environ["RESULTS"])  # noqa: F821
        (folder / f"said{run.rank}").touch()
        while len(list(folder.glob("said*"))) < 2:  # a rank that ends is gone for the other, which must first report
            time.sleep(0.01)
        return [said, ended]

    (first, _), (second, seconds) = launch(alone).results
    assert seconds < 30
    assert second[0].startswith(
        "rank 1 waits in run.reduce(op='sum') in Lonely at on_iter_end, iteration 3, epoch 1; "
        "the other rank did not arrive in time."
    )
    assert second[1] == "OutOfStep"
    assert second[2] == ["in callback Lonely at on_iter_end (step 3, rank 1)"]
    assert first[0].startswith("rank 0 waits in the exchange of requests between ranks at iteration 3, epoch 1;")


def test_different_collective_calls_raise_and_both_are_named(launch):
    def apart():
        import torch  # noqa: F401

        from hookpoint import Callback, Loop

        class Here(Callback):
            collective = True

            def on_epoch_begin(self, run):
                pass

            def on_iter_end(self, run):
                run.agree(True)

        class Strange(Callback):
            def on_iter_end(self, run):
                if run.iteration == 2 and run.rank == 1:
                    run.broadcast("x")

        said = None
        try:
            with Loop([Strange(), Here()], extra_callbacks=[], monitors=[]) as run:
                for _ in run.epochs(1):
                    for _ in run.batches(range(4)):
                        pass
        except RuntimeError as error:
            said = str(error)
        return [run.iteration, said]

    for iteration, said in launch(apart).results:
        assert iteration == 2
        assert said == (
            "the ranks do not make the same collective call.\n"
            "  rank 0    a collective callback, in Here at on_iter_end, iteration 2, epoch 1\n"
            "  rank 1    run.broadcast(source=0) in Strange at on_iter_end, iteration 2, epoch 1\n"
            "  call      on all ranks or on none"
        )


def test_collective_calls_after_an_error_on_one_rank_raise(launch):
    def fail():
        import torch  # noqa: F401

        from hookpoint import Callback, Loop

        class Fail(Callback):
            collective = True

            def on_iter_end(self, run):
                if run.rank == 1 and run.iteration == 2:
                    raise ValueError("broken")

            def on_run_end(self, run):
                run.reduce(1.0)

        with Loop([Fail()], extra_callbacks=[], monitors=[]) as run:
            for _ in run.epochs(1):
                for _ in run.batches(range(1000)):
                    pass

    outcome = launch(fail, check=False)
    assert outcome.status
    assert "ValueError: broken" in outcome.printed
    assert "on_run_end failed too: OutOfStep: run.reduce(op='sum') in Fail at on_run_end" in outcome.printed


def test_a_loop_entered_by_only_one_rank_raises_within_the_timeout(launch):
    def enter(first):
        import os

        import torch

        from hookpoint import Loop

        assert torch.distributed.is_available()  # without torch, there is a single process

        options = {"extra_callbacks": [], "monitors": []}
        if not first:
            with Loop(**options):
                pass
        if os.environ["RANK"] == "1":
            return None
        try:
            with Loop(wait_seconds=1, **options):
                return None
        except Exception as error:
            return type(error).__name__ + ": " + str(error)

    for first in (True, False):
        said, _ = launch(enter, first=first).results
        assert said.startswith("OutOfStep: rank 0 waits in the setup of a run (fit, validate, predict or Loop);")
        assert "the other rank did not arrive in time" in said
