"""The table of points is consistent, and everything derived from it agrees with it."""

from __future__ import annotations

import pytest

from hookpoint import Callback, Hooks, declare, points
from hookpoint.core.callback.fetching import FETCHING
from hookpoint.core.points import FOREIGN

NAMES = [point.name for point in points()]
SPELLED = [(point, spelling) for point in points() for spelling in point.spellings]
ARGUMENTS = {"run", "epoch", "logs", "batch", "batch_idx", "outputs", "loss", "error", "path", "info", "records", "tags"}
ARGUMENTS_IN_DATA = {"sample", "index", "batch", "indices", "epoch", "mode", "batch_idx", "settings", "worker"}


def written_as(name, parameters, seen):
    """Return a callback with one method, which has the name and parameters of another system."""
    by_parameters = {
        (): lambda self: seen.append(name),
        ("run_context",): lambda self, run_context: seen.append(name),
    }
    return type("Theirs", (Callback,), {name: by_parameters[parameters or ()]})()


def test_a_point_is_in_the_table_only_once():
    assert len(set(NAMES)) == len(NAMES)


def test_the_base_class_declares_exactly_the_points_of_the_table():
    declared = [name for name in vars(Callback) if name.startswith("on_") and name != "on_error"]
    assert declared == NAMES
    assert {name for name in dir(Callback) if name.startswith("on_")} == {*NAMES, "on_error"}
    assert Callback.on_error == "raise"


@pytest.mark.parametrize("point", points(), ids=lambda point: point.name)
class TestEachPoint:
    def test_docstring_comes_from_the_table(self, point):
        assert getattr(Callback, point.name).__doc__ == f"Called {point.fires}."

    def test_base_method_accepts_any_arguments_and_does_nothing(self, point):
        assert getattr(Callback(), point.name)(1, 2, anything=3) is None

    def test_provides_the_run_and_only_known_arguments(self, point):
        assert ("run" in point.offers) is not point.in_data
        assert set(point.offers) <= (ARGUMENTS_IN_DATA if point.in_data else ARGUMENTS)

    def test_has_only_modes_of_a_loop(self, point):
        assert set(point.modes) <= {"train", "val", "pred"}


def test_iteration_values_are_provided_only_in_iterations():
    for point in points():
        if "batch" in point.offers:
            assert point.modes, point.name


def test_forward_backward_and_learning_rate_belong_to_the_main_callback():
    assert [point.name for point in points() if point.main_only] == [
        "on_train_forward",
        "on_iter_forward",
        "on_iter_backward",
        "on_val_forward",
        "on_pred_forward",
        "on_lr_adjust",
    ]


@pytest.mark.parametrize(("point", "spelling"), SPELLED, ids=lambda one: one.name)
def test_a_spelling_is_called_at_its_point(point, spelling):
    seen = []
    theirs = written_as(spelling.name, spelling.only_with, seen)
    theirs.run(hookpoint=point.name, logs={"run": None})
    assert seen == [spelling.name]


@pytest.mark.parametrize(
    ("point", "spelling"),
    [(point, one) for point, one in SPELLED if one.only_with is not None and one.name not in FETCHING],  # see test_step_fetches
    ids=lambda one: one.name,
)
def test_a_common_name_is_a_spelling_only_with_the_right_parameters(point, spelling):
    seen = []
    methods = {spelling.name: lambda self, something_else: seen.append(something_else), "on_mine": lambda self: None}
    ours = type("Ours", (Callback,), methods)()
    assert Hooks([ours]).calls(point.name) == ()
    ours.run(hookpoint=point.name, logs={"something_else": 1, "run": None})
    assert seen == []


@pytest.mark.parametrize(("point", "spelling"), SPELLED, ids=lambda one: one.name)
def test_a_point_name_is_never_a_spelling_of_another_point(point, spelling):
    assert spelling.name == point.name or spelling.name not in NAMES


def test_foreign_names_map_to_points_and_are_not_spellings():
    spoken = {*NAMES, *(spelling.name for _, spelling in SPELLED)}
    assert set(FOREIGN.values()) <= set(NAMES)
    assert not set(FOREIGN) & spoken


@pytest.mark.parametrize("name", ["epoch_end", "on epoch", "on_epoch-end", ""])
def test_declaring_an_invalid_point_name_raises(name):
    with pytest.raises(ValueError, match="must be an identifier") as caught:
        declare(name)
    assert str(caught.value) == f"declare: a point must be an identifier that starts with on_, got {name!r}."


def test_a_failed_declaration_declares_nothing():
    with pytest.raises(ValueError, match="no_point"):
        declare("on_run_bgin", "no_point")

    class Slip(Callback):
        def on_run_bgin(self): ...

    with pytest.raises(ValueError, match="on_run_bgin is not a point"):
        Hooks([Slip()])


def test_a_declared_point_is_not_reported_as_misspelled():
    class Meant(Callback):
        def on_epochs_ends(self): ...

    declare("on_epochs_ends")
    assert [call.handler.point for call in Hooks([Meant()]).calls("on_epochs_ends")] == ["on_epochs_ends"]


def test_a_misspelled_declared_point_raises():
    class Slip(Callback):
        def on_quux_bgin(self): ...

    Hooks([Slip()])  # no similar point exists yet
    declare("on_quux_begin")
    with pytest.raises(ValueError, match=r"on_quux_bgin is not a point. Did you mean on_quux_begin"):
        Hooks([Slip()])
