from __future__ import annotations

import signal

import pytest

from hookpoint import Callback, CallbackPipeline, HookpointWarning, Loop, ProxyCallback, Runner, StopRun, errors


class Context(Callback):
    """Record every call, and the exception that is passed to __exit__."""

    said: list

    def __init__(self, said, fails="", **options):
        super().__init__(**options)
        self.said, self.fails = said, fails

    def say(self, word):
        self.said.append(f"{word} {self.name or ''}".strip())
        if self.fails == word:
            raise OSError(f"{word} failed")

    def __enter__(self):
        self.say("enter")
        return self

    def __exit__(self, kind, error, trace):
        assert (kind is None) == (error is None)
        self.error = error
        self.say("exit")

    def on_setup(self):
        self.say("setup")

    def on_run_end(self):
        self.say("end")


def train(callbacks, error=None):
    with Loop(callbacks, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(2)):
                if error is not None:
                    raise error


def test_contexts_surround_setup_and_run_end_and_are_left_in_reverse_order():
    said = []
    a, b = Context(said, name="a"), Context(said, name="b")
    train([a, b])
    assert said == ["enter a", "enter b", "setup a", "setup b", "end a", "end b", "exit b", "exit a"]
    assert (a.error, b.error) == (None, None)


def test_an_exception_of_the_run_is_passed_to_exit_and_propagates():
    said = []
    a, error = Context(said, name="a"), ValueError("boom")
    with pytest.raises(ValueError, match="boom"):
        train([a], error)
    assert a.error is error
    assert said[-2:] == ["end a", "exit a"]


def test_a_stop_is_not_an_exception():
    a = Context([], name="a")
    train([a], StopRun("enough"))
    assert a.error is None


def test_sigint_is_passed_to_exit_as_keyboard_interrupt():
    a = Context([], name="a")
    with pytest.raises(KeyboardInterrupt), Loop([a], extra_callbacks=[], monitors=[]) as run:
        for _ in run.batches(range(3)):
            signal.raise_signal(signal.SIGINT)
    assert isinstance(a.error, KeyboardInterrupt)


def test_entered_contexts_are_left_if_a_later_enter_fails():
    said = []
    a, b, c = Context(said, name="a"), Context(said, "enter", name="b"), Context(said, name="c")
    with pytest.raises(OSError, match="enter failed") as caught:
        train([a, b, c])
    assert [word for word in said if "enter" in word or "exit" in word] == ["enter a", "enter b", "exit a"]
    assert a.error is caught.value
    assert caught.value.__notes__ == ["in callback b at __enter__"]


def test_the_other_contexts_are_left_after_a_failing_exit():
    said = []
    a, b = Context(said, name="a"), Context(said, "exit", name="b")
    with pytest.raises(OSError, match="exit failed") as caught:
        train([a, b])
    assert said[-2:] == ["exit b", "exit a"]
    assert "in callback b at __exit__" in caught.value.__notes__
    with pytest.raises(ValueError, match="boom") as caught_too:
        train([Context([], "exit", name="b")], ValueError("boom"))
    assert caught_too.value.__notes__ == ["on_run_end failed too: OSError: exit failed"]


def test_an_error_in_on_run_end_is_passed_to_exit():
    a, b = Context([], name="a"), Context([], "end", name="b")
    with pytest.raises(OSError, match="end failed") as caught:
        train([a, b])
    assert a.error is b.error is caught.value


@pytest.mark.parametrize("moment", ["enter", "exit"])
def test_the_error_policy_of_the_callback_applies(moment, caplog):
    said = []
    train([Context(said, moment, name="a", on_error="warn")])
    assert f"a failed at __{moment}__: OSError: {moment} failed" in caplog.text
    assert ("exit a" in said) == (moment == "exit")


def test_contexts_are_left_after_an_interrupted_on_run_end():
    class Interrupted(Callback):
        def on_run_end(self):
            raise KeyboardInterrupt

    a = Context([], name="a")
    with pytest.raises(KeyboardInterrupt):
        train([a, Interrupted()])
    assert isinstance(a.error, KeyboardInterrupt)


def test_values_returned_by_enter_and_exit_are_ignored_with_a_warning():
    class Swallows(Callback):
        def __enter__(self):
            return "something"

        def __exit__(self, *args):
            return True

    with pytest.warns(HookpointWarning) as caught, pytest.raises(ValueError, match="boom"):
        train([Swallows()], ValueError("boom"))
    assert [str(warning.message) for warning in caught] == [
        "Swallows.__enter__ returned a value of type str, which is ignored: return self.",
        "Swallows.__exit__ returned a true value, which is ignored: the exception is not suppressed.",
    ]


def test_pipelines_and_wrappers_are_entered_before_their_callbacks():
    said = []

    class Group(CallbackPipeline):
        def __enter__(self):
            said.append("enter group")

        def __exit__(self, *args):
            said.append("exit group")

    class Wrapper(ProxyCallback):
        def __enter__(self):
            said.append("enter wrapper")

        def __exit__(self, *args):
            said.append("exit wrapper")

    train([Group([Wrapper(Context(said)), Context(said)])])
    entered = [word for word in said if "enter" in word]
    assert entered == ["enter group", "enter wrapper", "enter", "enter"]
    assert [word for word in said if "exit" in word] == ["exit", "exit", "exit wrapper", "exit group"]


def test_a_context_manager_without_exit_raises():
    class Half(Callback):
        def __enter__(self): ...

    with pytest.raises(errors.CompileError, match=r"Half is half a context manager: it has no __exit__"):
        Loop([Half()])


def test_validate_enters_and_leaves_contexts():
    import torch

    said = []
    model = torch.nn.Linear(1, 1)
    data = [(torch.ones(1, 1), torch.ones(1, 1))]
    runner = Runner(model, torch.optim.SGD(model.parameters(), 0.1), torch.nn.MSELoss(), callbacks=[Context(said)])
    runner.validate(data)
    runner.validate(data)
    assert said == ["enter", "exit"] * 2
