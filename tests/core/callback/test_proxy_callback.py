from __future__ import annotations

import pytest

from hookpoint import (
    Callback,
    CallbackPipeline,
    EnableCallbackIf,
    Every,
    LambdaCallback,
    MainCallback,
    PeriodicTrigger,
    ProxyCallback,
    Replace,
    errors,
    guard,
    on,
)
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.loop.loop import Loop
from hookpoint.core.points import POINTS
from hookpoint.monitors import History


class Inner(Callback):
    def __init__(self):
        self.seen = []

    def on_run_begin(self, run):
        self.seen.append("run_begin")

    def on_train_iter_end(self, batch, batch_idx):
        self.seen.append((batch, batch_idx))

    def on_epoch_end(self, epoch):
        self.seen.append(f"epoch {epoch}")

    def on_trigger(self, run):
        self.seen.append(f"trigger {run.epoch}")

    def state_dict(self):
        return {"seen": len(self.seen)}

    def load_state_dict(self, state):
        self.seen = ["loaded"] * state["seen"]


class Loud(ProxyCallback):
    def on_epoch_end(self, run):
        self.callback.seen.append("(")
        super().on_epoch_end(run)
        self.cb.seen.append(")")


def train(callbacks, epochs=1, batches="ab", **options):
    with Loop(callbacks, **options) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(batches):
                run.log(loss=1.0)
                run.outputs = batch
    return run


def test_points_that_a_wrapper_does_not_override_reach_the_wrapped_callback():
    plain, wrapped = Inner(), Inner()
    train([plain], epochs=2)
    train([ProxyCallback(wrapped)], epochs=2)
    assert wrapped.seen == plain.seen


def test_an_overridden_point_calls_the_wrapper_which_forwards_it():
    inner = Inner()
    train([Loud(inner)])
    assert inner.seen == ["run_begin", ("a", 0), ("b", 1), "(", "epoch 1", ")", "trigger 1"]


def test_a_wrapper_adds_no_call_at_points_it_does_not_override():
    inner = Inner()
    hooks = Hooks([Loud(inner)])
    functions = {call.point: call.handler.function for call in hooks.calls("on_train_iter_end") + hooks.calls("on_epoch_end")}
    assert functions["on_train_iter_end"] == inner.on_train_iter_end
    assert hooks.dispatch("on_iter_begin") is None


def test_nested_wrappers_run_from_the_outside_in():
    order = []

    class Says(ProxyCallback):
        def __init__(self, callback, word):
            super().__init__(callback)
            self.word = word

        def on_epoch_end(self, run):
            order.append(self.word)
            super().on_epoch_end(run)

    train([Says(Says(LambdaCallback(on_epoch_end=lambda epoch: order.append(epoch)), "inner"), "outer")])
    assert order == ["outer", "inner", 1]


def test_arguments_that_a_wrapper_passes_replace_those_of_the_point():
    class Doubled(ProxyCallback):
        def on_train_iter_end(self, run, batch):
            super().on_train_iter_end(run, batch * 2)
            super().on_train_iter_end(run, batch_idx=-1)

    inner = Inner()
    train([Doubled(inner)], batches="a")
    assert inner.seen[1:3] == [("aa", 0), ("a", -1)]


def test_forwarding_too_many_arguments_raises():
    class TooMany(ProxyCallback):
        def on_epoch_end(self, run):
            super().on_epoch_end(run, {"loss": 1})

    with pytest.raises(errors.BadArgument, match=r"TooMany.on_epoch_end has 1 parameters but passes on 2 arguments"):
        train([TooMany(Inner())])


def test_every_point_has_a_method_that_forwards_it():
    for point in POINTS:
        seen = []
        inner = Callback()
        setattr(inner, point.name, lambda seen=seen: seen.append(1))
        proxy = ProxyCallback(inner) if not point.main_only else None
        if proxy is not None:
            getattr(proxy, point.name)()
            assert seen == [1], point.name


def test_tensorpack_names_can_be_overridden_and_forwarded():
    class Twice(ProxyCallback):
        def _trigger(self):
            super()._trigger()
            super()._trigger()

    class Tensorpack(Callback):
        def _trigger(self):
            triggered.append(self.epoch_num)

    triggered = []
    train([Twice(Tensorpack())], epochs=2)
    assert triggered == [1, 1, 2, 2]


def test_records_reach_a_wrapped_monitor_and_a_wrapper_can_change_them():
    class Dropped(ProxyCallback):
        def on_records(self, records):
            super().on_records([record for record in records if record.epoch != 1])

    plain, dropped = History(), History()
    run = train([ProxyCallback(plain), Dropped(dropped)], epochs=2)
    assert plain.epoch == [1, 2]
    assert dropped.epoch == [2]
    assert run.callbacks.keys() == {"History", "History#2"}


def test_a_wrapped_callback_keeps_its_name_schedule_and_state():
    inner = Inner().when(Every(steps=2))
    train([Loud(inner)], epochs=2, batches="abc")
    assert [line for line in inner.seen if "trigger" in str(line)] == ["trigger 1", "trigger 2", "trigger 2"]
    hooks = Hooks([Loud(inner)])
    assert list(hooks.state_dict()) == ["Inner"]
    other = Inner()
    Hooks([other]).load_state_dict(hooks.state_dict())
    assert len(other.seen) == len(inner.seen)


def test_a_wrapper_can_have_its_own_state():
    class Counts(ProxyCallback):
        calls = 0

        def on_epoch_end(self, run):
            self.calls += 1
            super().on_epoch_end(run)

        def state_dict(self):
            return {"calls": self.calls, "inside": super().state_dict()}

        def load_state_dict(self, state):
            self.calls = state["calls"]
            super().load_state_dict(state["inside"])

    before, after = Counts(Inner()), Counts(Inner())
    train([before], epochs=3)
    Hooks([after]).load_state_dict(Hooks([before]).state_dict())
    assert after.calls == 3
    assert len(after.callback.seen) == len(before.callback.seen)


def test_a_wrapper_sets_options_and_adds_to_declarations():
    class Reader(ProxyCallback):
        ranks = "chief"
        on_error = "warn"
        reads = ("val_loss",)

    [entry] = Hooks([Reader(Inner(), name="mine")]).entries
    assert (entry.name, entry.ranks, entry.on_error, entry.declared("reads")) == ("mine", "chief", "warn", ("val_loss",))
    assert Hooks([Reader(Inner())], rank=1).entries == []
    [monitor] = Hooks([ProxyCallback(History())]).entries
    assert (monitor.ranks, monitor.on_error) == ("chief", "warn")
    [chief] = Hooks([ProxyCallback(Inner().set_chief_only())]).entries
    assert chief.ranks == "chief"


def test_tensorpack_wrappers_can_wrap_a_proxy():
    inner = Inner()
    train([PeriodicTrigger(Loud(inner), every_k_steps=1)])
    assert inner.seen == ["run_begin", ("a", 0), "trigger 1", ("b", 1), "trigger 1", "(", "epoch 1", ")"]
    gated = Inner()
    train([EnableCallbackIf(Loud(gated), lambda run: False)])
    assert gated.seen == ["run_begin"]


def test_a_custom_point_is_forwarded_and_its_result_returned():
    class Shout(ProxyCallback):
        def on_greet_end(self, result):
            answer = self.forward("on_greet_end", result=result + "!")
            return Replace(answer.value.upper())

    @guard("on_greet")
    def greet(name, *, callbacks=None):
        return f"hello {name}"

    inner = LambdaCallback(on_greet_end=lambda result, name: Replace(f"{result} {name}?"))
    assert greet("you", callbacks=[Shout(inner)]) == "HELLO YOU! YOU?"


def test_functions_and_callbacks_with_their_own_run_can_be_wrapped():
    seen = []

    @on("on_epoch_end")
    def say(epoch):
        seen.append(epoch)

    class Everything(Callback):
        def run(self, hookpoint=None, logs=None):
            if hookpoint == "on_epoch_end":
                seen.append(hookpoint)

    class Marked(ProxyCallback):
        def on_epoch_end(self, run):
            seen.append("wrapper")
            super().on_epoch_end(run)

    train([Marked(say), Marked(Everything())])
    assert seen == ["wrapper", 1, "wrapper", "on_epoch_end"]
    seen.clear()
    Marked(say).run("on_epoch_end", {"epoch": 7, "run": None})
    assert seen == ["wrapper", 7]


def test_a_trigger_in_a_pipeline_with_its_own_run_reaches_the_wrapper_once():
    class Own(CallbackPipeline):
        def run(self, hookpoint=None, logs=None):
            super().run(hookpoint, logs)

    class Counts(ProxyCallback):
        def on_trigger(self, run):
            triggered.append(self.callback)
            super().on_trigger(run)

    triggered = []
    first, second = Inner(), Inner()
    train([Own([Counts(first), Counts(second)])])
    assert triggered == [first, second]
    assert first.seen[-1] == second.seen[-1] == "trigger 1"


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        (Inner, "Inner is a class"),
        (MainCallback(), "ProxyCallback cannot wrap MainCallback.\n  derive    a class from MainCallback"),
        (CallbackPipeline([Inner()]), "ProxyCallback wraps one callback, not a CallbackPipeline"),
        (PeriodicTrigger(Inner(), every_k_steps=1), "write     PeriodicTrigger around ProxyCallback"),
    ],
)
def test_wrapping_an_unsupported_object_raises(inside, text):
    with pytest.raises(errors.NotACallback, match=text):
        ProxyCallback(inside)


def test_a_point_with_its_own_schedule_cannot_be_overridden():
    class Own(Callback):
        @on("on_epoch_end", when=Every(epochs=2))
        def rarely(self, run):
            pass

    with pytest.raises(errors.CompileError, match=r"Loud cannot override on_epoch_end: Own\.on_epoch_end has its own schedule"):
        Hooks([Loud(Own())])
