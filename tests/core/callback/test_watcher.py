from __future__ import annotations

import pytest

from hookpoint import Callback, Hooks, LambdaCallback, Replace, guard
from hookpoint.core.callback.watcher import Watcher
from hookpoint.core.loop.loop import Loop


class Sees(Watcher):
    """Record every call and its point."""

    def __init__(self, name="Sees", points=()):
        super().__init__(name=name)
        self.seen = []
        self.wanted = points

    def around_call(self, name, point, function):
        def watched(*args, **kwargs):
            self.seen.append((name, point))
            return function(*args, **kwargs)

        return watched

    def around_points(self, points, dispatch):
        if dispatch is None and not set(points) & set(self.wanted):
            return None

        def watched(run):
            self.seen.append("+".join(points))
            if dispatch is not None:
                dispatch(run)
            self.seen.append("end of " + "+".join(points))

        return watched

    def leave(self):
        self.seen.append("over")


def names(seen, *points):
    return [one for one in seen if one in points or (isinstance(one, tuple) and one[1] in points)]


class Listens(Callback):
    def on_epoch_begin(self, run): ...

    def on_train_iter_end(self, run, loss): ...

    def on_run_end(self): ...


def test_a_watcher_sees_each_handler_and_each_point(train):
    sees = Sees(points=["on_iter_begin"])
    train([Listens(), sees], body=lambda run: setattr(run, "loss", 1.0))
    assert sees.seen == [
        "on_epoch_begin",
        ("Listens", "on_epoch_begin"),
        "end of on_epoch_begin",
        "on_iter_begin+on_train_iter_begin",
        "end of on_iter_begin+on_train_iter_begin",
        "on_train_iter_end+on_iter_end",
        ("Listens", "on_train_iter_end"),
        "end of on_train_iter_end+on_iter_end",
        ("Listens", "on_run_end"),
        "over",
    ]


def test_a_point_without_handlers_is_compiled_only_if_a_watcher_requests_it():
    hooks = Hooks([Sees()])
    assert hooks.dispatch("on_iter_begin") is None
    hooks.fire("on_iter_begin", None)
    assert Hooks([Sees(points=["on_iter_begin"])]).dispatch("on_iter_begin") is not None


def test_without_a_watcher_points_call_the_compiled_functions():
    for callbacks in ([], [Listens()]):
        hooks = Hooks(callbacks)
        for point in ("on_epoch_begin", "on_train_iter_end", "on_iter_begin"):
            dispatch = hooks.dispatch(point, mode="train")
            assert (dispatch is None) == (not hooks.calls(point))
            if dispatch is not None:
                assert dispatch.__code__.co_filename == f"<hookpoint {point}>"
                assert dispatch.__globals__["h0"] == getattr(callbacks[0], point)


@pytest.mark.filterwarnings("ignore:this train pass has no batches")
def test_several_watchers_nest_around_each_call(train):
    order = []

    class Labels(Watcher):
        def around_call(self, name, point, function):
            def watched(*args, **kwargs):
                order.append(f"{self.name}: call")
                return function(*args, **kwargs)

            return watched

        def around_points(self, points, dispatch):
            def watched(run):
                order.append(f"{self.name}: point")
                dispatch(run)
                order.append(f"{self.name}: end of point")

            return None if dispatch is None else watched

    callback = LambdaCallback(on_epoch_begin=lambda run: order.append("called"))
    train([Labels(name="first"), Labels(name="second"), callback], batches=())
    assert order == [
        "first: point",
        "second: point",
        "first: call",
        "second: call",
        "called",
        "second: end of point",
        "first: end of point",
    ]


def test_an_error_names_the_callback_that_raised_it(train):
    def fails(run):
        raise ValueError("no")

    bad = LambdaCallback(on_epoch_begin=fails, name="bad")
    sees = Sees()
    with pytest.raises(ValueError, match="no") as raised:
        train([Listens(), bad, sees], batches=range(2))
    assert "in callback bad at on_epoch_begin" in raised.value.__notes__[0]
    assert sees.seen[-2:] == [("Listens", "on_run_end"), "over"]


def test_on_error_applies_with_a_watcher(caplog, train):
    def fails(run):
        raise ValueError("no")

    sees = Sees()
    train([LambdaCallback(on_train_iter_end=fails, name="bad", on_error="warn"), sees], batches=range(5))
    assert names(sees.seen, "on_train_iter_end") == [("bad", "on_train_iter_end")] * 3
    assert "3 times in a row" in caplog.text


def test_a_watcher_sees_custom_points_and_keeps_their_result():
    sees = Sees()

    @guard("on_encode")
    def encode(words, callbacks=None):
        return words

    assert encode("a", callbacks=[LambdaCallback(on_encode_end=lambda result: Replace("b")), sees]) == "b"
    assert sees.seen == [("LambdaCallback", "on_encode_end")]


def test_a_watcher_leaves_when_a_run_fails_in_on_setup():
    class Refuses(Callback):
        def on_setup(self, run):
            raise ValueError("not like this")

    sees = Sees()
    with pytest.raises(ValueError, match="not like this"), Loop([sees, Refuses()]):
        pass
    assert sees.seen[-1] == "over"
