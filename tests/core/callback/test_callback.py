"""Options, set-up, calling points by hand, state and pickling of every callback."""

from __future__ import annotations

import copy
import pickle

import pytest

from hookpoint import Callback, CallbackPipeline, Every, Hooks, LambdaCallback, ProxyCallback, errors, guard, on
from hookpoint.core.loop.loop import Loop


class Counter(Callback):
    """Counts epochs, and keeps the count in the checkpoint."""

    def __init__(self, start=0):
        self.count = start

    def on_epoch_end(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Tensorpack(Callback):
    """Its methods take no arguments and read the run from attributes."""

    def __init__(self):
        self.seen = []

    def _before_epoch(self):
        self.seen.append((self.epoch_num, self.global_step))

    def _before_run(self):
        self.seen.append(self.local_step)

    def _trigger(self):
        self.seen.append(self.trainer.name)


def test_a_callback_works_without_calling_super_init(train):
    counter = Counter()
    train([counter], epochs=3)
    assert counter.count == 3


def test_options_are_class_attributes_or_keywords():
    class Loud(Callback):
        name = "loud"
        on_error = "warn"
        ranks = "chief"

    assert (Loud().name, Loud().on_error, Loud().ranks) == ("loud", "warn", "chief")
    given = Loud(name="quiet", on_error="disable", ranks="all")
    assert (given.name, given.on_error, given.ranks) == ("quiet", "disable", "all")
    assert (Loud.name, Loud.on_error, Loud.ranks) == ("loud", "warn", "chief")


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        Callback("name")


def test_a_loop_sets_callbacks_up_with_the_model_and_the_workdir(train, tmp_path):
    seen = []

    class Watch(Callback):
        def setup(self, component, save_path):
            super().setup(component, save_path)
            seen.append("setup")

        def on_setup(self):
            seen.append("on_setup")

    watch = Watch()
    train([watch], model="the model", workdir=tmp_path)
    assert (watch.component, watch.save_path) == ("the model", tmp_path)
    assert seen == ["setup", "on_setup"]


def test_a_plain_object_with_a_setup_method_is_set_up(train):
    class Plain:
        def setup(self, component, save_path):
            self.component = component

        def on_epoch_end(self): ...

    plain = Plain()
    train([plain], model="the model")
    assert plain.component == "the model"


def test_when_returns_the_callback():
    counter, schedule = Counter(), Every(epochs=2)
    assert counter.when(schedule) is counter
    assert counter.schedule is schedule


# Calling points by hand


def test_run_passes_the_logs_that_the_handler_names():
    seen = []

    class Say(Callback):
        def on_say(self, words, logs):
            seen.append((words, logs))

    Say().run(hookpoint="on_say", logs={"words": 3, "more": 4})
    assert seen == [(3, {"words": 3, "more": 4})]


def test_run_does_nothing_without_a_handler():
    counter = Counter()
    counter.run(hookpoint="on_epoch_begin")
    counter.run("on_anything", {"words": 3})
    assert counter.count == 0


def test_run_finds_a_handler_by_its_point_or_its_own_name():
    seen = []

    class Keras(Callback):
        def on_test_begin(self):
            seen.append(1)

    Keras().run("on_test_begin")
    Keras().run("on_val_epoch_begin")
    assert seen == [1, 1]


def test_run_calls_a_method_that_stands_for_several_points_once():
    seen = []

    class Orca(Callback):
        def before_epoch(self):
            seen.append(1)

    Orca().run("before_epoch")
    assert seen == [1]


def test_run_raises_if_an_argument_of_the_handler_is_missing():
    class Say(Callback):
        def on_say(self, words): ...

    with pytest.raises(errors.UnknownArgument, match=r"Say\.on_say takes 'words'"):
        Say().run("on_say", {})


@pytest.mark.parametrize("hookpoint", [None, 3])
def test_run_raises_if_the_point_is_not_a_name(hookpoint):
    with pytest.raises(TypeError) as caught:
        Callback().run(hookpoint)
    expected = f"run(): hookpoint must be the name of a point, got {hookpoint}."
    assert str(caught.value) == expected + '\n  write     run("on_epoch_end")'


class Overrides(Callback):
    """Receives every point through run()."""

    def __init__(self):
        self.seen = []

    def run(self, hookpoint=None, logs=None):
        self.seen.append((hookpoint, dict(logs)))


def test_an_overridden_run_receives_every_point(train):
    every = Overrides()
    train([every], batches=["data"], body=lambda run: run.log(loss=1))
    points = [point for point, _ in every.seen]
    assert points == [
        "on_setup",
        "on_run_begin",
        "on_epoch_begin",
        "on_train_epoch_begin",
        "on_batch_fetch_begin",
        "on_batch_fetch_end",
        "on_iter_begin",
        "on_train_iter_begin",
        "on_train_iter_end",
        "on_iter_end",
        "on_batch_fetch_begin",
        "on_batch_fetch_end",
        "on_train_epoch_end",
        "on_epoch_end",
        "on_run_end",
    ]


def test_an_overridden_run_receives_the_arguments_of_the_point(train):
    every = Overrides()
    run = train([every], batches=["data"], body=lambda run: run.log(loss=1))
    offered = dict(every.seen)
    assert set(offered["on_epoch_end"]) == {"run", "epoch", "logs"}
    assert offered["on_epoch_end"]["run"] is run
    assert set(offered["on_iter_begin"]) == {"run", "epoch", "logs", "batch", "batch_idx"}
    assert offered["on_iter_begin"]["batch"] == "data"


def test_an_overridden_run_can_call_the_handlers_through_super(train):
    class Timed(Callback):
        def __init__(self):
            self.seen = []

        def run(self, hookpoint=None, logs=None):
            self.seen.append(hookpoint)
            super().run(hookpoint, logs)

        def on_epoch_end(self, epoch):
            self.seen.append(f"epoch {epoch}")

    timed = Timed()
    train([timed])
    assert timed.seen[-3:] == ["on_epoch_end", "epoch 1", "on_run_end"]


class Passes(Callback):
    """Passes every point on to its handlers."""

    def __init__(self):
        self.seen = []

    def run(self, hookpoint=None, logs=None):
        super().run(hookpoint, logs)

    def on_trigger(self, run):
        self.seen.append(run.step)


class OwnRun(CallbackPipeline):
    def run(self, hookpoint=None, logs=None):
        super().run(hookpoint, logs)


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: OwnRun([one, Passes()]), ProxyCallback])
def test_on_trigger_is_called_through_an_overridden_run(train, wrap):
    passes, rare = Passes(), Passes().when(Every(steps=2))
    train([wrap(passes), wrap(rare)], batches=range(5))
    assert (passes.seen, rare.seen) == ([5], [2, 4])


class Scheduled(Callback):
    @on("on_iter_end", when=Every(steps=2))
    def rarely(self): ...


class RunsScheduled(Scheduled):
    run = Passes.run


@pytest.mark.parametrize(
    ("callback", "handler", "runs"),
    [
        (RunsScheduled(), "RunsScheduled.on_iter_end", "RunsScheduled"),
        (OwnRun([Scheduled()]), "Scheduled.on_iter_end", "OwnRun"),
        (OwnRun([on("on_iter_end", when=Every(steps=2))(lambda: None)]), "<lambda>.on_iter_end", "OwnRun"),
    ],
)
def test_a_schedule_that_an_overridden_run_would_ignore_raises(callback, handler, runs):
    with pytest.raises(errors.CompileError) as caught:
        Hooks([callback])
    assert str(caught.value) == (
        f"{handler} is called through {runs}.run(), which ignores its schedule Every(steps=2).\n"
        "  define    on_trigger, and call .when(...) on the callback"
    )


def test_methods_of_a_callback_that_overrides_run_are_not_checked():
    class Own(Callback):
        def run(self, hookpoint=None, logs=None): ...
        def on_epoch_ends(self): ...
        def on_epoch_end(self, whatever): ...
        def on_trigger(self, whatever): ...

    class Helper(Own):
        on_trigger = Callback.on_trigger

        def _trigger(self, run): ...  # not tensorpack's, which has no parameters

    assert Hooks([Own()]).calls("on_trigger")
    assert not Hooks([Helper()]).calls("on_trigger")


def test_an_overridden_run_receives_guarded_and_fired_points(train):
    @guard("on_parse")
    def parse(text, *, callbacks=None):
        return text.split()

    every = Overrides()
    parse("a b", callbacks=every)
    (begin, at_begin), (end, at_end) = every.seen
    assert (begin, end) == ("on_parse_begin", "on_parse_end")
    assert at_begin["text"] == "a b"
    assert at_end["result"] == ["a", "b"]
    every = Overrides()
    train([every], body=lambda run: run.fire("on_hello", words=3))
    assert dict(every.seen)["on_hello"]["words"] == 3


# State and pickling


def test_the_default_state_is_empty():
    callback = Callback()
    assert callback.state_dict() == {}
    assert callback.load_state_dict({}) is None


def test_pickling_keeps_the_attributes_of_a_callback(train):
    counter = Counter(start=5)
    train([counter], epochs=2)
    assert pickle.loads(pickle.dumps(counter)).count == 7


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_does_not_share_compiled_handlers_with_the_original(copied):
    @guard("on_copy")
    def nothing(*, callbacks=None): ...

    counter = Counter()
    nothing(callbacks=counter)
    counter.run("on_epoch_end")
    other = copied(counter)
    assert vars(other) == {"count": 1}
    other.run("on_epoch_end")
    assert (counter.count, other.count) == (1, 2)


def test_a_callback_can_be_pickled_during_a_run():
    callback = Tensorpack()
    with Loop([callback]) as run:
        for _ in run.epochs(1):
            pass
        assert callback.trainer is run
        other = pickle.loads(pickle.dumps(callback))
    assert other.seen == ["run"]
    with pytest.raises(errors.OutsideRun):
        _ = other.trainer


# Attributes for tensorpack methods


def test_methods_without_arguments_read_the_run_from_attributes(train):
    callback = Tensorpack()
    train([callback], epochs=2, batches=[1, 2], name="mine")
    assert callback.seen == [(1, 0), 0, 1, "mine", (2, 2), 0, 1, "mine"]


@pytest.mark.parametrize("attribute", ["trainer", "epoch_num", "global_step", "local_step"])
def test_run_attributes_raise_outside_a_run(train, attribute):
    callback = Tensorpack()
    train([callback])
    with pytest.raises(errors.OutsideRun) as caught:
        getattr(callback, attribute)
    assert str(caught.value) == f"Tensorpack.{attribute} exists only during a run"


def test_a_plain_object_with_tensorpack_methods_gets_no_attributes(train):
    class Plain:
        calls = 0

        def _before_epoch(self):
            self.calls += 1

    plain = Plain()
    train([plain], epochs=2)
    assert vars(plain) == {"calls": 2}


def test_an_attribute_set_on_the_callback_takes_precedence():
    callback = Tensorpack()
    callback.epoch_num = 7
    assert callback.epoch_num == 7


def test_two_runs_do_not_share_compiled_entries():
    counter = Counter()
    first, second = Hooks([counter]), Hooks([counter])
    assert first.entries[0] is not second.entries[0]
    assert first.entries[0].name == second.entries[0].name == "Counter"


def test_an_unknown_option_raises_with_its_name():
    class Saver(Callback):
        def __init__(self, every, **options):
            super().__init__(**options)

    with pytest.raises(TypeError) as caught:
        Saver(3, verbose=1, name="mine")
    assert str(caught.value) == "Saver has no argument verbose=.\n  see       help(Saver)"
    with pytest.raises(TypeError) as caught:
        Saver(evry=3, on_eror="warn", every=1)
    meant = "Did you mean every, on_error?"
    assert str(caught.value) == f"Saver has no argument evry=, on_eror=. {meant}\n  see       help(Saver)"


def test_logs_are_read_only():
    class Adds(Callback):
        def on_epoch_end(self, logs):
            logs["score"] = 1.0

    with pytest.raises(TypeError, match="logs is read-only") as caught, Loop([Adds()]) as run:
        for _ in run.epochs(1):
            pass
    assert str(caught.value) == "logs is read-only.\n  log       run.log('score', value), which every monitor receives"


def test_on_run_end_sees_the_stop_reason():
    reasons = []

    class Look(Callback):
        def on_run_end(self, run):
            reasons.append(run.stop_reason)

    for asks in (False, True):
        with Loop([Look()]) as run:
            if asks:
                run.stop("enough")
    assert reasons == [None, "enough"]


@pytest.mark.parametrize("schedule", [5, "steps", lambda run: run.epoch > 3, Every])
@pytest.mark.parametrize(
    "use",
    [lambda schedule: LambdaCallback(on_trigger=print).when(schedule), lambda schedule: on("on_epoch_end", when=schedule)],
)
def test_a_schedule_that_is_not_a_schedule_object_raises(use, schedule):
    with pytest.raises(errors.BadSchedule, match=r"is not a schedule\.\n.*or If\(function\)"):
        use(schedule)


@pytest.mark.parametrize("point", ["on_setup", "on_run_begin", "on_epoch_end"])
def test_a_schedule_that_is_set_during_a_run_warns(train, point):
    class Late(Callback):
        def on_trigger(self): ...

    late = Late()
    setting = LambdaCallback(**{point: lambda: late.when(Every(steps=2))})
    with pytest.warns(errors.HookpointWarning, match=r"^Late.when\(Every\(steps=2\)\) has no effect in this run"):
        train([late, setting])
    train([late])  # from the next run on, the schedule applies
