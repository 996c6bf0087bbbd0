"""Hooks are a compiled list of callbacks: firing points, state, queries."""

from __future__ import annotations

import pytest

from hookpoint import (
    Callback,
    CallbackPipeline,
    EnableCallbackIf,
    Every,
    HookpointWarning,
    Hooks,
    LambdaCallback,
    MainCallback,
    PeriodicTrigger,
    ProxyCallback,
    Replace,
    StopRun,
    errors,
    on,
)
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule.clocks import Clocks


class Count(Callback):
    def __init__(self, **options):
        super().__init__(**options)
        self.count = 0

    def on_epoch_end(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Trigger(Callback):
    def __init__(self):
        self.steps = []

    def on_trigger(self, run):
        self.steps.append(run.step)


# Firing


def test_a_built_in_point_is_fired_by_name(train):
    count = Count()
    train([count], body=lambda run: run.hooks.fire("on_epoch_end", run))
    assert count.count == 2


@pytest.mark.parametrize("point", ["on_epoch_begin", "on_never_heard_of"])
def test_firing_a_point_without_handlers_does_nothing(train, point):
    train([Count()], body=lambda run: run.hooks.fire(point, run))
    assert Hooks([Count()]).dispatch(point) is None
    assert Hooks([Count()]).calls(point) == ()


def test_firing_on_iter_end_by_hand_does_not_trigger(train):
    trigger = Trigger()
    train([trigger.when(Every(steps=1))], batches=[1, 2], body=lambda run: run.fire("on_iter_end"))
    assert trigger.steps == [1, 2]


def test_several_points_compile_to_one_function(train):
    said = []
    both = LambdaCallback(on_epoch_begin=lambda: said.append("begin"), on_epoch_end=lambda: said.append("end"))

    def body(run):
        said.clear()
        run.hooks.dispatch("on_epoch_end", "on_epoch_begin")(run)
        said.append("done")

    train([both], body=body)
    assert said == ["end", "begin", "done", "end"]


def test_a_dispatch_is_compiled_once():
    hooks = Hooks([Count()])
    assert hooks.dispatch("on_epoch_end") is hooks.dispatch("on_epoch_end")


def test_hooks_without_callbacks_are_empty(train):
    hooks = Hooks()
    assert hooks.entries == []
    assert hooks.state_dict() == {}
    assert hooks.costs() == []
    assert hooks.main is None
    assert train([]).epoch == 1


# Custom points


def test_a_payload_reaches_handlers_that_name_it():
    said = []
    first = LambdaCallback(on_hello=lambda who: said.append(who))
    second = LambdaCallback(on_hello=lambda logs: said.append(dict(logs)))
    assert Hooks([first, second]).fire_payload("on_hello", {"who": "world"}) is None
    assert said == ["world", {"who": "world"}]


def test_a_replaced_result_reaches_later_handlers_and_the_caller():
    said = []

    def double(result):
        said.append(result)
        return Replace(result * 2)

    def ignored(result):
        said.append(result)
        return 99

    hooks = Hooks([LambdaCallback(on_sum_end=one) for one in (double, ignored, double)])
    with pytest.warns(HookpointWarning, match="returned 99, which is ignored"):
        assert hooks.fire_payload("on_sum_end", {"result": 1}) == 4
    assert said == [1, 2, 2]


@pytest.mark.parametrize("policy", ["raise", "warn", "disable"])
def test_a_result_can_be_replaced_under_every_policy(policy):
    hooks = Hooks([LambdaCallback(on_sum_end=lambda result: Replace(result * 2), on_error=policy)])
    assert hooks.fire_payload("on_sum_end", {"result": 1}) == 2


def test_a_result_can_be_replaced_by_none():
    hooks = Hooks([LambdaCallback(on_sum_end=lambda: Replace(None))])
    assert hooks.fire_payload("on_sum_end", {"result": 1}) is None


def test_policies_apply_at_custom_points(caplog):
    calls = []

    def fails():
        calls.append(1)
        raise ValueError("boom")

    hooks = Hooks([LambdaCallback(on_hello=fails, on_error="disable")])
    assert hooks.fire_payload("on_hello", {"result": 5}) == 5
    hooks.fire_payload("on_hello", {})
    assert calls == [1]
    assert caplog.messages == ["LambdaCallback failed at on_hello: ValueError: boom; it is disabled for the rest of the run"]


@pytest.mark.parametrize(("point", "calls"), [("before_epoch", 1), ("on_train_epoch_begin", 1), ("on_val_epoch_begin", 1)])
def test_a_method_for_several_points_is_called_once(point, calls):
    said = []

    class Orca(Callback):
        def before_epoch(self):
            said.append(1)

    Hooks([Orca()]).fire_payload(point, {})
    assert len(said) == calls


def test_two_marks_for_the_same_point_are_two_handlers(train):
    said = []

    @on("on_hello")
    @on("on_hello")
    def hello():
        said.append("hello")

    Hooks([hello]).fire_payload("on_hello", {})
    assert said == ["hello", "hello"]


def test_a_run_fires_points_with_its_own_arguments(train):
    said = []
    hello = LambdaCallback(on_hello=lambda run, epoch, logs, who: said.append((run.mode, epoch, dict(logs), who)))

    def body(run):
        run.log(loss=1)
        run.fire("on_hello", who="world")

    train([hello], body=body)
    assert said == [("train", 1, {"loss": 1.0}, "world")]


# Errors that are raised after all handlers have run


def test_errors_are_contained_and_all_handlers_run(train):
    ran = []

    class Fails(Callback):
        def __init__(self, error):
            self.error = error

        def on_hello(self): ...

        def on_epoch_begin(self):
            ran.append(self.error)
            raise self.error

    boom, bang = ValueError("boom"), KeyError("bang")

    def body(run):
        found = Hooks([Fails(boom), Fails(StopRun("enough")), Fails(bang)]).contain("on_epoch_begin", run)
        assert found == [boom, bang]
        assert bang.__notes__ == ["in callback Fails#3 at on_epoch_begin (step 0, rank 0)"]

    train([], body=body)
    assert len(ran) == 3


def test_monitors_can_be_fired_separately(train):
    ran = []

    class Ends(Callback):
        def on_epoch_begin(self):
            ran.append(self.name)

    class Log(Ends):
        def on_records(self, records): ...

    def body(run):
        hooks = Hooks([Log(name="log"), Ends(name="other")])
        hooks.contain("on_epoch_begin", run, monitors=False)
        ran.append("then")
        hooks.contain("on_epoch_begin", run, monitors=True)

    train([], body=body)
    assert ran == ["other", "then", "log"]


# State


def test_state_is_saved_and_loaded_by_name():
    first = [Count(), CallbackPipeline([Count()]), Count(name="mine"), Callback()]
    for number, callback in enumerate([first[0], *first[1].get_pipeline(), first[2]]):
        callback.count = number + 1
    state = Hooks(first).state_dict()
    assert {name: kept["state"] for name, kept in state.items()} == {
        "Count": {"count": 1},
        "Count#2": {"count": 2},
        "mine": {"count": 3},
        "Callback": {},
    }
    second = [Count(), Count(), Count(name="mine"), Callback()]
    Hooks(second).load_state_dict(state)
    assert [one.count for one in second[:3]] == [1, 2, 3]


def test_state_follows_the_name_not_the_position():
    state = Hooks([Count(name="a"), Count(name="b")]).state_dict()
    state["a"]["state"]["count"], state["b"]["state"]["count"] = 1, 2
    moved = [Count(name="b"), Count(name="a")]
    Hooks(moved).load_state_dict(state)
    assert [one.count for one in moved] == [2, 1]


def test_a_callback_missing_from_the_state_is_unchanged():
    new = Count(name="new")
    new.count = 7
    Hooks([new]).load_state_dict(Hooks([Count()]).state_dict())
    assert new.count == 7


def test_plain_objects_and_functions_need_no_state():
    class Plain:
        def on_epoch_end(self): ...

    @on("on_epoch_end")
    def function(): ...

    hooks = Hooks([Plain(), function])
    state = hooks.state_dict()
    assert state == {name: {"state": {}, "schedules": {}} for name in ("Plain", "function")}
    hooks.load_state_dict(state)


def test_schedules_continue_from_a_checkpoint():
    def steps_taken(hooks_state, steps):
        trigger = Trigger().when(Every(iterations=3))
        loop = Loop([trigger])
        with loop as run:
            if hooks_state is not None:
                loop.hooks.load_state_dict(hooks_state)
            for _ in run.batches(range(steps)):
                pass
        return trigger.steps, loop.hooks.state_dict()

    first, state = steps_taken(None, 4)
    assert first == [3]
    assert state["Trigger"]["schedules"] == {"on_trigger@on_trigger": 6}
    second, _ = steps_taken(state, 7)
    assert second == [6]


def test_schedules_start_from_the_current_clocks():
    clocks = Clocks()
    clocks.step = 7
    hooks = Hooks([Trigger().when(Every(steps=3))])
    hooks.start_schedules(clocks)
    assert hooks.state_dict()["Trigger"]["schedules"] == {"on_trigger@on_trigger": 9}


def test_schedules_of_one_callback_are_saved_separately():
    class Two(Callback):
        @on("on_train_iter_end", when=Every(steps=2))
        @on("on_train_iter_end", when=Every(steps=5))
        def often(self): ...

        @on("on_epoch_end", when=Every(epochs=3))
        def rarely(self): ...

    (state,) = Hooks([Two()]).state_dict().values()
    assert sorted(state["schedules"].values()) == [2, 3, 5]


# Queries


def test_hooks_can_be_queried_without_a_run():
    hooks = Hooks([Count(), MainCallback()])
    assert [call.entry.name for call in hooks.calls("on_epoch_end")] == ["Count"]
    assert "Count" in hooks.explain()
    assert hooks.costs() == []


def test_set_up_reaches_each_callback_once():
    calls = []

    class Watch(Callback):
        def setup(self, component, save_path):
            calls.append((self.name, component, save_path))

    Hooks([Watch(name="a"), CallbackPipeline([Watch(name="b"), CallbackPipeline([Watch(name="c")])])]).setup("model", "dir")
    assert calls == [("a", "model", "dir"), ("b", "model", "dir"), ("c", "model", "dir")]


def test_after_a_nested_run_a_callback_reads_the_outer_run_again(train):
    seen = []

    class Names(Callback):
        def on_epoch_end(self):
            seen.append(self.trainer.name)

    names = Names()
    both = [CallbackPipeline([names, LambdaCallback()])]
    train(both, name="outer", body=lambda run: train(both, name="inner"))
    assert seen == ["inner", "outer"]
    with pytest.raises(errors.OutsideRun):
        _ = names.trainer


def test_overlapping_runs_leave_no_run_in_a_callback():
    shared = Callback(name="shared")
    first, second = Loop([shared]), Loop([shared])
    first.__enter__()
    run = second.__enter__()
    first.__exit__(None, None, None)
    assert shared.trainer is run
    second.__exit__(None, None, None)
    with pytest.raises(errors.OutsideRun):
        _ = shared.trainer


def test_compiling_does_not_change_a_callback():
    count = Count()
    before = dict(vars(count))
    Hooks([count])
    assert vars(count) == before


def test_mistakes_raise_before_anything_runs():
    ran = []
    with pytest.raises(errors.CompileError):
        Loop([LambdaCallback(on_setup=lambda: ran.append(1)), LambdaCallback(on_epoch_ends=lambda: None)])
    assert ran == []


@on("on_epoch_end")
def marked(): ...


class Plain:
    def on_epoch_end(self): ...


@pytest.mark.parametrize("callback", [Count(), Plain(), marked, Count(name="mine")])
@pytest.mark.parametrize(
    "twice",
    [
        lambda callback: [callback, callback],
        lambda callback: [callback, CallbackPipeline([callback])],
        lambda callback: [CallbackPipeline([callback, Trigger()]), CallbackPipeline([callback])],
    ],
)
def test_a_callback_that_is_in_the_list_twice_raises(callback, twice):
    name = getattr(callback, "name", None) or getattr(callback, "__name__", type(callback).__name__)
    with pytest.raises(errors.CompileError) as caught:
        Loop(twice(callback))
    assert str(caught.value) == (
        f"{name} is in the list of callbacks twice, so each of its handlers would be called twice.\n"
        "  keep      one of them, with a combined schedule: .when(a | b)\n"
        "  create    a second instance if each of them should keep its own state"
    )


@pytest.mark.parametrize(
    "wrapped",
    [
        ProxyCallback,
        lambda callback: EnableCallbackIf(callback, lambda run: True),
        lambda callback: PeriodicTrigger(callback, every_k_epochs=2),
        lambda callback: CallbackPipeline([callback]).when(Every(epochs=2)),
    ],
)
def test_a_callback_may_also_be_in_a_wrapper_or_a_pipeline_with_a_condition(wrapped):
    callback = Trigger()
    Hooks([callback, wrapped(callback)])
