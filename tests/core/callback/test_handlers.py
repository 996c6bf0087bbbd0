"""Methods are found by their names, and called with exactly the arguments they name."""

from __future__ import annotations

import functools
import re

import pytest

from hookpoint import Callback, Hooks, LambdaCallback, errors, on
from hookpoint.core.callback.handlers import find_handlers


def found(subject):
    return [(handler.point, handler.spelling) for handler in find_handlers(subject)]


# Which methods are handlers


def test_handlers_follow_table_order_with_custom_points_last():
    class Mixed(Callback):
        def on_zebra(self): ...
        def on_run_end(self): ...
        def on_apple(self): ...
        def on_epoch_end(self): ...
        def on_setup(self): ...

    assert [point for point, _ in found(Mixed())] == ["on_setup", "on_epoch_end", "on_run_end", "on_apple", "on_zebra"]


def test_methods_that_only_the_base_class_declares_are_not_handlers():
    assert found(Callback()) == []


def test_an_inherited_method_is_a_handler():
    class Base(Callback):
        def on_epoch_end(self): ...

    class Derived(Base): ...

    assert found(Derived()) == [("on_epoch_end", "on_epoch_end")]


def test_an_override_can_call_the_base_class(train):
    class Polite(Callback):
        def on_epoch_end(self, run):
            super().on_epoch_end(run)
            run.store["polite"] = True

    assert train([Polite()]).store == {"polite": True}


def test_only_functions_with_point_names_are_handlers():
    class Odd(Callback):
        on_save = None
        on_load = "a name"

        @property
        def on_epoch_end(self):
            raise AssertionError("nobody is to read this while looking for handlers")

        class on_run_end: ...  # noqa: N801

        def epoch_end(self): ...
        def after_lunch(self): ...
        def _private(self): ...

    assert found(Odd()) == []


def test_static_methods_class_methods_and_instance_attributes_are_handlers():
    class Ways(Callback):
        def __init__(self):
            self.on_run_end = functools.partial(print, "end")

        @staticmethod
        def on_epoch_begin(epoch): ...

        @classmethod
        def on_epoch_end(cls, epoch): ...

    assert [point for point, _ in found(Ways())] == ["on_epoch_begin", "on_epoch_end", "on_run_end"]


def test_a_property_hides_an_instance_attribute_with_the_same_name():
    class Odd(Callback):
        @property
        def on_epoch_end(self):
            raise AssertionError("it is not looked up")

    odd = Odd()
    vars(odd)["on_epoch_end"] = vars(odd)["on_step_end"] = print
    assert [handler.point for handler in find_handlers(odd)] == ["on_step_end"]


def test_a_plain_object_is_searched_like_a_callback():
    class Plain:
        __slots__ = ()

        def after_run(self, runner): ...
        def on_epoch_end(self): ...

    assert found(Plain()) == [("on_epoch_end", "on_epoch_end"), ("on_run_end", "after_run")]


def test_one_name_can_stand_for_several_points():
    class Orca(Callback):
        def before_epoch(self, runner): ...

    assert [point for point, _ in found(Orca())] == ["on_train_epoch_begin", "on_val_epoch_begin", "on_pred_epoch_begin"]


@pytest.mark.parametrize(
    ("first", "second", "point"),
    [
        ("before_epoch", "before_train_epoch", "on_train_epoch_begin"),
        ("after_train_epoch", "after_epoch", "on_train_epoch_end"),
        ("after_val_epoch", "after_epoch", "on_val_epoch_end"),
        ("on_eval_begin", "on_eval_epoch_begin", "on_val_epoch_begin"),
        ("on_eval_epoch_end", "on_eval_end", "on_val_epoch_end"),
        ("_after_run", "_trigger_step", "on_train_iter_end"),
    ],
)
def test_two_methods_of_one_system_at_a_point_are_called_in_table_order(first, second, point):
    seen = []

    def method(name):
        return lambda self: seen.append(name)

    both = type("Both", (Callback,), {second: method(second), first: method(first)})()
    both.run(hookpoint=point)
    assert seen == [first, second]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("on_train_iter_begin", "on_train_batch_begin"),
        ("on_train_batch_begin", "on_batch_begin"),
        ("before_epoch", "_before_epoch"),
        ("before_epoch", "on_train_epoch_begin"),
        ("_trigger_step", "on_train_batch_end"),
    ],
)
def test_other_pairs_of_names_for_one_point_raise(first, second):
    both = type("Both", (Callback,), {first: lambda self: None, second: lambda self: None})()
    with pytest.raises(errors.TwoSpellings) as caught:
        find_handlers(both)
    assert set(caught.value.spellings) == {first, second}


def test_a_mark_does_not_count_as_a_second_spelling():
    class Marked(Callback):
        def on_epoch_end(self): ...

        @on("on_epoch_end")
        def also(self): ...

    assert len(Hooks([Marked()]).calls("on_epoch_end")) == 2


# Misspelled points


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_epoch_ends", "on_epoch_end"),
        ("on_end_epoch", "on_epoch_end"),
        ("on_epoch_start", "on_epoch_begin"),
        ("on_iteration_end", "on_iter_end"),
        ("on_tests_begin", "on_test_begin"),
        ("before_epochs", "before_epoch"),
        ("after_train_epochs", "after_train_epoch"),
    ],
)
def test_a_misspelled_point_raises_with_the_intended_name(name, meant):
    slip = type("Slip", (Callback,), {name: lambda self: None})()
    with pytest.raises(errors.UnknownPoint) as caught:
        Hooks([slip])
    assert caught.value.meant == meant


@pytest.mark.parametrize("name", ["on_epoch_ends", "on_fit_start", "on_batch_end"])
def test_a_name_listed_in_points_is_a_custom_point(name):
    seen = []
    meant = type("Meant", (Callback,), {"points": (name,), name: lambda self: seen.append(name)})()
    assert found(meant) == [(name, name)]
    Hooks([meant]).fire_payload(name, {})
    assert seen == [name]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("on_epoch_ends", "on_epoch_end"),
        ("train_iter_end", "on_train_iter_end"),
        ("run_begin", "on_run_begin"),
        ("on-epoch-end", "on_epoch_end"),
        ("epoch-end", "on_epoch_end"),
        ("onEpochEnd", "on_epoch_end"),
        ("on_epoch_end, on_run_end", "on_epoch_end"),
        ("epoch_begin run_end", "on_epoch_begin"),
    ],
)
def test_a_marked_method_is_checked_by_the_same_rules(name, meant):
    class Slip(Callback):
        @on(name)
        def method(self): ...

    with pytest.raises(errors.UnknownPoint) as caught:
        find_handlers(Slip())
    assert caught.value.meant == meant


@pytest.mark.parametrize("name", ["on_epoch_ends", "on_batch_end", "iter_end"])
def test_a_marked_method_can_handle_a_custom_point(name):
    class Meant(Callback):
        points = (name,)

        @on(name)
        def method(self): ...

    assert found(Meant()) == [(name, name)]


def test_a_function_can_list_its_custom_point_in_points():
    @on("on_epoch_ends")
    def meant(): ...

    meant.points = ("on_epoch_ends",)
    assert found(meant) == [("on_epoch_ends", "on_epoch_ends")]


# Arguments


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (lambda: (), ()),
        (lambda a: a, "A"),
        (lambda b, a: (b, a), ("B", "A")),
        (lambda a, missing=3: (a, missing), ("A", 3)),
        (lambda missing=3, a=None: (missing, a), (3, "A")),
        (lambda *, a, b=0: (a, b), ("A", "B")),
        (lambda missing=3, *, b: (missing, b), (3, "B")),
        (lambda *args, **kwargs: (args, kwargs), ((), {})),
        (lambda a, *args, **kwargs: (a, args, kwargs), ("A", (), {})),
    ],
)
def test_a_handler_gets_exactly_the_arguments_it_names(method, expected):
    (handler,) = find_handlers(LambdaCallback(on_show=method))
    assert handler.call({"a": "A", "b": "B"}) == expected


@pytest.mark.parametrize("name", ["run", "runner", "run_context", "trainer"])
def test_the_run_argument_has_four_names(train, name):
    seen = []
    source = {"on_epoch_end": eval(f"lambda {name}: seen.append({name})", {"seen": seen})}
    run = train([LambdaCallback(**source)])
    assert seen == [run]


def test_arguments_have_the_values_at_the_time_of_the_call(train):
    seen = []

    class Watch(Callback):
        def on_train_iter_begin(self, batch, batch_idx, epoch):
            seen.append((epoch, batch_idx, batch))

        def on_train_iter_end(self, loss, outputs):
            seen.append((outputs, loss))

        def on_epoch_end(self, logs, run):
            seen.append((dict(logs), logs is not run.metrics))

    def body(run):
        run.outputs, run.loss = run.batch * 10, run.batch / 10
        run.log(loss=run.loss)

    train([Watch()], batches=[1, 3], body=body)
    assert seen == [(1, 0, 1), (10, 0.1), (1, 1, 3), (30, 0.3), ({"loss": pytest.approx(0.2)}, True)]


def test_batch_is_the_index_in_a_keras_method(train):
    seen = []

    class Keras(Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(batch)

    train([Keras()], batches=["data", "data"])
    assert seen == [0, 1]


def test_logs_are_the_metrics_of_the_current_epoch(train):
    seen = []
    watch = LambdaCallback(
        on_epoch_begin=lambda logs: seen.append(dict(logs)), on_epoch_end=lambda logs: seen.append(dict(logs))
    )
    train([watch], epochs=2, body=lambda run: run.log("loss", run.epoch))
    assert seen == [{}, {"loss": 1.0}, {}, {"loss": 2.0}]


def test_on_save_gets_the_path_and_on_exception_the_error(train):
    class Store:
        def save(self, state, *, step, tags):
            return f"step-{step}"

    seen = []
    watch = LambdaCallback(on_save=lambda path: seen.append(path), on_exception=lambda error: seen.append(error))
    boom = ValueError("boom")

    def body(run):
        run.save()
        if run.batch == 2:
            raise boom

    with pytest.raises(ValueError, match="boom"):
        train([watch], batches=[1, 2], body=body, store=Store())
    assert seen == ["step-1", boom]


def test_a_misspelled_argument_raises_with_the_intended_name():
    with pytest.raises(errors.UnknownArgument, match=r"takes 'runn', which this point does not provide\. Did you mean 'run'\?"):
        Hooks([LambdaCallback(on_epoch_end=lambda runn: None)])


@pytest.mark.parametrize(
    ("point", "argument", "offered"),
    [
        ("on_epoch_end", "batch", "epoch, logs, run"),
        ("on_batch_fetch_begin", "batch", "batch_idx, epoch, logs, run"),
        ("on_iter_begin", "loss", "batch, batch_idx, epoch, logs, run"),
        ("on_iter_end", "error", "batch, batch_idx, epoch, logs, loss, outputs, run"),
        ("on_exception", "path", "epoch, error, logs, run"),
        ("on_save", "error", "epoch, logs, path, run, tags"),
    ],
)
def test_an_argument_the_point_does_not_provide_raises_at_compile_time(point, argument, offered):
    handler = eval(f"lambda {argument}: None")
    with pytest.raises(errors.UnknownArgument) as caught:
        Hooks([LambdaCallback(**{point: handler})])
    assert str(caught.value) == (
        f"LambdaCallback.{point} takes '{argument}', which this point does not provide.\n"
        f"  provided  {offered}\n"
        f"  default   write '{argument}=None' if another trainer passes it"
    )


def test_a_default_is_used_if_the_point_does_not_provide_the_argument(train):
    seen = []
    train([LambdaCallback(on_epoch_end=lambda weather="fine", run=None: seen.append((weather, run.epoch)))])
    assert seen == [("fine", 1)]


def test_arguments_of_custom_points_are_checked_when_fired():
    hooks = Hooks([LambdaCallback(on_show=lambda colour: None)])
    with pytest.raises(errors.UnknownArgument) as caught:
        hooks.fire_payload("on_show", {"size": 3})
    assert str(caught.value) == (
        "LambdaCallback.on_show takes 'colour', which this point does not provide.\n"
        "  provided  logs, size\n"
        "  default   write 'colour=None' if another trainer passes it"
    )


def test_a_function_without_a_signature_gets_the_run(train):
    with pytest.raises(TypeError, match="'Run' object is not iterable"):
        train([LambdaCallback(on_epoch_end={}.update)])


class Lookalikes(Callback):
    """Base of classes with a method that resembles another system's."""

    def on_epoch_end(self, run): ...


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("_trigger(self, run)", "tensorpack has _trigger(self). Rename it to on_trigger(self, run)"),
        ("step_end(self, run_context, epoch)", "MindSpore has step_end(self, run_context). Rename it to on_"),
        ("begin(self, run)", "MindSpore has begin(self, run_context). Rename it to on_"),
        (
            "_before_run(self, batch)",
            "tensorpack has _before_run(self) and _before_run(self, ctx). Rename it to on_train_",
        ),
        (
            "_after_run(self, _)",
            "tensorpack has _after_run(self) and _after_run(self, ctx, values). Rename it to on_train_",
        ),
    ],
)
def test_a_method_that_only_resembles_another_systems_is_reported(method, said):
    scope = {}
    exec(f"def {method}: ...", scope)
    name = method.partition("(")[0]
    kind = type("Mine", (Lookalikes,), {name: scope[name]})
    with pytest.warns(errors.HookpointWarning, match=re.escape(f"Mine.{method} is never called: {said}")):
        handlers = find_handlers(kind())
    assert [handler.point for handler in handlers] == ["on_epoch_end"]


@pytest.mark.parametrize(
    "method",
    [
        *("_trigger(self, value)", "begin(self)", "step_end(self, run_context)", "_trigger(self)"),
        *("_before_run(self, _)", "_before_run(self, run)", "_after_run(self, context, fetched)"),
    ],
)
def test_unrelated_or_exact_methods_of_other_systems_are_not_reported(method, recwarn):
    scope = {}
    exec(f"def {method}: ...", scope)
    name = method.partition("(")[0]
    find_handlers(type("Mine", (Lookalikes,), {name: scope[name]})())
    assert not recwarn.list


async def _coroutine(self):
    pass


def _generator(self):
    yield


async def _async_generator(self):
    yield


@pytest.mark.parametrize(("function", "word"), [(_coroutine, "async"), (_generator, "yield"), (_async_generator, "async")])
@pytest.mark.parametrize("name", ["on_epoch_end", "on_trigger", "on_train_batch_end"])
def test_a_handler_whose_body_would_never_run_is_rejected(name, function, word):
    idle = type("Idle", (Callback,), {name: function})
    with pytest.raises(errors.CompileError) as caught:
        find_handlers(idle())
    assert str(caught.value) == (
        f"Idle.{name} uses '{word}', so its body would never run.\n  write     def {name}(...) without '{word}'"
    )
