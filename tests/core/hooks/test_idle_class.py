"""A callback that a run would never call raises, with the methods to rename."""

from __future__ import annotations

import pytest

from hookpoint import Callback, CallbackPipeline, Hooks, Knob, LambdaCallback, errors
from hookpoint.core.callback.watcher import Watcher


def refused(callback):
    with pytest.raises(errors.NotACallback) as caught:
        Hooks([callback])
    assert isinstance(caught.value, TypeError)
    return str(caught.value)


def test_a_class_without_methods_raises():
    class Nothing(Callback): ...

    assert refused(Nothing()) == (
        "Nothing: a run calls none of its methods.\n"
        "  write     a method such as on_epoch_end(self, run)"
    )  # fmt: skip


def test_methods_of_other_libraries_raise_with_the_names_to_use():
    class Foreign(Callback):
        def __init__(self):
            self.count = 0

        def set_model(self, model): ...
        def step_end(self, ctx): ...
        def _before_epoch(self, context): ...
        def process_scalar(self, name, value): ...
        def helper(self): ...

    assert refused(Foreign()) == (
        "Foreign: a run calls none of its methods.\n"
        "  rename    set_model(self, model) -> setup(self, component, save_path)\n"
        "            step_end(self, ctx) -> on_train_iter_end(self, run)\n"
        "            _before_epoch(self, context) -> on_train_epoch_begin(self, run)\n"
        "            process_scalar(self, name, value) -> on_records(self, records)"
    )


@pytest.mark.parametrize(
    ("method", "ours"),
    [
        ("epoch_end", "on_epoch_end"),
        ("epoch_start", "on_epoch_begin"),
        ("batch_end", "on_train_iter_end"),
        ("fit_start", "on_run_begin"),
        ("trigger_epoch", "on_epoch_end"),
        ("_trigger", "on_trigger"),
        ("begin", "on_run_begin"),
        ("end", "on_run_end"),
        ("__call__", "on_trigger"),
    ],
)
def test_each_foreign_method_name_maps_to_a_point(method, ours):
    foreign = type("Foreign", (Callback,), {method: lambda self, state: None})
    assert refused(foreign()).endswith(f"\n  rename    {method}(self, state) -> {ours}(self, run)")


def test_methods_of_the_base_class_are_reported():
    class Base(Callback):
        def step_end(self, ctx): ...

    class Derived(Base): ...

    assert "step_end(self, ctx) -> on_train_iter_end(self, run)" in refused(CallbackPipeline([Derived()]))


class Mixin:
    def on_epoch_end(self): ...


@pytest.mark.parametrize(
    "bases_and_members",
    [
        ((Mixin, Callback), {}),
        ((Callback,), {"setup": lambda self, component, save_path: None}),
        ((Callback,), {"run": lambda self, hookpoint=None, logs=None: None}),
        ((Callback,), {"state_dict": lambda self: {}}),
        ((Callback,), {"knobs": (Knob("alpha"),), "alpha": 0.5}),
        ((Callback,), {"actions": lambda self: ()}),
        ((Callback,), {"on_mine": lambda self: None}),
        ((Watcher,), {}),
    ],
)
def test_a_class_with_anything_a_run_calls_or_reads_is_accepted(bases_and_members):
    accepted = type("Accepted", *bases_and_members)
    derived = type("Derived", (accepted,), {})
    assert [entry.name for entry in Hooks([accepted(), derived()]).entries] == ["Accepted", "Derived"]


def test_an_attribute_named_run_does_not_count_as_a_method():
    class Tracked(Callback):
        def __init__(self):
            self.run = "a value"

    assert "a run calls none of its methods" in refused(Tracked())


def test_a_bare_callback_and_an_empty_lambda_callback_are_accepted():
    assert len(Hooks([Callback(), LambdaCallback()]).entries) == 2


# chief_only


@pytest.mark.parametrize(("chief_only", "ranks"), [(True, "chief"), (False, "all")])
def test_chief_only_is_honoured(chief_only, ranks):
    own = type("Own", (Callback,), {"chief_only": chief_only, "on_epoch_end": lambda self: None})
    (entry,) = Hooks([own()]).entries
    assert entry.ranks == ranks
    assert len(Hooks([own()], rank=1, local_rank=1).entries) == (not chief_only)


def test_ranks_takes_precedence_over_chief_only():
    own = type("Own", (Callback,), {"chief_only": True, "on_epoch_end": lambda self: None})
    assert Hooks([own(ranks="all")]).entries[0].ranks == "all"


def test_a_monitor_with_chief_only_false_runs_on_all_ranks():
    monitor = type("Own", (Callback,), {"chief_only": False, "on_records": lambda self, records: None})
    assert Hooks([monitor()]).entries[0].ranks == "all"
