"""The benchmark of driven iterations runs, and every driven iteration has a step. The measured values are not tested."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("logs", [False, True])
def test_every_driven_iteration_has_a_step(monkeypatch: pytest.MonkeyPatch, logs: bool) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import driven

    seen = []
    monkeypatch.setattr(driven.Listener, "on_train_iter_end", lambda self, run: seen.append((run.iteration, run.step)))
    driven.driven(1, logs=logs)(times=3)
    assert seen == [(number, number) for number in range(1, 6)]
    seen.clear()
    driven.own_loop(1, logs=logs)(times=3)
    assert seen == [(number, number) for number in range(1, 6)]
