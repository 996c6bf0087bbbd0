from __future__ import annotations

from hookpoint import LambdaCallback
from hookpoint.core.loop.loop import Loop


def test_clocks_count_only_training():
    with Loop() as run:
        for _ in run.epochs(2):
            for _ in run.batches([["a", "b"], ["c"]]):
                for _ in run.batches([["x"] * 10], mode="val"):
                    pass
            for _ in run.batches([["y"] * 10], mode="pred"):
                pass
    assert (run.epoch, run.iteration, run.step, run.samples) == (2, 4, 4, 6)


def test_clocks_count_an_iteration_at_its_end_points():
    seen = []

    def look(run):
        seen.append((run.epoch, run.iteration, run.step, run.samples))

    with Loop([LambdaCallback(on_epoch_begin=look, on_iter_begin=look, on_train_iter_end=look, on_epoch_end=look)]) as run:
        assert run.epoch == 0
        for _ in run.epochs(1):
            for _ in run.batches([["a", "b", "c"]]):
                look(run)
    assert seen == [(1, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0), (1, 1, 1, 3), (1, 1, 1, 3)]


def test_current_iteration_is_the_running_or_the_last_iteration():
    seen = []

    def look(run):
        seen.append(run.current_iteration)

    with Loop([LambdaCallback(on_iter_begin=look, on_iter_end=look, on_epoch_end=look)]) as run:
        for _ in run.batches("ab"):
            look(run)
    assert seen == [1, 1, 1, 2, 2, 2, 2]


def test_elapsed_excludes_the_time_of_on_setup_and_on_run_end(time):
    seen = []

    def take(seconds):
        time[0] += seconds

    slow_end = LambdaCallback(on_setup=lambda: take(1000), on_run_end=lambda run: (take(1000), seen.append(run.elapsed)))
    with Loop([slow_end]) as run:
        for _ in run.batches("ab"):
            take(5)
            seen.append(run.elapsed)
    assert seen == [5.0, 10.0, 10.0]


def test_clocks_restore_their_state_and_elapsed_continues(time):
    with Loop() as run:
        for _ in run.batches([["a", "b"]] * 3):
            time[0] += 2
        state = run._clocks.state_dict()
    assert state == {"epoch": 1, "epochs_done": 1, "step": 3, "iteration": 3, "samples": 6, "commands": 0, "elapsed": 6.0}
    time[0] += 100
    with Loop() as run:
        time[0] += 10
        run._clocks.load_state_dict(state)
        time[0] += 1
        assert (run.epoch, run.step, run.iteration, run.samples, run.elapsed) == (1, 3, 3, 6, 7.0)
        assert list(run.epochs(3)) == [2, 3]
