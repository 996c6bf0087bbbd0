from __future__ import annotations

import pytest

import hookpoint
from hookpoint import Callback, Every
from hookpoint.callbacks import ModelSaver
from hookpoint.core.loop._scopes import Cleanup
from hookpoint.core.loop.loop import Loop


class Enters(Callback):
    """Record when a validation is left."""

    def __init__(self):
        self.said = []

    def on_val_epoch_begin(self, run):
        self.said.append("in")
        run.at_leave(lambda: self.said.append("out"))

    def on_val_epoch_end(self):
        self.said.append("end")


def test_cleanups_of_a_level_run_once_in_reverse_order():
    leaving, said = Cleanup(), []
    for number in range(3):
        leaving.add("level", lambda number=number: said.append(number))
    leaving.add("another", lambda: said.append("another"))
    leaving.leave("level")
    leaving.leave("level")
    assert said == [2, 1, 0]


def test_a_failing_cleanup_is_not_called_again():
    leaving, said = Cleanup(), []
    leaving.add(None, lambda: said.append("first"))
    leaving.add(None, lambda: said.append(1 / 0))
    with pytest.raises(ZeroDivisionError):
        leaving.leave(None)
    leaving.leave(None)
    assert said == ["first"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_failing_cleanup_does_not_prevent_the_others(kind, caplog):
    def fails(words):
        raise kind(words)

    leaving, said = Cleanup(), []
    leaving.add(None, lambda: said.append("first"))
    leaving.add(None, lambda: fails("second"))
    leaving.add(None, lambda: said.append("third"))
    leaving.add(None, lambda: fails("fourth"))
    with pytest.raises(kind, match="fourth"):
        leaving.leave(None)
    assert said == ["third", "first"]
    assert f"{kind.__name__}: second" in caplog.text


def test_cleanups_run_even_if_the_last_save_fails(tmp_path):
    class Waits(Callback):
        def on_run_end(self, run):
            run.at_leave(lambda: said.append("left"))

        def state_dict(self):
            if said:
                raise ZeroDivisionError
            return {}

    class Ends(Callback):
        def on_run_end(self, run):
            said.append("ending")

    said = []
    loop = hookpoint.Loop([Waits(), Ends(), ModelSaver().when(Every(steps=9))], workdir=tmp_path)
    with pytest.raises(ZeroDivisionError), loop as run:
        for _ in run.batches(range(2)):
            pass
    assert said == ["ending", "left"]


def test_a_failing_cleanup_after_an_exception_is_only_logged(caplog):
    leaving, said = Cleanup(), []
    leaving.add(None, lambda: said.append("first"))
    leaving.add(None, lambda: said.append(1 / 0))
    leaving.leave(None, has_failed=True)
    assert said == ["first"]
    assert "ZeroDivisionError: division by zero" in caplog.text


def test_cleanups_of_a_pass_run_after_its_end_points():
    enters = Enters()
    with Loop([enters]) as run:
        for _ in run.batches([1, 2], mode="val"):
            assert enters.said == ["in"]
        assert enters.said == ["in", "end", "out"]
    assert enters.said == ["in", "end", "out"]


def test_a_break_runs_the_cleanups_of_a_pass_at_once():
    enters = Enters()
    with Loop([enters]) as run:
        for _ in run.batches([1, 2], mode="val"):
            break
        assert enters.said == ["in", "out"]  # the end point fires at the next call of the run
        run.log(loss=1.0)
        assert enters.said == ["in", "out", "end"]


def test_a_caught_exception_runs_the_cleanups_of_a_pass_at_once():
    enters = Enters()
    with Loop([enters]) as run:
        with pytest.raises(ValueError, match="mine"):
            for _ in run.batches([1, 2], mode="val"):
                raise ValueError("mine")
        assert enters.said == ["in", "out"]


def test_cleanups_of_a_pass_run_before_on_exception():
    enters, seen = Enters(), []
    last = Callback()
    last.on_exception = lambda run: seen.extend(enters.said)
    batches = None
    with pytest.raises(ValueError, match="mine"), Loop([enters, last]) as run:
        batches = run.batches([1, 2], mode="val")  # the variable keeps the pass open
        next(batches)
        raise ValueError("mine")
    assert seen == ["in", "out"]


def test_a_failed_evaluation_runs_its_cleanups():
    enters = Enters()

    def fails(run):
        raise ValueError("mine")

    with Loop([enters], model=object()) as run:
        with pytest.raises(ValueError, match="mine"):
            run.evaluate([1, 2], forward=fails)
        assert enters.said == ["in", "out"]


def test_cleanups_outside_a_pass_run_after_the_last_on_epoch_end_handler():
    said = []

    class First(Callback):
        def on_epoch_end(self, run):
            run.at_leave(lambda: said.append("left"))

    class Second(Callback):
        def on_epoch_end(self):
            said.append("second")

    with Loop([First(), Second()]) as run:
        for epoch in run.epochs(2):
            said.append(epoch)  # noqa: PERF402 - handlers append in between
    assert said == [1, "second", "left", 2, "second", "left"]


def test_cleanups_run_after_a_failing_on_epoch_end():
    said = []

    class Both(Callback):
        def on_epoch_end(self, run):
            run.at_leave(lambda: said.append("left"))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), Loop([Both()]) as run:
        for _ in run.epochs(1):
            pass
    assert said == ["left"]


def test_cleanups_at_on_run_end_run_after_the_last_checkpoint():
    said = []

    class Keeps(Callback):
        saves = True

        def on_run_end(self, run):
            run.at_leave(lambda: said.append("left"))

        def on_save(self, tags):
            said.extend(tags)

    class Store:
        def save(self, state, *, step, tags):
            return "nowhere"

    with Loop([Keeps()], store=Store()) as run:
        for _ in run.batches([1]):
            pass
    assert said == ["end", "left"]
