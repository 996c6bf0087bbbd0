from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import math
import operator
import pickle
import types
import weakref

import pytest

from hookpoint import (
    Callback,
    CallbackPipeline,
    Every,
    Hooks,
    If,
    LambdaCallback,
    Replace,
    StopRun,
    guard,
    guarding,
    install,
    on,
)
from hookpoint.core.errors import BadGuard, HookpointWarning, OutsideRun, UnknownArgument, UnknownPoint
from hookpoint.core.guard.guard import compiled
from hookpoint.core.loop.loop import Loop


class Trace(Callback):
    """Record the points around the guarded call, with the result or the error."""

    def __init__(self):
        self.seen = []

    def on_work_begin(self):
        self.seen.append("begin")

    def on_work_end(self, result):
        self.seen.append(("end", result))

    def on_work_error(self, error):
        self.seen.append(("error", error))


async def all_of(stream):
    return [item async for item in stream]


# Every kind of function


@guard("on_work")
def function(x, *, callbacks=None):
    return 10 // x


@guard("on_work")
async def coroutine(x, *, callbacks=None):
    await asyncio.sleep(0)
    return 10 // x


@guard("on_work")
def generator(x, *, callbacks=None):
    yield 1
    return 10 // x


@guard("on_work")
async def async_generator(x, *, callbacks=None):
    yield 10 // x


class Worker:
    @guard("on_work")
    def method(self, x, *, callbacks=None):
        return 10 // x

    @classmethod
    @guard("on_work")
    def class_method(cls, x, *, callbacks=None):
        return 10 // x

    @staticmethod
    @guard("on_work")
    def static_method(x, *, callbacks=None):
        return 10 // x


@pytest.mark.parametrize("decorated", [guard, guard("on_kept")])
def test_a_guard_can_decorate_a_classmethod_or_staticmethod(decorated):
    class Kinds:
        @decorated
        @classmethod
        def kept(cls, x, callbacks=None):
            return cls.__name__, x

    class Static:
        @decorated
        @staticmethod
        def kept(x, callbacks=None):
            return x

    seen = []
    callback = LambdaCallback(on_kept_end=lambda x: seen.append(x))
    assert (Kinds.kept(1, callback), Kinds().kept(2, callback)) == (("Kinds", 1), ("Kinds", 2))
    assert (Static.kept(3, callback), Static().kept(4, callback)) == (3, 4)
    assert seen == [1, 2, 3, 4]


def drained(stream):
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return end.value


WAYS = {
    "function": function,
    "method": Worker().method,
    "class method": Worker.class_method,
    "static method": Worker.static_method,
    "coroutine": lambda x, callbacks: asyncio.run(coroutine(x, callbacks=callbacks)),
    "generator": lambda x, callbacks: drained(generator(x, callbacks=callbacks)),
    "async generator": lambda x, callbacks: asyncio.run(all_of(async_generator(x, callbacks=callbacks))),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_fires_begin_and_end_once(way):
    trace = Trace()
    result = WAYS[way](2, callbacks=trace)
    assert result == ([5] if way == "async generator" else 5)
    assert trace.seen == ["begin", ("end", None if way == "async generator" else 5)]


@pytest.mark.parametrize("way", WAYS)
def test_an_error_fires_begin_and_error_and_propagates_unchanged(way):
    trace = Trace()
    with pytest.raises(ZeroDivisionError) as caught:
        WAYS[way](0, callbacks=trace)
    assert trace.seen == ["begin", ("error", caught.value)]
    assert trace.seen[1][1] is caught.value
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("way", WAYS)
def test_without_callbacks_the_call_is_unchanged(way):
    assert WAYS[way](2, callbacks=None) == ([5] if way == "async generator" else 5)
    with pytest.raises(ZeroDivisionError):
        WAYS[way](0, callbacks=None)


@pytest.mark.parametrize(
    "name", ["function", "method", "class_method", "static_method", "coroutine", "generator", "async_generator"]
)
def test_the_signature_and_the_kind_of_the_function_are_kept(name):
    guarded = globals().get(name) or getattr(Worker, name)
    original = guarded.__wrapped__
    assert list(inspect.signature(guarded).parameters)[-2:] == ["x", "callbacks"]
    assert guarded.__name__ == original.__name__ == name
    for is_kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        assert is_kind(guarded) == is_kind(original)


def test_names_doc_and_annotations_are_kept():
    def tokenize(text: str, *, callbacks: object = None) -> list[str]:
        """Split."""
        return text.split()

    guarded = guard("on_tokenize")(tokenize)
    assert guarded.__doc__ == "Split."
    assert guarded.__wrapped__ is tokenize
    assert inspect.signature(guarded) == inspect.signature(tokenize)


# How callbacks are given


@pytest.mark.parametrize(
    "given",
    [lambda one: one, lambda one: [one], lambda one: (one,), lambda one: CallbackPipeline([one]), lambda one: Hooks([one])],
    ids=["one", "list", "tuple", "pipeline", "hooks"],
)
def test_callbacks_can_be_one_callback_a_sequence_a_pipeline_or_hooks(given):
    trace = Trace()
    for _ in range(2):
        function(2, callbacks=given(trace))
    assert trace.seen == ["begin", ("end", 5)] * 2


@guard("on_work")
def positional(x, callbacks=None, y=1):
    return x + y


@guard("on_work")
def positional_only(callbacks, x, /):
    return x


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda trace: positional(1, trace), 2),
        (lambda trace: positional(1, trace, 5), 6),
        (lambda trace: positional(1, callbacks=trace), 2),
        (lambda trace: positional(callbacks=trace, x=1), 2),
        (lambda trace: positional_only(trace, 3), 3),
    ],
)
def test_callbacks_are_found_by_position_and_by_keyword(call, result):
    trace = Trace()
    assert call(trace) == result
    assert trace.seen == ["begin", ("end", result)]


def test_default_callbacks_are_used_when_none_are_given():
    trace = Trace()

    @guard("on_work")
    def work(x, callbacks=trace):
        return x

    work(1)
    work(2, None)
    assert trace.seen == ["begin", ("end", 1)]


def test_the_point_is_named_after_the_function_by_default():
    seen = []

    @guard
    def split_words(text, *, callbacks=None):
        return text.split()

    @guard()
    def join_words(words, *, callbacks=None):
        return " ".join(words)

    def look(result):
        seen.append(result)

    see = LambdaCallback(on_split_words_end=look, on_join_words_end=look)
    join_words(split_words("a b", callbacks=see), callbacks=see)
    assert seen == [["a", "b"], "a b"]


def test_handlers_get_the_parameters_of_the_function_with_defaults():
    seen = {}

    @guard("on_work")
    def work(a, b=2, *rest, c=3, callbacks=None, **more):
        return a

    class See(Callback):
        def on_work_begin(self, a, b, rest, c, more, args, run):
            seen.update(a=a, b=b, rest=rest, c=c, args=args, run=run)

        def on_work_end(self, kwargs, result, unknown="default"):
            seen.update(kwargs=kwargs, result=result, unknown=unknown)

    see = See()
    work(1, callbacks=see, d=4)
    assert seen == {
        "a": 1,
        "b": 2,
        "rest": (),
        "c": 3,
        "args": (1,),
        "run": None,
        "kwargs": {"callbacks": see, "d": 4},
        "result": 1,
        "unknown": "default",
    }


def test_reserved_names_take_precedence_over_parameters():
    seen = []

    @guard("on_work")
    def work(args, result, callbacks=None):
        return "the result"

    work(1, 2, LambdaCallback(on_work_end=lambda args, result: seen.append((args[:2], result))))
    assert seen == [((1, 2), "the result")]


def test_an_unknown_argument_raises_at_the_first_call():
    with pytest.raises(UnknownArgument, match=r"LambdaCallback\.on_work_begin takes 'colour'.*\n  provided .*\bx\b"):
        function(1, callbacks=LambdaCallback(on_work_begin=lambda colour: None))


def test_handlers_get_the_current_run():
    seen = []
    with Loop() as run:
        function(1, callbacks=LambdaCallback(on_work_begin=lambda run: seen.append(run)))
    assert seen == [run]


def test_a_scheduled_handler_follows_the_clocks_of_the_run_and_needs_one():
    seen = []

    @on("on_work_end", when=Every(steps=2))
    def look(x):
        seen.append(x)

    with Loop() as run:
        for batch in run.batches([1, 2, 3, 4, 5]):
            function(batch, callbacks=look)
    assert seen == [3, 5]  # at these batches, two and four steps are done
    with pytest.raises(
        OutsideRun, match=r"look\.on_work_end has a schedule, which needs the clocks of a run; no run is active"
    ):
        function(1, callbacks=look)


class Rarely(Callback):
    """Listens at every second step."""

    def __init__(self):
        self.steps = []

    @on("on_work_end", when=Every(steps=2))
    def rarely(self, run):
        self.steps.append(run.step)


def work_in_a_run(callback, batches=range(1, 6), first=0, body=lambda: None):
    with Loop() as run:
        run.set_step(first)
        for batch in run.batches(batches):
            function(batch, callbacks=callback)
            body()


def test_each_run_restarts_the_schedules_of_its_guards():
    rarely = Rarely()
    for first in (0, 0, 11):
        work_in_a_run(rarely, first=first)
    assert rarely.steps == [2, 4, 2, 4, 12, 14]


def test_a_nested_run_has_its_own_schedules():
    rarely = Rarely()
    work_in_a_run(rarely, body=lambda: work_in_a_run(rarely, batches=range(1, 3)))
    assert rarely.steps == [2, 4]


def test_a_run_does_not_keep_the_callbacks_of_its_guards():
    callbacks = []

    def work_once():
        function(1, callbacks=(rarely := Rarely()))
        callbacks.append(weakref.ref(rarely))

    with Loop() as run:
        for _ in run.batches(range(3)):
            work_once()
        gc.collect()
        assert [callback() for callback in callbacks] == [None, None, None]


def test_a_condition_reads_the_run_that_the_caller_passes():
    seen = []

    @on("on_race_end", when=If(lambda run: run == "marathon"))
    def look(run):
        seen.append(run)

    for kind in ("marathon", "sprint"):
        with guarding("on_race", look, run=kind):
            pass
    assert seen == ["marathon"]


# Results and failures


def test_only_replace_changes_the_result():
    assert function(2, callbacks=LambdaCallback(on_work_end=lambda: 99)) == 5
    assert function(2, callbacks=LambdaCallback(on_work_end=lambda: Replace(99))) == 99
    assert function(2, callbacks=LambdaCallback(on_work_end=lambda: Replace(None))) is None


def test_each_handler_sees_the_result_of_the_previous_handler():
    add = LambdaCallback(on_work_end=lambda result: Replace(result + 1))
    double = LambdaCallback(on_work_end=lambda result: Replace(result * 2))
    look = Trace()
    assert function(2, callbacks=[add, double, look]) == 12
    assert look.seen == ["begin", ("end", 12)]


@pytest.mark.parametrize("way", ["coroutine", "generator"])
def test_results_of_coroutines_and_generators_can_be_replaced(way):
    assert WAYS[way](2, callbacks=LambdaCallback(on_work_end=lambda result: Replace(result + 1))) == 6


def test_a_replacement_at_begin_or_error_is_ignored():
    replace = LambdaCallback(on_work_begin=lambda: Replace(1), on_work_error=lambda: Replace(1))
    assert function(2, callbacks=replace) == 5
    with pytest.raises(ZeroDivisionError):
        function(0, callbacks=replace)

    class Mine(Callback):
        def on_work_begin(self):
            return Replace(1)

    with pytest.warns(
        HookpointWarning, match="on_work_begin returned a value of type Replace, which is ignored: return Replace"
    ):
        assert function(2, callbacks=Mine()) == 5


def test_a_failing_error_handler_is_logged_and_the_others_are_called(caplog):
    def fail():
        raise ValueError("second")

    trace = Trace()
    with caplog.at_level(logging.ERROR, "hookpoint"), pytest.raises(ZeroDivisionError) as raised:
        function(0, callbacks=[LambdaCallback(on_work_error=fail), trace])
    (record,) = caplog.records
    assert record.getMessage() == "a handler of on_work_error failed"
    assert str(record.exc_info[1]) == "second"
    assert trace.seen == ["begin", ("error", raised.value)]


@pytest.mark.parametrize("point", ["on_work_begin", "on_work_end"])
def test_a_failing_handler_fails_the_call_without_firing_the_error_point(point):
    def fail():
        raise ValueError("no")

    trace = Trace()
    with pytest.raises(ValueError, match="no") as caught:
        function(2, callbacks=[trace, LambdaCallback(name="bad", **{point: fail})])
    assert caught.value.__notes__ == [f"in callback bad at {point}"]
    assert trace.seen == (["begin"] if point == "on_work_begin" else ["begin", ("end", 5)])


def test_a_callback_with_on_error_warn_never_fails_the_call(caplog):
    def fail():
        raise ValueError("no")

    assert function(2, callbacks=LambdaCallback(name="bad", on_error="warn", on_work_end=fail)) == 5
    assert "bad failed at on_work_end: ValueError: no; the run continues" in caplog.messages


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopRun, asyncio.CancelledError])
def test_interrupts_stops_and_cancellations_fire_the_error_point(error):
    @guard("on_work")
    def work(callbacks=None):
        raise error

    trace = Trace()
    with pytest.raises(error) as caught:
        work(trace)
    assert trace.seen == ["begin", ("error", caught.value)]


def test_recursion_fires_once_per_call():
    @guard("on_work")
    def factorial(n, callbacks=None):
        return 1 if n == 0 else n * factorial(n - 1, callbacks)

    trace = Trace()
    assert factorial(3, trace) == math.factorial(3)
    assert trace.seen == ["begin"] * 4 + [("end", n) for n in (1, 1, 2, 6)]


def test_wrong_arguments_fail_before_anything_fires():
    trace = Trace()
    with pytest.raises(TypeError, match="x"):
        function(callbacks=trace)
    assert trace.seen == []


# Generators


def test_a_generator_fires_when_it_starts_not_when_it_is_created():
    trace = Trace()
    stream = generator(2, callbacks=trace)
    assert trace.seen == []
    next(stream)
    assert trace.seen == ["begin"]
    stream.close()


def test_an_abandoned_generator_fires_its_end():
    trace = Trace()
    for _ in generator(2, callbacks=trace):
        break
    assert trace.seen == ["begin", ("end", None)]


def test_an_abandoned_async_generator_fires_its_end_and_is_closed():
    trace, closed = Trace(), []

    @guard("on_work")
    async def stream(callbacks=None):
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def take_one():
        items = stream(trace)
        await anext(items)
        await items.aclose()

    asyncio.run(take_one())
    assert trace.seen == ["begin", ("end", None)]
    assert closed == [True]


@pytest.mark.parametrize("callbacks", [None, Trace()], ids=["bare", "guarded"])
def test_generators_still_receive_sent_values_and_thrown_errors(callbacks):
    @guard("on_work")
    def echo(callbacks=None):
        got = "nothing"
        while True:
            try:
                got = yield got
            except ValueError as error:
                got = str(error)

    stream = echo(callbacks)
    assert next(stream) == "nothing"
    assert stream.send("hello") == "hello"
    assert stream.throw(ValueError("thrown")) == "thrown"
    stream.close()


@pytest.mark.parametrize("callbacks", [None, Trace()], ids=["bare", "guarded"])
def test_async_generators_still_receive_sent_values_and_thrown_errors(callbacks):
    @guard("on_work")
    async def echo(callbacks=None):
        got = "nothing"
        while got != "enough":
            try:
                got = yield got
            except ValueError as error:
                got = str(error)

    async def talk():
        stream = echo(callbacks)
        said = [await anext(stream), await stream.asend("hello"), await stream.athrow(ValueError("thrown"))]
        with pytest.raises(StopAsyncIteration):
            await stream.athrow(ValueError("enough"))
        return said

    assert asyncio.run(talk()) == ["nothing", "hello", "thrown"]


def test_an_uncaught_error_thrown_into_an_async_generator_fires_error():
    trace = Trace()

    async def throw():
        stream = async_generator(2, callbacks=trace)
        await anext(stream)
        await stream.athrow(ValueError("thrown"))

    with pytest.raises(ValueError, match="thrown") as caught:
        asyncio.run(throw())
    assert trace.seen == ["begin", ("error", caught.value)]


# Guarded points are declared, so that their names are not taken for misspellings


def with_guard():
    @guard("on_epochx")
    def work(callbacks=None): ...


def with_guarding():
    with guarding("on_epochx"):
        pass


def with_install():
    install(types.SimpleNamespace(work=print), "work", "on_epochx", [])()


@pytest.mark.parametrize("declare_it", [with_guard, with_guarding, with_install])
def test_a_guarded_point_is_not_reported_as_misspelled(declare_it, monkeypatch):
    monkeypatch.setattr("hookpoint.core.points._declared", set())
    handlers = {f"on_epochx_{edge}": lambda: None for edge in ("begin", "end")}
    with pytest.raises(UnknownPoint, match=r"on_epochx_begin is not a point. Did you mean on_epoch_begin"):
        Hooks([LambdaCallback(**handlers)])
    declare_it()
    Hooks([LambdaCallback(**handlers)])


# Invalid guards


def test_a_function_without_a_callbacks_parameter_raises():
    def tokenize(text):
        return text.split()

    with pytest.raises(BadGuard) as caught:
        guard("on_tokenize")(tokenize)
    assert str(caught.value) == (
        f"{tokenize.__qualname__} has no parameter 'callbacks'.\n"
        "  add       def tokenize(..., *, callbacks=None)\n"
        "  hook      code that you do not own with hookpoint.install(obj, method, point, callbacks)"
    )
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("guarded", [guard("fit"), guard(hookpoint="fit"), guard(hookpoint="on_fit")])
def test_a_point_name_without_on_gets_the_prefix(guarded):
    @guarded
    def function(callbacks=None):
        seen.append("fit")

    seen = []
    function(LambdaCallback(on_fit_begin=lambda: seen.append("begin"), on_fit_end=lambda: seen.append("end")))
    assert seen == ["begin", "fit", "end"]


@pytest.mark.parametrize("name", ["on-work", "on_work begin", ""])
@pytest.mark.parametrize("use", [guard, lambda name: guarding(name).__enter__(), lambda name: install([], "append", name, [])])
def test_an_invalid_point_name_raises(use, name):
    with pytest.raises(BadGuard) as caught:
        use(name)
    assert str(caught.value) == f'{name!r} is not a valid point name.\n  write     a name such as "on_tokenize"'


# Blocks


def test_a_block_fires_begin_and_end_with_its_payload_and_result():
    seen = []
    see = LambdaCallback(
        on_read_begin=lambda path: seen.append(path), on_read_end=lambda path, result: seen.append((path, result))
    )
    with guarding("on_read", see, path="x.csv") as block:
        seen.append("reading")
        block.result = 3
    assert seen == ["x.csv", "reading", ("x.csv", 3)]


def test_the_result_of_a_block_can_be_replaced():
    with guarding("on_work", LambdaCallback(on_work_end=lambda result: Replace(result + 1))) as block:
        block.result = 1
    assert block.result == 2


def test_a_block_that_fails_fires_its_error():
    trace = Trace()
    with pytest.raises(ValueError, match="no") as caught, guarding("on_work", trace):
        raise ValueError("no")
    assert trace.seen == ["begin", ("error", caught.value)]


def test_a_block_without_callbacks_just_runs():
    with guarding("on_work") as block:
        block.result = 1
    assert block.result == 1


def test_a_block_in_an_abandoned_generator_fires_its_end():
    trace = Trace()

    def stream():
        with guarding("on_work", trace):
            yield 1
            yield 2

    for _ in stream():
        break
    assert trace.seen == ["begin", ("end", None)]


# Code you do not own


class Reader:
    def read(self, n=1):
        return f"read {n}"

    @staticmethod
    def parse(text):
        return f"parsed {text}"

    @classmethod
    def make(cls):
        return cls.__name__


class LoudReader(Reader):
    pass


def on_class(name):
    return Reader, lambda: getattr(Reader(), name)


def on_instance(name):
    reader = Reader()
    return reader, lambda: getattr(reader, name)


def on_module(name):
    module = types.ModuleType("reading")
    setattr(module, name, getattr(Reader(), name))
    return module, lambda: getattr(module, name)


TARGETS = [on_class, on_instance, on_module]
CALLS = {"read": ((2,), "read 2"), "parse": (("a",), "parsed a"), "make": ((), "Reader")}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CALLS)
def test_an_installed_method_fires_points_until_it_is_undone(target, name):
    obj, get = target(name)
    args, result = CALLS[name]
    trace = Trace()
    before = dict(vars(obj))
    undo = install(obj, name, "on_work", trace)
    assert get()(*args) == result
    assert trace.seen == ["begin", ("end", result)]
    undo()
    undo()
    assert get()(*args) == result
    assert len(trace.seen) == 2
    assert dict(vars(obj)) == before


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_installations_are_undone_in_any_order(target, order):
    obj, get = target("read")
    before = vars(obj).get("read")
    traces = [Trace(), Trace(), Trace()]
    undos = [install(obj, "read", "on_work", trace) for trace in traces]
    for count, number in enumerate(order, start=1):
        undos[number]()
        for trace in traces:
            trace.seen.clear()
        assert get()() == "read 1"
        assert [bool(trace.seen) for trace in traces] == [one not in order[:count] for one in range(3)]
    if before is not None:
        obj.read = before


def test_installing_on_a_subclass_does_not_change_its_base():
    trace = Trace()
    undo = install(LoudReader, "make", "on_work", trace)
    assert (Reader.make(), LoudReader.make()) == ("Reader", "LoudReader")
    assert trace.seen == ["begin", ("end", "LoudReader")]
    undo()
    assert "make" not in vars(LoudReader)


def test_handlers_of_an_installed_point_see_the_arguments_and_the_instance():
    seen = []
    reader = Reader()
    undo = install(Reader, "read", "on_read", LambdaCallback(on_read_begin=lambda self, n: seen.append((self, n))))
    reader.read(n=4)
    undo()
    assert seen == [(reader, 4)]


def test_an_installed_point_can_replace_the_result_and_errors_propagate():
    reader = Reader()
    undo = install(reader, "read", "on_work", LambdaCallback(on_work_end=lambda result: Replace(result.upper())))
    assert reader.read() == "READ 1"
    undo()
    trace = Trace()
    install(reader, "read", "on_work", trace)
    with pytest.raises(TypeError) as caught:
        reader.read("1", 2)
    assert trace.seen == []
    reader.parse = operator.itemgetter("missing")
    install(reader, "parse", "on_work", trace)
    with pytest.raises(KeyError) as caught:
        reader.parse({})
    assert trace.seen == ["begin", ("error", caught.value)]


def test_a_c_function_without_a_signature_provides_args_and_kwargs():
    seen = []
    holder = types.SimpleNamespace(number=int)
    install(
        holder,
        "number",
        "on_work",
        LambdaCallback(on_work_end=lambda args, kwargs, result: seen.append((args, kwargs, result))),
    )
    assert holder.number("12", base=3) == 5
    assert seen == [(("12",), {"base": 3}, 5)]


def test_installing_on_an_object_with_slots_raises_but_its_class_works():
    class Tight:
        __slots__ = ()

        def read(self):
            return 1

        def __repr__(self):
            return "Tight()"

    with pytest.raises(BadGuard) as caught:
        install(Tight(), "read", "on_work", Trace())
    assert str(caught.value) == "Tight(): 'read' cannot be replaced.\n  install   the points on its class instead"
    trace = Trace()
    install(Tight, "read", "on_work", trace)
    Tight().read()
    assert trace.seen == ["begin", ("end", 1)]


@pytest.mark.parametrize("name", ["missing", "size"])
def test_installing_on_a_missing_or_plain_attribute_raises(name):
    module = types.ModuleType("reading")
    module.size = 3
    with pytest.raises(BadGuard, match=rf"has no method '{name}'\.\n  name      an existing method or function"):
        install(module, name, "on_work", Trace())


# Callbacks are compiled once, and the compiled hooks live no longer than the callbacks


class Plain:
    def on_hello(self): ...


class Slotted:
    __slots__ = ()

    def on_hello(self): ...


@on("on_hello")
def marked(): ...


def names(hooks):
    return [entry.name for entry in hooks.entries]


def test_compiled_hooks_and_objects_that_store_them_can_be_pickled():
    plain = Plain()
    compiled([plain])
    copy = pickle.loads(pickle.dumps(plain))
    assert names(compiled([copy])) == names(pickle.loads(pickle.dumps(compiled([plain])))) == ["Plain"]


def test_compiled_returns_hooks_unchanged():
    hooks = Hooks([Callback()])
    assert compiled(hooks) is hooks


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Callback(), ["Callback"]),
        ([Callback(), Plain()], ["Callback", "Plain"]),
        ((Plain(),), ["Plain"]),
        (Plain(), ["Plain"]),
        (marked, ["marked"]),
        (Slotted(), ["Slotted"]),
        (CallbackPipeline([Callback(), Callback()]), ["Callback", "Callback#2"]),
        ([], []),
        (CallbackPipeline(), []),
    ],
)
def test_compiled_accepts_a_callback_a_sequence_or_a_pipeline(given, expected):
    assert names(compiled(given)) == expected


@pytest.mark.parametrize("given", [Callback(), Plain(), marked, CallbackPipeline([Callback()])])
def test_compiled_hooks_are_cached(given):
    assert compiled(given) is compiled(given)
    assert compiled([given]) is compiled((given,)) is compiled(given)


def test_an_iterable_callback_is_compiled_as_one_callback():
    class Notes(Callback):
        def __iter__(self):
            raise AssertionError("nobody is to look inside")

        def on_epoch_end(self): ...

    assert names(compiled(Notes())) == ["Notes"]


def test_lists_of_the_same_callbacks_share_their_hooks():
    first, second = Callback(), Callback()
    assert compiled([first, second]) is compiled([first, second])
    assert compiled([first, second]) is not compiled([second, first])
    assert compiled([first]) is not compiled([first, second])


def test_a_list_that_has_grown_is_compiled_again():
    given = [Callback()]
    assert names(compiled(given)) == ["Callback"]
    given.append(Plain())
    assert names(compiled(given)) == ["Callback", "Plain"]


def test_the_cache_of_combinations_is_bounded():
    first = LambdaCallback()
    weakly = [weakref.ref(compiled([first, Callback()])) for _ in range(100)]
    gc.collect()
    assert sum(one() is not None for one in weakly) < 20


def test_compiled_hooks_are_freed_with_their_callbacks():
    callback = Callback()
    hooks = weakref.ref(compiled([callback]))
    del callback
    gc.collect()
    assert hooks() is None


def test_a_misspelled_point_raises_every_time():
    slip = LambdaCallback(on_epoch_ends=lambda: None)
    for _ in range(2):
        with pytest.raises(UnknownPoint):
            compiled(slip)
