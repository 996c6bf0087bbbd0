"""A compiled callback: its name, its ranks and its error policy."""

from __future__ import annotations

import logging
from copy import copy

import pytest

from hookpoint import (
    Callback,
    CallbackPipeline,
    EnableCallbackIf,
    Every,
    Hooks,
    If,
    LambdaCallback,
    MainCallback,
    PeriodicTrigger,
    ProxyCallback,
    StopRun,
    errors,
    on,
)
from hookpoint.callbacks import ClassificationError, ModelSaver, SwapEMAWeights
from hookpoint.core.loop.loop import Loop


class Saver(Callback):
    def on_epoch_end(self, run): ...


class Monitor(Callback):
    def on_records(self, records): ...


class Fails(Callback):
    """Raises `error` at the given epochs."""

    def __init__(self, *epochs, error=ValueError, **options):
        super().__init__(**options)
        self.epochs, self.error, self.calls = epochs, error, 0

    def on_epoch_end(self, epoch):
        self.calls += 1
        if epoch in self.epochs:
            raise self.error("boom")


def names(callbacks):
    return [entry.name for entry in Hooks(callbacks).entries]


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# Names


def test_a_name_is_the_given_name_or_the_class_name():
    assert names([Saver(), Saver(name="mine"), Callback(name="")]) == ["Saver", "mine", "Callback"]


def test_a_plain_object_can_have_a_name():
    class Plain:
        name = "plain"

        def on_epoch_end(self): ...

    class Nameless:
        name = 3

        def on_epoch_end(self): ...

    assert names([Plain(), Nameless()]) == ["plain", "Nameless"]


def test_a_function_is_named_after_itself():
    @on("on_epoch_end")
    def say(): ...

    assert names([say]) == ["say"]


@pytest.mark.parametrize(
    ("given", "unique"),
    [
        ([None, None, None], ["Saver", "Saver#2", "Saver#3"]),
        (["x", None, "x", None], ["x", "Saver", "x#2", "Saver#2"]),
        (["Saver#2", None, None], ["Saver#2", "Saver", "Saver#3"]),
        ([None, None, "Saver#2"], ["Saver", "Saver#2", "Saver#2#2"]),
    ],
)
def test_names_are_made_unique_in_list_order(given, unique):
    assert names([Saver(name=name) for name in given]) == unique


def test_names_are_unique_across_pipelines():
    assert names([CallbackPipeline([Saver()]), Saver()]) == ["Saver", "Saver#2"]


# Ranks


@pytest.mark.parametrize(
    ("rank", "local_rank", "expected"),
    [
        (0, 0, ["all", "chief", "local_chief"]),
        (1, 1, ["all"]),
        (8, 0, ["all", "local_chief"]),
    ],
)
def test_callbacks_of_other_ranks_are_left_out(rank, local_rank, expected):
    callbacks = [Saver(name=ranks, ranks=ranks) for ranks in ("all", "chief", "local_chief")]
    hooks = Hooks(callbacks, rank=rank, local_rank=local_rank)
    assert [entry.name for entry in hooks.entries] == expected
    assert [call.entry.name for call in hooks.calls("on_epoch_end")] == expected


def test_names_are_the_same_on_every_rank():
    hooks = Hooks([Saver(ranks="chief"), Saver()], rank=1)
    assert [entry.name for entry in hooks.entries] == ["Saver#2"]


def test_monitors_run_on_the_chief_by_default():
    class Everywhere(Monitor):
        ranks = "all"

    entries = Hooks([Monitor(), Everywhere(), Monitor(ranks="all"), Monitor(ranks="local_chief")]).entries
    assert [entry.ranks for entry in entries] == ["chief", "all", "all", "local_chief"]


def test_a_loop_reads_its_rank_from_the_environment(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    loop = Loop([Saver(ranks="chief"), Saver(name="everywhere")])
    assert [entry.name for entry in loop.hooks.entries] == ["everywhere"]


# Policies


def test_a_failure_ends_the_run_and_keeps_its_type(train):
    with pytest.raises(ZeroDivisionError, match="boom"):
        train([Fails(1, error=ZeroDivisionError)])


def test_an_exception_gets_a_note_with_callback_point_step_and_rank(train, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(ValueError, match="boom") as caught:
        train([Saver(), Fails(2, name="bad"), Saver()], epochs=3, batches=[1, 2])
    assert caught.value.__notes__ == ["in callback bad at on_epoch_end (step 4, rank 3)"]


def test_the_note_at_a_custom_point_has_step_and_rank(train):
    def fails():
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        train([LambdaCallback(on_hello=fails)], body=lambda run: run.fire("on_hello"))
    assert caught.value.__notes__ == ["in callback LambdaCallback at on_hello (step 0, rank 0)"]


def test_the_note_outside_a_run_has_no_step_and_rank():
    def fails():
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        Hooks([LambdaCallback(on_hello=fails)]).fire_payload("on_hello", {})
    assert caught.value.__notes__ == ["in callback LambdaCallback at on_hello"]


def test_warn_logs_the_failure_and_continues(train, caplog):
    bad, after = Fails(2, on_error="warn"), Fails()
    train([bad, after], epochs=4)
    assert (bad.calls, after.calls) == (4, 4)
    assert messages(caplog) == ["Fails failed at on_epoch_end: ValueError: boom; the run continues"]
    assert caplog.records[-1].exc_info[0] is ValueError


def test_warn_disables_a_callback_after_three_failures_in_a_row(train, caplog):
    bad = Fails(1, 2, 3, 4, 5, on_error="warn")
    train([bad], epochs=5)
    assert bad.calls == 3
    assert messages(caplog) == [
        "Fails failed at on_epoch_end: ValueError: boom; the run continues",
        "Fails failed at on_epoch_end: ValueError: boom; the run continues",
        "Fails failed at on_epoch_end: ValueError: boom (3 times in a row); it is disabled for the rest of the run",
    ]


def fails(run):
    raise ValueError("boom")


quiet = LambdaCallback(name="bad", on_error="warn", on_trigger=print, on_hello=print)


@pytest.mark.parametrize(
    ("callbacks", "point"),
    [
        ([copy(quiet).when(Every(epochs=1) & If(fails))], "on_epoch_end"),
        ([EnableCallbackIf(Fails(name="bad", on_error="warn"), fails)], "on_epoch_end"),
        ([EnableCallbackIf(Monitor(name="bad"), fails)], "on_records"),
        ([EnableCallbackIf(copy(quiet), fails), LambdaCallback(on_epoch_begin=lambda run: run.fire("on_hello"))], "on_hello"),
    ],
)
def test_an_error_in_a_condition_is_a_failure_of_the_callback(train, caplog, callbacks, point):
    train(callbacks, epochs=5)
    first, _, third = messages(caplog)
    assert first == f"bad failed at {point}: ValueError: boom; the run continues"
    assert third.endswith(": ValueError: boom (3 times in a row); it is disabled for the rest of the run")


def test_a_tick_whose_condition_fails_is_skipped(train):
    seen = []
    fails_once = If(lambda run: 1 / (run.step - 2))
    callback = LambdaCallback(on_trigger=lambda run: seen.append(run.step), on_error="warn")
    train([callback.when(Every(steps=2) & fails_once)], batches=range(6))
    assert seen == [4, 6]


class SetUp(Fails):
    def setup(self, component, save_path):
        raise self.error("boom")


class Group(CallbackPipeline):
    def setup(self, component, save_path):
        raise ValueError("boom")


@pytest.mark.parametrize(
    "callbacks",
    [
        [SetUp(name="bad", on_error="warn")],
        [CallbackPipeline([Saver(), ProxyCallback(SetUp(name="bad", on_error="warn"))])],
        [Group([Saver(name="bad", on_error="warn")])],
    ],
)
def test_an_error_in_setup_is_a_failure_of_the_callback(train, caplog, callbacks):
    train(callbacks)
    assert messages(caplog) == ["bad failed at setup: ValueError: boom; the run continues"]


@pytest.mark.parametrize("callbacks", [[SetUp()], [Group([Saver(on_error="warn"), Saver()])]])
def test_an_error_in_setup_ends_the_run_unless_all_callbacks_tolerate_it(train, callbacks):
    with pytest.raises(ValueError, match="boom"):
        train(callbacks)


def test_a_success_resets_the_count_of_failures(train, caplog):
    bad = Fails(1, 2, 4, 5, 7, on_error="warn")
    train([bad], epochs=7)
    assert bad.calls == 7
    assert len(messages(caplog)) == 5


def test_disable_disables_a_callback_at_the_first_failure(train, caplog):
    bad = Fails(2, on_error="disable")
    train([bad], epochs=4)
    assert bad.calls == 2
    assert messages(caplog) == ["Fails failed at on_epoch_end: ValueError: boom; it is disabled for the rest of the run"]


def test_a_disabled_callback_is_called_again_only_at_on_run_end(train, caplog):
    said = []

    class Bad(Fails):
        def on_epoch_begin(self, epoch):
            said.append(epoch)

        def on_run_end(self):
            said.append("end")

    train([Bad(1, on_error="disable")], epochs=3)
    assert said == [1, "end"]


def test_a_save_between_failures_does_not_count_as_a_success(train, caplog):
    class Bad(Fails):
        def state_dict(self):
            return {"calls": self.calls}

    bad = Bad(1, 2, 3, 4, 5, on_error="warn")
    train([bad, LambdaCallback(on_epoch_end=lambda run: run.hooks.state_dict())], epochs=5)
    assert bad.calls == 3


def test_the_next_run_of_a_loop_enables_all_callbacks(caplog):
    bad = Fails(1, on_error="disable")
    loop = Loop([bad])
    for _ in range(2):
        with loop as run:
            for _ in run.epochs(2):
                pass
    assert bad.calls == 2
    assert len(messages(caplog)) == 2


def test_disabling_a_callback_does_not_affect_the_others(train):
    bad, good = Fails(1, on_error="disable"), Fails(on_error="disable")
    train([bad, good], epochs=3)
    assert (bad.calls, good.calls) == (1, 3)


@pytest.mark.parametrize("policy", ["raise", "warn", "disable"])
def test_stop_run_stops_the_run_under_every_policy(train, caplog, policy):
    stopper = Fails(2, error=StopRun, on_error=policy)
    run = train([stopper], epochs=9)
    assert run.epoch == 2
    assert stopper.calls == 2
    assert messages(caplog) == []


@pytest.mark.parametrize("policy", ["raise", "warn", "disable"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_keyboard_interrupt_and_system_exit_pass_every_policy(train, policy, error):
    with pytest.raises(error):
        train([Fails(2, error=error, on_error=policy)], epochs=9)


def test_main_and_collective_callbacks_always_raise():
    class Collective(Saver):
        collective = True

    entries = Hooks([MainCallback(on_error="warn"), Collective(on_error="disable")]).entries
    assert [entry.on_error for entry in entries] == ["raise", "raise"]


def test_a_monitor_warns_on_errors_by_default():
    class Strict(Monitor):
        on_error = "raise"

    entries = Hooks([Monitor(), Strict(), Monitor(on_error="raise"), Monitor(on_error="disable")]).entries
    assert [entry.on_error for entry in entries] == ["warn", "raise", "raise", "disable"]


class OfChief(CallbackPipeline):
    ranks = "chief"
    on_error = "warn"


@pytest.mark.parametrize(
    ("group", "ranks", "on_error"),
    [
        (OfChief([Saver()]), "chief", "warn"),
        (OfChief([EnableCallbackIf(Saver(ranks="all", on_error="raise"), print)]), "chief", "warn"),
        (CallbackPipeline([Saver()]).set_chief_only(), "chief", "raise"),
        (EnableCallbackIf(Saver(), print).set_chief_only(), "chief", "raise"),
        (ProxyCallback(Saver(ranks="all")).set_chief_only(), "chief", "raise"),
        (CallbackPipeline([OfChief([Saver()])]).set_chief_only(False), "all", "warn"),
        (CallbackPipeline([Monitor()]), "chief", "warn"),
    ],
)
def test_ranks_and_on_error_of_a_pipeline_apply_to_all_its_callbacks(group, ranks, on_error):
    [entry] = Hooks([group]).entries
    assert (entry.ranks, entry.on_error) == (ranks, on_error)
    assert len(Hooks([group], rank=1, local_rank=1).entries) == (ranks == "all")


def test_a_pipeline_on_the_chief_that_contains_a_collective_callback_is_named():
    class Sums(Saver):
        collective = True
        ranks = "all"

    with pytest.raises(errors.CompileError) as caught:
        Hooks([OfChief([Sums()])])
    assert str(caught.value) == (
        'Sums has collective = True but runs on the chief only.\n  set       ranks = "all" on OfChief, or move Sums out of it'
    )


@pytest.mark.parametrize("callback", [MainCallback, SwapEMAWeights])
def test_a_callback_that_changes_the_weights_must_run_on_all_ranks_of_a_team(callback):
    for callbacks in ([callback(ranks="chief")], [CallbackPipeline([callback()]).set_chief_only()]):
        assert len(Hooks(callbacks).entries) == 1  # a single process
        for rank in (0, 1):
            with pytest.raises(errors.CompileError, match="changes the model's weights, but runs on the chief only"):
                Hooks(callbacks, rank=rank, is_in_team=True)


def test_a_saver_runs_on_all_ranks_even_in_a_chief_only_group():
    for group in (CallbackPipeline([ModelSaver()]), EnableCallbackIf(ModelSaver(), print)):
        [entry] = Hooks([group.set_chief_only()]).entries
        assert entry.ranks == "all"


def test_a_plain_object_can_have_a_policy_and_ranks():
    class Plain:
        on_error = "warn"
        ranks = "chief"

        def on_epoch_end(self): ...

    (entry,) = Hooks([Plain()]).entries
    assert (entry.on_error, entry.ranks) == ("warn", "chief")


def test_a_method_named_on_error_raises():
    class Wrong(Callback):
        def on_error(self, error): ...

    with pytest.raises(errors.BadOption, match=r"Wrong\.on_error is <bound method"):
        Hooks([Wrong()])


# What a list can contain


def test_a_callback_without_handlers_is_accepted():
    assert names([Callback()]) == ["Callback"]


def test_a_single_callback_needs_no_list(train):
    only = Fails()
    train(only)
    assert only.calls == 1


def test_a_single_plain_object_or_iterable_callback_needs_no_list():
    class Plain:
        def on_epoch_end(self): ...

    class Notes(Callback):
        def __iter__(self):
            raise AssertionError("nobody is to look inside")

        def on_epoch_end(self): ...

    assert names(Plain()) == ["Plain"]
    assert names(Notes()) == ["Notes"]


@pytest.mark.parametrize("thing", [3, "on_epoch_end", None, [Saver()], object(), Saver().on_epoch_end])
def test_an_object_without_handlers_raises(thing):
    with pytest.raises(errors.NotACallback):
        Hooks([thing])


@pytest.mark.parametrize("option", ["after", "before", "reads", "writes"])
def test_an_option_that_contains_an_object_instead_of_a_name_raises(option):
    saver, number = ModelSaver(), 3
    for value, example in ((saver, "ModelSaver"), ((saver,), "ModelSaver"), (number, "name")):
        group = Saver()
        setattr(group, option, value)
        with pytest.raises(errors.CompileError, match=rf'is not a name\.\n  write     {option} = \("{example}",\)'):
            Hooks([group])


def test_an_inferencer_in_the_list_raises_and_names_the_inference_runner():
    with pytest.raises(errors.NotACallback, match=r"  write     InferenceRunner\(data, ClassificationError\(\.\.\.\)\)$"):
        Hooks([ClassificationError()])


def test_lists_are_never_modified(train):
    inner = [Saver(), Saver()]
    given = [CallbackPipeline(inner), Monitor(), MainCallback(), Saver()]
    before, inner_before = list(given), list(inner)
    train(given, epochs=2)
    assert given == before
    assert inner == inner_before


def test_later_changes_of_the_list_have_no_effect():
    late = Fails()
    given = [Fails()]
    loop = Loop(given)
    given.append(late)
    for _ in range(2):
        with loop as run:
            for _ in run.epochs(1):
                pass
    assert (given[0].calls, late.calls) == (2, 0)


@pytest.mark.parametrize("given", [lambda: (one for one in [Fails()]), lambda: (Fails(),), lambda: {"a": Fails()}.values()])
def test_any_iterable_of_callbacks_is_accepted(train, given):
    assert train(given()).epoch == 1


def test_a_wrapped_callback_without_a_trigger_raises_with_its_name():
    with pytest.raises(errors.NoTrigger, match=r"Saver has no on_trigger for Every\(steps=100\) to call"):
        Hooks([PeriodicTrigger(Saver(), every_k_steps=100)])


def test_a_pipeline_schedule_needs_only_one_callback_with_a_trigger():
    triggers = LambdaCallback(on_trigger=lambda: None)
    hooks = Hooks([CallbackPipeline([Saver(), triggers]).when(Every(steps=10))])
    assert [call.when for call in hooks.calls("on_iter_end")] == ["Every(steps=10)"]


class LoadsOnly(Callback):
    def on_epoch_end(self): ...

    def load_state_dict(self, state): ...


class PlainLoadsOnly:
    def on_epoch_end(self): ...

    def load_state_dict(self, state): ...


class Saves(LoadsOnly):
    def state_dict(self):
        return {}


@pytest.mark.parametrize("wrap", [lambda callback: callback, ProxyCallback, lambda callback: CallbackPipeline([callback])])
@pytest.mark.parametrize("kind", [LoadsOnly, PlainLoadsOnly])
def test_a_callback_that_loads_state_but_saves_none_raises(kind, wrap):
    with pytest.raises(errors.CompileError) as caught:
        Loop([wrap(kind())])
    name = kind.__name__
    assert str(caught.value) == (
        f"{name} defines load_state_dict but no state_dict.\n"
        f"  define    {name}.state_dict(self), which returns the state to save"
    )


def test_a_subclass_or_a_wrapper_may_define_the_method_that_saves_the_state():
    class Wrapper(ProxyCallback):
        def state_dict(self):
            return {}

    assert names([Saves(), Wrapper(LoadsOnly())]) == ["Saves", "LoadsOnly"]
