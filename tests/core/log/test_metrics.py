from __future__ import annotations

import json

import pytest

from hookpoint.core.errors import MissingMetric
from hookpoint.core.log.metrics import Metrics
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule.moment import Moment


def test_a_missing_metric_raises_with_the_known_names():
    with Loop() as run:
        run.log(loss=1, acc=1)
        with pytest.raises(MissingMetric) as caught:
            run.monitors.get_latest("val_loss")
    assert str(caught.value) == (
        "there is no metric 'val_loss'.\n  known     acc, loss\n  log       run.log({\"val_loss\": value}) before it is read"
    )
    assert isinstance(caught.value, KeyError)
    assert run.metrics.get("val_loss") is None


def test_get_latest_returns_the_newest_value_and_get_history_final_values():
    with Loop() as run:
        assert run.monitors.get_history("loss") == []
        for epoch in run.epochs(2):
            for batch in run.batches([0, 2]):
                run.log(loss=batch + epoch)
                assert run.monitors.get_latest("loss") == batch + epoch
            assert run.monitors.get_latest("loss") == epoch + 1
    assert run.monitors.get_history("loss") == [(2, 2.0), (4, 3.0)]


def test_the_history_keeps_the_last_ten_thousand_values():
    with Loop() as run:
        for number in range(10_001):
            run.log("x", number)
    history = run.monitors.get_history("x")
    assert (len(history), history[0], history[-1]) == (10_000, (0, 1.0), (0, 10_000.0))


def test_observations_count_only_final_values():
    with Loop() as run:
        for _ in run.epochs(2):
            for batch in run.batches([1, 2, 3]):
                run.log(loss=batch)
                assert run.metrics.observations("loss") == run.epoch - 1
        assert run.metrics.observations("loss") == 2
        assert run.metrics.observations("nobody") == 0


def test_metrics_read_like_a_mapping():
    with Loop() as run:
        run.log(a=1, b=2)
        assert ("a" in run.metrics, "c" in run.metrics, len(run.metrics), list(run.metrics)) == (True, False, 2, ["a", "b"])
        assert repr(run.metrics) == "Metrics(a, b)"
        for name in run.metrics:
            run.log({name + name: 1})  # logging while reading is fine
        assert repr(run.logs) == "Logs(a, b, aa, bb)"
        assert len(run.logs) == 4


def test_a_name_missing_from_the_logs_raises():
    with Loop() as run:
        run.log(loss=1)
        with pytest.raises(MissingMetric, match="there is no metric 'acc'"):
            run.logs["acc"]


def test_newest_returns_the_final_value_with_its_moment():
    with Loop() as run:
        for epoch in run.epochs(2):
            run.log(score=epoch / 2)
        assert run.metrics.newest("score") == (Moment(2, 0, 0), 1.0)
        assert run.monitors.get_history("score") == [(0, 0.5), (0, 1.0)]


def test_moments_are_saved_and_older_states_have_only_the_step():
    first, second = Metrics(), Metrics()
    first.observe("score", 0.5, Moment(1, 4, 2))
    first.observe("score", 0.25, Moment(2, 8, 4))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.newest("score") == (Moment(2, 8, 4), 0.25)
    assert second.history("score") == [(2, 0.5), (4, 0.25)]
    second.load_state_dict({**first.state_dict(), "history": {"score": [[2, 0.5], [4, 0.25]]}})
    assert second.newest("score") == (Moment(2, None, 4), 0.25)
    assert second.history("score") == [(2, 0.5), (4, 0.25)]
