from __future__ import annotations

import json

from hookpoint import LambdaCallback
from hookpoint.callbacks._shared.new_values import NewValues
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule.moment import Moment


def test_each_final_value_is_returned_once():
    values, found = NewValues("score"), []
    with Loop() as run:
        found.append(values.take(run))
        for epoch in run.epochs(2):
            for _ in run.batches(range(3)):
                run.log(score=100.0)  # shown, but not final
                found.append(values.take(run))
            found.append(values.take(run))
            run.log(score=epoch / 4)
            found += [values.take(run), values.take(run)]
    assert found == [
        None,
        *[None] * 3,
        (Moment(1, 3, 3), 100.0),
        (Moment(1, 3, 3), 0.25),
        None,
        *[None] * 3,
        (Moment(2, 6, 6), 100.0),
        (Moment(2, 6, 6), 0.5),
        None,
    ]


def test_the_final_value_is_returned_while_another_pass_logs_the_metric():
    values = NewValues("loss")
    with Loop() as run:
        for _ in run.epochs(1):
            for batch in run.batches([1.0, 3.0]):
                run.log(loss=batch)
        for _ in run.batches([7.0]):
            run.log(loss=7.0)
            assert run.metrics["loss"] == 7.0
            assert values.take(run) == (Moment(1, 2, 2), 2.0)


def test_an_equal_value_logged_later_counts_as_new():
    values, found = NewValues("score"), []
    take = LambdaCallback(on_trigger=lambda run: found.append(values.take(run)))
    with Loop([take]) as run:
        for _ in run.epochs(2):
            run.log(score=1.0)
    assert found == [(Moment(1, 0, 0), 1.0), (Moment(2, 0, 0), 1.0)]


def test_a_value_of_an_earlier_step_is_not_current_and_warns_once(caplog):
    values, found = NewValues("score"), []
    with Loop() as run:
        for _ in range(2):
            for _ in run.batches([0]):
                pass
            run.log(score=1.0)
            for _ in run.batches([0]):
                pass
            found.append(values.take_current(run))
        run.log(score=2.0)
        found.append(values.take_current(run))
    assert found == [None, None, (Moment(4, 4, 4), 2.0)]
    assert caplog.messages == [
        (
            "'score' was measured at step 1, but the run is at step 2: "
            "the measured weights no longer exist and cannot be saved."
            " Use .when(...) to run the callback after each measurement"
        )
    ]


def test_a_loaded_state_returns_no_value_twice():
    first, second = NewValues("score"), NewValues("score")
    with Loop() as run:
        run.log(score=1.0)
        assert first.take(run) == (Moment(0, 0, 0), 1.0)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert second.take(run) is None
        second.reset()
        assert second.take(run) == (Moment(0, 0, 0), 1.0)
