"""Callbacks run in list order, changed only by what they declare, per point and stably."""

from __future__ import annotations

import itertools
import logging

import pytest

from hookpoint import Callback, CallbackPipeline, Hooks, MainCallback, errors
from hookpoint.callbacks import HumanHyperParamSetter


class Step(Callback):
    """A named callback with declarations."""

    def __init__(self, name, **declared):
        super().__init__(name=name)
        for option, names in declared.items():
            setattr(self, option, names)

    def on_epoch_end(self): ...


class Log(Step):
    """A step that is a monitor."""

    def on_records(self, records): ...


class Main(Step, MainCallback): ...


def pipeline(name, *inside):
    return CallbackPipeline(inside, name=name)


def order(*callbacks, point="on_epoch_end"):
    return " ".join(call.entry.name for call in Hooks(callbacks).calls(point))


def plain(names):
    return [Step(name) for name in names]


# List order


@pytest.mark.parametrize("names", ["abc", "cba", "bca"])
def test_callbacks_run_in_list_order(names):
    assert order(*plain(names)) == " ".join(names)


def test_the_main_callback_comes_first_and_monitors_last():
    assert order(Log("log"), Step("a"), Main("main"), Log("log2"), Step("b")) == "main a b log log2"


def test_pipelines_keep_their_place_in_the_list():
    assert order(Step("a"), pipeline("p", Step("b"), pipeline("q", Step("c")), Step("d")), Step("e")) == "a b c d e"


def test_a_pipeline_of_monitors_comes_last():
    assert order(pipeline("p", Log("x"), Log("y")), Step("a")) == "a x y"


def test_a_monitor_does_not_leave_its_pipeline():
    assert order(pipeline("p", Log("x"), Step("y")), Step("a")) == "y x a"


# after and before


def test_after_moves_a_callback_right_behind_the_other():
    assert order(Step("a", after=("c",)), *plain("bcd")) == "b c a d"


def test_after_several_names_follows_the_last_of_them():
    assert order(Step("a", after=("b", "d")), *plain("bcde")) == "b c d a e"


def test_before_moves_a_callback_right_ahead_of_the_other():
    assert order(*plain("abc"), Step("d", before=("b",))) == "a d b c"


def test_before_several_names_precedes_the_first_of_them():
    assert order(*plain("abcd"), Step("e", before=("d", "b"))) == "a e b c d"


def test_callbacks_already_in_order_stay():
    assert order(Step("a", before=("c",)), Step("b"), Step("c", after=("a",)), Step("d", after=("b",))) == "a b c d"


def test_a_single_name_needs_no_tuple():
    assert order(Step("a", after="bc"), Step("bc"), Step("b")) == "bc a b"


def test_unknown_names_move_nothing():
    assert order(Step("a", after=("nobody",)), Step("b")) == "a b"


def test_a_class_or_a_base_class_names_all_its_instances():
    class Saver(Step): ...

    class Best(Saver): ...

    assert order(Step("a", after=("Saver",)), Saver("s"), Step("b"), Best("t"), Step("c")) == "s b t a c"


def test_a_callback_after_its_own_class_is_not_a_cycle():
    assert order(Step("a", after=("Step",)), Step("b")) == "b a"


def test_chains_of_declarations_are_followed():
    assert order(Step("a", after=("b",)), Step("b", after=("c",)), Step("c"), Step("d")) == "c b a d"


def test_callbacks_after_the_same_callback_keep_their_order():
    assert order(Step("a", after=("d",)), Step("b", after=("d",)), *plain("cde")) == "c d a b e"


def test_declarations_take_precedence_over_main_and_monitors():
    assert order(Log("log"), Step("a", after=("log",)), Step("b")) == "b log a"
    assert order(Step("a", before=("main",)), Main("main"), Step("b")) == "a main b"


# reads and writes


def test_a_reader_moves_right_behind_its_writer():
    assert order(Step("r", reads=("loss",)), Step("a"), Step("w", writes=("loss",)), Step("b")) == "a w r b"


def test_a_reader_moves_behind_its_last_writer():
    writers = [Step("v", writes=("x",)), Step("a"), Step("w", writes=("y", "x")), Step("b")]
    assert order(Step("r", reads=("x",)), *writers) == "v a w r b"


def test_a_reader_behind_its_writer_stays():
    assert order(Step("w", writes=("x",)), Step("a"), Step("r", reads=("x",))) == "w a r"


def test_reading_a_metric_without_a_writer_moves_nothing():
    assert order(Step("r", reads=("acc",)), Step("w", writes=("loss",))) == "r w"


def test_reading_and_writing_the_same_metric_is_not_a_cycle():
    assert order(Step("a", reads=("x",), writes=("x",)), Step("b")) == "a b"


def test_the_order_is_determined_per_point():
    class Reader(Callback):
        name = "r"
        reads = ("x",)

        def on_epoch_begin(self): ...
        def on_epoch_end(self): ...

    class Writer(Callback):
        name = "w"
        writes = ("x",)

        def on_epoch_end(self): ...

    class Other(Callback):
        name = "o"

        def on_epoch_begin(self): ...
        def on_epoch_end(self): ...

    callbacks = [Reader(), Other(), Writer()]
    assert order(*callbacks, point="on_epoch_begin") == "r o"
    assert order(*callbacks) == "o w r"


def test_callbacks_run_in_the_compiled_order(train):
    ran = []

    class Says(Step):
        def on_epoch_end(self):
            ran.append(self.name)

    train([Says("r", reads=("x",), writes=("y",)), Says("a"), Says("w", writes=("x",))], body=lambda run: run.log(x=1, y=1))
    assert ran == ["a", "w", "r"]


def test_declarations_apply_at_custom_points():
    ran = []

    class Says(Step):
        def on_hello(self):
            ran.append(self.name)

    Hooks([Says("a", after=("b",)), Says("b")]).fire_payload("on_hello", {})
    assert ran == ["b", "a"]


def test_every_permutation_satisfies_the_declarations():
    def made():
        return {"r": Step("r", reads=("x",)), "w": Step("w", writes=("x",)), "f": Step("f", before=("w",)), "a": Step("a")}

    for names in itertools.permutations("rwfa"):
        callbacks = made()
        got = order(*(callbacks[name] for name in names)).split()
        assert got.index("f") < got.index("w") < got.index("r"), names
        if names.index("f") < names.index("w") < names.index("r"):
            assert got == list(names)


# Pipelines


def test_callbacks_move_inside_a_pipeline():
    assert order(Step("a"), pipeline("p", Step("r", reads=("x",)), Step("w", writes=("x",))), Step("b")) == "a w r b"


def test_a_callback_after_a_pipeline_member_follows_the_whole_pipeline():
    assert order(Step("a", after=("b",)), pipeline("p", Step("b"), Step("c")), Step("d")) == "b c a d"


def test_a_callback_before_a_pipeline_member_precedes_the_whole_pipeline():
    assert order(pipeline("p", Step("a"), Step("b")), Step("c", before=("b",))) == "c a b"


def test_callbacks_move_behind_a_pipeline_that_must_precede_them():
    assert order(Step("a"), Step("b"), pipeline("p", Step("c", before=("a",)))) == "b c a"


def test_a_callback_that_would_leave_its_pipeline_raises():
    with pytest.raises(errors.OrderError) as caught:
        order(pipeline("p", Step("r", reads=("x",)), Step("a")), Step("w", writes=("x",)))
    assert str(caught.value) == (
        "r reads 'x' from w, but cannot leave p.\n"
        "  move      p after w in the list, or r out of p"
    )  # fmt: skip


def test_the_error_names_an_unnamed_pipeline_by_its_class():
    with pytest.raises(errors.OrderError, match="a comes after b, but cannot leave CallbackPipeline"):
        order(CallbackPipeline([Step("a", after=("b",))]), Step("b"))


def test_the_error_names_the_callback_that_cannot_be_ordered():
    with pytest.raises(errors.OrderError) as caught:
        order(Step("y"), pipeline("p", Step("a", after=("z",)), Step("b", after=("y",))), Step("z"))
    assert str(caught.value) == (
        "a comes after z, but cannot leave p.\n"
        "  move      p after z in the list, or a out of p"
    )  # fmt: skip


@pytest.mark.parametrize(
    "wants_to_be_first",
    [[pipeline("q", Step("b", before=("a",)))], [Step("z"), Step("b", before=("a",), after=("z",))]],
)
def test_a_pipeline_that_would_have_to_move_itself_raises(wants_to_be_first):
    with pytest.raises(errors.OrderError) as caught:
        order(pipeline("p", Step("a")), *wants_to_be_first)
    stands_in = "q" if len(wants_to_be_first) == 1 else "b"
    assert str(caught.value) == (
        "a comes after b, which comes before a, but cannot leave p.\n"
        f"  move      p after {stands_in} in the list, or a out of p"
    )


class Group(CallbackPipeline): ...


@pytest.mark.parametrize("name", ["p", "Group"])
def test_after_and_before_accept_the_name_of_a_pipeline(name):
    assert order(Step("a", after=(name,)), Group([Step("b"), Step("c")], name="p"), Step("d")) == "b c a d"
    assert order(Step("d"), Group([Step("b"), pipeline("q", Step("c"))], name="p"), Step("a", before=(name,))) == "d a b c"


def test_a_pipelines_name_does_not_match_its_own_callbacks():
    assert order(pipeline("p", Step("a", after=("p",)), Step("b", after=("CallbackPipeline",)))) == "a b"


@pytest.mark.parametrize("option", ["after", "before", "reads", "writes", "collective", "knobs", "actions"])
def test_an_option_for_single_callbacks_raises_on_a_pipeline(option):
    kind = type("Group", (CallbackPipeline,), {option: ("b",)})
    with pytest.raises(errors.CompileError) as caught:
        order(kind([Step("a")]), Step("b"))
    assert str(caught.value) == (
        f"Group is a pipeline and cannot set {option}.\n"
        f"  set       {option} on a callback in Group"
    )  # fmt: skip


@pytest.mark.parametrize("name", ["knobs", "actions"])
def test_a_pipeline_may_store_other_data_under_the_names_that_are_read_from_the_class(name):
    group = Group([Step("a")])
    setattr(group, name, [0, 1])
    assert order(group, Step("b")) == "a b"


def test_a_callback_that_would_leave_an_inner_pipeline_raises():
    with pytest.raises(errors.OrderError, match="a comes after b, but cannot leave q"):
        order(pipeline("p", pipeline("q", Step("a", after=("b",))), Step("b")))


# Cycles


@pytest.mark.parametrize(
    ("callbacks", "named"),
    [
        ([Step("a", after=("b",)), Step("b", after=("a",))], "a -> b -> a"),
        ([Step("a", before=("b",)), Step("b", before=("a",))], "b -> a -> b"),
        ([Step("a", reads=("x",), writes=("y",)), Step("b", reads=("y",), writes=("x",))], "a -> b -> a"),
        ([Step("a", after=("b",)), Step("b", after=("c",)), Step("c", after=("a",))], "a -> b -> c -> a"),
        ([Step("o"), Step("w", after=("a",)), Step("a", after=("b",)), Step("b", after=("a",))], "a -> b -> a"),
        ([pipeline("p", Step("a", after=("b",))), Step("b", after=("a",))], "p -> b -> p"),
    ],
)
def test_a_cycle_raises_with_its_names(callbacks, named):
    with pytest.raises(errors.OrderError) as caught:
        Hooks(callbacks)
    assert str(caught.value) == (
        f"callbacks at on_epoch_end cannot be ordered: {named} is a cycle.\n"
        "  drop      one of the after, before or reads declarations"
    )  # fmt: skip


def test_the_error_of_a_cycle_names_its_point():
    class Early(Step):
        def on_epoch_begin(self): ...

    with pytest.raises(errors.OrderError, match="callbacks at on_epoch_begin cannot be ordered: a -> b -> a"):
        Hooks([Early("a", after=("b",)), Early("b", after=("a",))])


# Log messages


def test_a_misspelled_name_causes_one_warning(caplog):
    class Mine(HumanHyperParamSetter): ...

    for _ in range(2):
        Hooks([Step("x", after=("Stepp", "x")), Step("y", before=("elsewhere",)), Mine("learning_rate")])
        Hooks([Step("alone", after=("whoever",))])
    assert moved(caplog) == [
        "x.after names 'Stepp', but no callback in the list has this name; did you mean 'Step'?",
    ]


def moved(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "hookpoint"]


def test_a_move_at_several_points_is_logged_once(caplog):
    class Both(Step):
        def on_epoch_begin(self): ...
        def on_hello(self): ...

    caplog.set_level(logging.INFO, logger="hookpoint")
    hooks = Hooks([Both("r", reads=("x",)), Both("w", writes=("x",))])
    hooks.fire_payload("on_hello", {})
    assert moved(caplog) == ["r was moved: it reads 'x' from w"]


@pytest.mark.parametrize(
    ("callbacks", "line"),
    [
        ([Step("a", after=("b",)), Step("b")], "a was moved: it comes after b"),
        ([Step("a"), Step("b", before=("a",))], "b was moved: it comes before a"),
        ([Step("r", reads=("x",)), Step("v", writes=("x",)), Step("w", writes=("x",))], "r was moved: it reads 'x' from w"),
        ([Step("r", reads=("y", "x")), Step("w", writes=("y", "x"))], "r was moved: it reads 'x' from w"),
        ([Step("a"), pipeline("p", Step("b", before=("a",)))], "a was moved: it comes after b, which comes before a"),
    ],
)
def test_a_move_is_logged_with_its_reason(caplog, callbacks, line):
    caplog.set_level(logging.INFO, logger="hookpoint")
    Hooks(callbacks)
    assert moved(caplog) == [line]


def test_nothing_is_logged_if_nothing_moves(caplog):
    caplog.set_level(logging.INFO, logger="hookpoint")
    Hooks([Log("log"), Main("main"), Step("w", writes=("x",)), Step("r", reads=("x",))])
    assert moved(caplog) == []
