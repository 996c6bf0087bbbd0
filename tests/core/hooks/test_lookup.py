from __future__ import annotations

import pytest

from hookpoint import Callback, CallbackPipeline, LambdaCallback, ProxyCallback, errors, on
from hookpoint.core.loop.loop import Loop


class Inner(Callback):
    def on_epoch_end(self):
        pass


class Chief(Callback):
    ranks = "chief"

    def on_epoch_end(self):
        pass


class Loud(ProxyCallback):
    pass


def train(callbacks):
    with Loop(callbacks) as run:
        for _ in run.epochs(1):
            pass
    return run


def test_the_run_finds_callbacks_by_class_and_name():
    found = {}

    class Looks(Callback):
        def on_setup(self, run):
            found["names"] = list(run.callbacks)
            found["class"] = run.callback(Inner)
            found["name"] = run.callback("second")
            found["class name"] = run.callback("Inner")
            found["wrapper"] = run.callback(Loud)
            found["function"] = run.callback("say")

    @on("on_epoch_end")
    def say(epoch):
        pass

    inner, second = Inner(), LambdaCallback(name="second", on_epoch_end=lambda: None)
    proxy = Loud(inner)
    train([proxy, CallbackPipeline([second]), say, Looks()])
    assert found["names"] == ["Inner", "second", "say", "Looks"]
    assert found["class"] is found["class name"] is inner
    assert (found["name"], found["wrapper"], found["function"]) == (second, proxy, say)


def test_a_missing_or_ambiguous_callback_raises_with_the_known_names():
    run = train([Inner(), Inner()])
    with pytest.raises(errors.UnknownCallback, match=r"the run has no callback Loud.\n  known     'Inner', 'Inner#2'"):
        run.callback(Loud)
    with pytest.raises(errors.UnknownCallback, match=r"the run has 2 callbacks of class Inner.\n  use       one of the names"):
        run.callback(Inner)
    assert run.callback("Inner#2") is run.callbacks["Inner#2"]
    with pytest.raises(errors.BadArgument, match=r"run.callback: pass a class or a name, got 3"):
        run.callback(3)
    with pytest.raises(TypeError):
        run.callbacks["x"] = 1


def test_a_callback_of_another_rank_is_reported_as_such(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    run = train([Inner(), Chief()])
    for key in (Chief, "Chief"):
        with pytest.raises(
            errors.UnknownCallback, match=r"Chief runs on the chief only, not on this rank.\n  check     run.is_chief"
        ):
            run.callback(key)
