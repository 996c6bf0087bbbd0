"""explain() shows which callback runs when, and why in this order."""

from __future__ import annotations

import pytest

from hookpoint import Callback, CallbackPipeline, EnableCallbackIf, Every, Hooks, LambdaCallback, MainCallback, declare, on


class Bar(Callback):
    def on_train_iter_end(self): ...
    def on_epoch_end(self): ...


class Stopper(Callback):
    reads = ("val_loss",)

    def on_epoch_end(self): ...


class Validator(Callback):
    writes = ("val_loss",)
    ranks = "chief"

    def on_trigger(self): ...


class Saver(Callback):
    def on_trigger(self): ...


class Json(Callback):
    def on_records(self, records): ...
    def on_run_end(self): ...


@on("on_train_iter_end", when=Every(steps=50), on_error="warn")
def log(run): ...


def rows(hooks):
    """Return each row of the table as a dict of its columns."""
    head, ruler, *lines = hooks.explain().splitlines()
    starts = [0, *(place + 2 for place in range(len(ruler)) if ruler.startswith("  ", place))]
    bounds = [*zip(starts, [*starts[1:], None], strict=True)]
    names = [head[start:end].strip() for start, end in bounds]
    return [dict(zip(names, (line[start:end].strip() for start, end in bounds), strict=True)) for line in lines]


def column(hooks, name):
    return [row[name] for row in rows(hooks)]


def test_explain_shows_a_table_of_all_calls():
    callbacks = [Json(), Stopper(), log, Bar(), Validator(), Saver().when(Every(steps=500)), MainCallback()]
    assert (
        Hooks(callbacks).explain()
        == """\
point              callback      method      when              ranks  on_error  why here
-----------------  ------------  ----------  ----------------  -----  --------  --------------------------------------
on_train_forward   MainCallback              always            all    raise     first: the MainCallback
on_iter_forward    MainCallback              always            all    raise     first: the MainCallback
on_iter_backward   MainCallback              always            all    raise     first: the MainCallback
on_train_iter_end  log                       Every(steps=50)   all    warn      list order
                   Bar                       always            all    raise     list order
on_iter_end        Saver         on_trigger  Every(steps=500)  all    raise     list order
on_val_forward     MainCallback              always            all    raise     first: the MainCallback
on_pred_forward    MainCallback              always            all    raise     first: the MainCallback
on_lr_adjust       MainCallback              always            all    raise     first: the MainCallback
on_epoch_end       Bar                       always            all    raise     list order
                   Validator     on_trigger  complete epochs   chief  raise     list order
                   Stopper                   always            all    raise     moved: reads 'val_loss' from Validator
on_run_end         Json                      always            chief  warn      last: a monitor
on_records         Json                      always            chief  warn      last: a monitor"""
    )


def test_columns_with_only_default_values_are_left_out():
    assert (
        Hooks([Bar(), Stopper()]).explain()
        == """\
point              callback  why here
-----------------  --------  ----------
on_train_iter_end  Bar       list order
on_epoch_end       Bar       list order
                   Stopper   list order"""
    )


@pytest.mark.parametrize(
    ("callback", "name", "value"),
    [
        (Bar(on_error="warn"), "on_error", "warn"),
        (Bar(ranks="chief"), "ranks", "chief"),
        (Saver(), "method", "on_trigger"),
        (Saver(), "when", "complete epochs"),
        (Saver().when(Every(steps=2)), "when", "Every(steps=2)"),
        (log, "when", "Every(steps=50)"),
        (EnableCallbackIf(Bar(), lambda run: True), "when", "always (gated)"),
    ],
)
def test_a_value_that_is_not_the_default_has_a_column(callback, name, value):
    assert set(column(Hooks([callback]), name)) == {value}


def test_without_callbacks_the_table_has_no_rows():
    assert rows(Hooks()) == []


def test_the_method_is_shown_if_its_name_differs_from_the_point():
    class Orca(Callback):
        def before_epoch(self, runner): ...

    assert [(row["point"], row["method"]) for row in rows(Hooks([Orca()]))] == [
        ("on_train_epoch_begin", "before_epoch"),
        ("on_val_epoch_begin", "before_epoch"),
        ("on_pred_epoch_begin", "before_epoch"),
    ]


@pytest.mark.parametrize(
    ("callbacks", "why"),
    [
        ([Validator(), Stopper()], ["list order", "list order"]),
        ([Stopper(), Validator()], ["list order", "moved: reads 'val_loss' from Validator"]),
    ],
)
def test_a_moved_callback_shows_why_it_moved(callbacks, why):
    assert column(Hooks(callbacks), "why here") == why


def test_a_move_by_name_names_the_other_callback():
    class Early(Stopper):
        before = ("Saver",)

    class Late(Stopper):
        after = ("Saver",)

    table = rows(Hooks([Late(), Saver(), Early()]))
    assert [(row["callback"], row["why here"]) for row in table] == [
        ("Early", "moved: comes before Saver"),
        ("Saver", "list order"),
        ("Late", "moved: comes after Saver"),
    ]


def test_callbacks_in_a_pipeline_are_shown_individually():
    assert column(Hooks([CallbackPipeline([Saver(), Stopper()], name="both")]), "callback") == ["Saver", "Stopper"]


def test_custom_points_are_listed_below_and_undeclared_points_marked():
    declare("on_lemon_begin")
    hooks = Hooks(
        [
            LambdaCallback(name="a", on_lemon_begin=lambda: None, on_orange_begin=lambda: None),
            LambdaCallback(name="b", on_lemon_begin=lambda: None),
        ]
    )
    assert hooks.explain().splitlines()[2:] == [
        "",
        "custom points",
        "  on_lemon_begin: a, b",
        "  on_orange_begin: a   (not declared)",
    ]


def test_callbacks_of_other_ranks_are_not_in_the_table():
    assert rows(Hooks([Validator()], rank=1)) == []
