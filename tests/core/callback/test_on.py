"""@on makes a function a callback and a method a handler, and changes neither."""

from __future__ import annotations

import pickle

import pytest

from hookpoint import Callback, Every, Hooks, errors, on
from hookpoint.core.callback.on import Mark, marks


@on("on_epoch_end")
def at_epoch_end(run):
    run.store.setdefault("epochs", []).append(run.epoch)


def test_a_marked_function_is_a_callback(train):
    assert train([at_epoch_end], epochs=2).store == {"epochs": [1, 2]}


def test_a_marked_function_is_returned_unchanged():
    def plain(run):
        return run

    assert on("on_epoch_end")(plain) is plain
    assert plain(3) == 3
    assert pickle.loads(pickle.dumps(at_epoch_end)) is at_epoch_end


def test_marks_can_be_stacked(train):
    said = []

    @on("on_run_end")
    @on("on_run_begin")
    def both(run):
        said.append(run.epoch)

    train([both])
    assert said == [0, 1]
    assert [mark.point for mark in marks(both)] == ["on_run_begin", "on_run_end"]


def test_an_unmarked_function_has_no_marks():
    assert marks(lambda: None) == ()


@pytest.mark.parametrize(("when", "expected"), [(None, [1, 2, 3, 4]), (Every(steps=2), [2, 4])])
def test_a_marked_function_runs_on_its_schedule(train, when, expected):
    said = []

    @on("on_train_iter_end", when=when)
    def count(run):
        said.append(run.step)

    train([count], batches=range(4))
    assert said == expected


def test_a_marked_method_can_have_any_name(train):
    class Watch(Callback):
        def __init__(self):
            self.said = []

        @on("on_train_iter_end", when=Every(iterations=2))
        def now_and_then(self, run):
            self.said.append(("iteration", run.iteration))

        @on("on_epoch_end")
        def later(self, epoch):
            self.said.append(("epoch", epoch))

    watch = Watch()
    train([watch], batches=range(5))
    assert watch.said == [("iteration", 2), ("iteration", 4), ("epoch", 1)]


def test_a_mark_takes_precedence_over_the_name(train):
    said = []

    class Odd(Callback):
        @on("on_run_end")
        def on_epoch_end(self, run):
            said.append(run.epoch_complete)

    train([Odd()], epochs=3)
    assert said == [True]


def test_a_schedule_of_one_method_does_not_affect_the_others(train):
    said = []

    class Two(Callback):
        @on("on_train_iter_end", when=Every(steps=3))
        def rarely(self):
            said.append("rarely")

        def on_train_iter_begin(self):
            said.append("begin")

    train([Two()], batches=range(3))
    assert said == ["begin", "begin", "begin", "rarely"]


@pytest.mark.parametrize("spelling", ["before_epoch", "on_train_epoch_begin", "on_train_batch_begin"])
def test_a_mark_accepts_any_spelling(train, spelling):
    said = []

    @on(spelling)
    def function(run):
        said.append(run.mode)

    train([function])
    assert said == ["train"]


def test_batch_is_the_index_in_a_function_marked_with_a_keras_name(train):
    said = []

    @on("on_train_batch_end")
    def function(batch):
        said.append(batch)

    train([function], batches=["data", "data"])
    assert said == [0, 1]


def test_a_function_can_be_marked_for_a_custom_point(train):
    said = []

    @on("on_hello")
    def hello(who):
        said.append(who)

    train([hello], body=lambda run: run.fire("on_hello", who="world"))
    assert said == ["world"]


def test_a_schedule_applies_at_a_custom_point(train):
    said = []

    @on("on_hello", when=Every(iterations=2))
    def hello(run):
        said.append(run.iteration)

    train([hello], batches=range(5), body=lambda run: run.fire("on_hello"))
    assert said == [2, 4]


def test_a_schedule_outside_a_run_raises():
    @on("on_hello", when=Every(steps=2))
    def hello(): ...

    with pytest.raises(errors.OutsideRun) as caught:
        Hooks([hello]).fire_payload("on_hello", {})
    assert str(caught.value) == "hello.on_hello has a schedule, which needs the clocks of a run; no run is active."


def test_a_mark_sets_on_error_and_ranks():
    @on("on_epoch_end", on_error="disable", ranks="chief")
    def function(): ...

    (entry,) = Hooks([function]).entries
    assert (entry.name, entry.on_error, entry.ranks) == ("function", "disable", "chief")
    assert marks(function) == (Mark("on_epoch_end", None, "disable", "chief"),)


@pytest.mark.parametrize("inner_first", [True, False])
def test_options_of_stacked_marks_apply_in_any_order(inner_first):
    said, silent = on("on_run_begin", on_error="warn", ranks="chief"), on("on_run_end")

    def function(): ...

    for mark in (said, silent) if inner_first else (silent, said):
        mark(function)
    (entry,) = Hooks([function]).entries
    assert (entry.on_error, entry.ranks) == ("warn", "chief")


def test_a_function_that_receives_records_is_a_monitor():
    @on("on_records")
    def write(records): ...

    (entry,) = Hooks([write]).entries
    assert (entry.on_error, entry.ranks) == ("warn", "chief")


@pytest.mark.parametrize("point", [lambda run: None, ["on_epoch_end", "on_run_end"], None, ""])
def test_anything_but_the_name_of_one_point_raises(point):
    with pytest.raises(errors.BadArgument, match=r'^@on needs the name of one point, got (.|\n)*write +@on\("on_epoch_end"\)'):
        on(point)


def test_a_class_cannot_be_marked():
    class Plain(Callback):
        def on_run_end(self): ...

    with pytest.raises(errors.BadArgument, match=r"^@on\('on_epoch_end'\) decorates a class, Plain\."):
        on("on_epoch_end")(Plain)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
@pytest.mark.parametrize("is_above", [True, False])
def test_a_static_method_or_class_method_can_be_marked(train, kind, is_above):
    said = []

    def say(*args):
        said.append(len(args))

    mark = on("on_epoch_end")

    class Marked(Callback):
        method = mark(kind(say)) if is_above else kind(mark(say))

        def on_run_end(self):
            said.append("end")

    train([Marked()])
    assert said == [kind is classmethod, "end"]
