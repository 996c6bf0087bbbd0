"""Every error says who, what, what was expected and what to write instead; messages are compared in full."""

from __future__ import annotations

import inspect
import pickle

import pytest

from hookpoint import (
    Callback,
    CallbackPipeline,
    Every,
    HookpointError,
    HookpointWarning,
    Hooks,
    LambdaCallback,
    MainCallback,
    StopRun,
    errors,
    on,
)
from hookpoint.core.errors import MissingMetric, NotACallback, UnknownPoint, listed, text

CLASSES = [one for one in vars(errors).values() if inspect.isclass(one) and one.__module__ == errors.__name__]
ERRORS = [one for one in CLASSES if issubclass(one, HookpointError) and one is not HookpointError]


class EmaWeights(Callback):
    def on_epoch_ends(self, run): ...


class Lightning(Callback):
    def on_train_batch_start(self, run): ...


class MmEngine(Callback):
    def before_train(self, runner): ...


class Greedy(Callback):
    def on_epoch_end(self, run, weather): ...


class Twice(Callback):
    def on_epoch_end(self, run): ...
    def _trigger_epoch(self): ...


class TwoSystems(Callback):
    def before_run(self, runner): ...
    def on_train_begin(self, logs=None): ...


class Detector(MainCallback): ...


class Segmenter(MainCallback): ...


class Meddler(Callback):
    def on_iter_backward(self, run): ...


class Saver(Callback):
    after = ("Plotter",)

    def on_epoch_end(self, run): ...


class Plotter(Callback):
    after = ("Saver",)

    def on_epoch_end(self, run): ...


class NotPrintable:
    def __repr__(self):
        return "<a thing>"


@on("on_epoch_ends")
def slip(run): ...


@on("on_lr_adjust")
def adjust(run): ...


def unmarked(run): ...


REFUSED = {
    "near-miss point": (
        lambda: [EmaWeights()],
        errors.UnknownPoint,
        (
            "EmaWeights.on_epoch_ends is not a point. Did you mean on_epoch_end?\n"
            "  rename    on_epoch_ends -> on_epoch_end\n"
            '  declare   EmaWeights.points = ("on_epoch_ends",) if it is yours'
        ),
    ),
    "near-miss point of a function": (
        lambda: [slip],
        errors.UnknownPoint,
        (
            "slip.on_epoch_ends is not a point. Did you mean on_epoch_end?\n"
            "  rename    on_epoch_ends -> on_epoch_end\n"
            '  declare   slip.points = ("on_epoch_ends",) if it is yours'
        ),
    ),
    "foreign name": (
        lambda: [Lightning()],
        errors.UnknownPoint,
        (
            "Lightning.on_train_batch_start is another trainer's name for on_train_iter_begin.\n"
            "  rename    on_train_batch_start -> on_train_iter_begin\n"
            '  declare   Lightning.points = ("on_train_batch_start",) if it is yours'
        ),
    ),
    "foreign name without on_": (
        lambda: [MmEngine()],
        errors.UnknownPoint,
        (
            "MmEngine.before_train is another trainer's name for on_run_begin.\n"
            "  rename    before_train -> on_run_begin\n"
            '  declare   MmEngine.points = ("before_train",) if it is yours'
        ),
    ),
    "unknown argument": (
        lambda: [Greedy()],
        errors.UnknownArgument,
        (
            "Greedy.on_epoch_end takes 'weather', which this point does not provide.\n"
            "  provided  epoch, logs, run\n"
            "  default   write 'weather=None' if another trainer passes it"
        ),
    ),
    "two spellings": (
        lambda: [Twice()],
        errors.TwoSpellings,
        (
            "Twice defines on_epoch_end twice: on_epoch_end and _trigger_epoch.\n"
            "  keep      one of them, preferably on_epoch_end"
        ),
    ),
    "two spellings of two systems": (
        lambda: [TwoSystems()],
        errors.TwoSpellings,
        (
            "TwoSystems defines on_run_begin twice: before_run and on_train_begin.\n"
            "  keep      one of them, preferably on_run_begin"
        ),
    ),
    "second MainCallback": (
        lambda: [Detector(), Segmenter()],
        errors.MainPointTaken,
        (
            "two MainCallbacks: Detector and Segmenter; a run has only one.\n"
            "  keep      one of them, or derive the other from Callback"
        ),
    ),
    "main-only point in an ordinary callback": (
        lambda: [Meddler()],
        errors.MainPointTaken,
        (
            "Meddler.on_iter_backward is reserved for the MainCallback.\n"
            "  derive    class Meddler(MainCallback), or use another point"
        ),
    ),
    "main-only point in a function": (
        lambda: [adjust],
        errors.MainPointTaken,
        (
            "adjust.on_lr_adjust is reserved for the MainCallback.\n"
            "  derive    class adjust(MainCallback), or use another point"
        ),
    ),
    "order cycle": (
        lambda: [Saver(), Plotter()],
        errors.OrderError,
        (
            "callbacks at on_epoch_end cannot be ordered: Saver -> Plotter -> Saver is a cycle.\n"
            "  drop      one of the after, before or reads declarations"
        ),
    ),
    "a class where an instance belongs": (
        lambda: [Saver],
        errors.NotACallback,
        (
            "Saver is a class; expected an instance.\n"
            "  write     Saver()"
        ),
    ),
    "a function without a point": (
        lambda: [unmarked],
        errors.NotACallback,
        (
            "the function unmarked has no point.\n"
            '  write     @on("on_epoch_end") above def unmarked'
        ),
    ),
    "a list in a list": (
        lambda: [[Saver()]],
        errors.NotACallback,
        (
            "a list inside a list of callbacks.\n"
            "  write     *callbacks, or CallbackPipeline(...)"
        ),
    ),
    "something else": (
        lambda: [NotPrintable()],
        errors.NotACallback,
        (
            "<a thing> is not a callback: it has no method named after a point.\n"
            "  write     a class with a method such as on_epoch_end(self, run)"
        ),
    ),
    "when without on_trigger": (
        lambda: [Saver().when(Every(steps=10))],
        errors.NoTrigger,
        (
            "Saver has no on_trigger for Every(steps=10) to call.\n"
            "  define    on_trigger in Saver\n"
            "  write     @on(point, when=Every(steps=10)) above the method to schedule"
        ),
    ),
    "unknown on_error": (
        lambda: [Saver(on_error="ignore")],
        errors.BadOption,
        (
            "Saver.on_error is 'ignore'.\n"
            "  choose    'disable', 'raise', 'warn'"
        ),
    ),
    "unknown ranks": (
        lambda: [Saver(ranks="master", name="mine")],
        errors.BadOption,
        (
            "mine.ranks is 'master'.\n"
            "  choose    'all', 'chief', 'local_chief'"
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_compiling_an_invalid_callback_raises_with_advice(case):
    callbacks, kind, message = REFUSED[case]
    with pytest.raises(errors.CompileError) as caught:
        Hooks(callbacks())
    assert type(caught.value) is kind
    assert str(caught.value) == message


@pytest.mark.parametrize("case", REFUSED)
def test_a_compile_error_is_a_value_error_and_a_hookpoint_error(case):
    callbacks, _, _ = REFUSED[case]
    for kind in (ValueError, HookpointError):
        with pytest.raises(kind):
            Hooks(callbacks())


@pytest.mark.parametrize("callbacks", [[Saver], [unmarked], [NotPrintable()], [Greedy()]])
def test_a_callback_of_the_wrong_type_raises_type_error(callbacks):
    with pytest.raises(TypeError):
        Hooks(callbacks)


@pytest.mark.parametrize(
    ("callbacks", "attributes"),
    [
        ([EmaWeights()], {"owner": "EmaWeights", "name": "on_epoch_ends", "meant": "on_epoch_end"}),
        ([Greedy()], {"owner": "Greedy", "handler": "on_epoch_end", "argument": "weather"}),
        ([Twice()], {"owner": "Twice", "point": "on_epoch_end", "spellings": ("on_epoch_end", "_trigger_epoch")}),
    ],
)
def test_compile_errors_have_the_offending_objects_as_attributes(callbacks, attributes):
    with pytest.raises(errors.CompileError) as caught:
        Hooks(callbacks)
    assert {name: getattr(caught.value, name) for name in attributes} == attributes


def test_no_trigger_has_its_owner_and_schedule_as_attributes():
    schedule = Every(epochs=2)
    with pytest.raises(errors.NoTrigger) as caught:
        Hooks([Saver().when(schedule)])
    assert caught.value.owner == "Saver"
    assert caught.value.schedule is schedule


def test_a_message_has_a_headline_and_a_column_of_advice():
    assert text("it is wet.", wear="a coat", wait="for the sun") == (
        "it is wet.\n"
        "  wear      a coat\n"
        "  wait      for the sun"
    )  # fmt: skip


@pytest.mark.parametrize(("names", "words"), [([], "none"), (["b", "a"], "a, b"), (iter(["x"]), "x")])
def test_names_are_listed_in_order(names, words):
    assert listed(names) == words


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_derives_from_a_builtin_and_has_a_docstring(error):
    builtin = (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OSError)
    assert issubclass(error, builtin)
    assert error.__doc__


def test_the_docstring_lists_every_error_class():
    for one in CLASSES:
        assert f"{one.__name__} " in errors.__doc__ or f"{one.__name__}\n" in errors.__doc__, one


def test_missing_metric_shows_its_message_without_quotes():
    error = errors.MissingMetric("acc", ["loss", "lr"], reader="MaxSaver", why="which never came")
    assert str(error) == (
        "MaxSaver reads 'acc', which never came.\n  known     loss, lr\n  log       run.log({\"acc\": value}) before it is read"
    )
    assert isinstance(error, KeyError)


def test_stop_run_is_not_a_hookpoint_error_and_has_a_reason():
    assert not issubclass(StopRun, HookpointError)
    assert StopRun().reason == "StopRun was raised"
    assert StopRun("enough").reason == str(StopRun("enough")) == "enough"


def test_hookpoint_warning_is_a_user_warning():
    assert issubclass(HookpointWarning, UserWarning)


def test_an_error_without_a_message_is_an_empty_string():
    assert str(HookpointError()) == ""


def test_a_misspelled_point_of_a_lambda_callback_raises():
    with pytest.raises(
        errors.UnknownPoint, match=r"LambdaCallback\.on_epoch_ends is not a point\. Did you mean on_epoch_end\?"
    ):
        Hooks([LambdaCallback(on_epoch_ends=lambda run: None)])


def test_stop_run_survives_pickling():
    assert pickle.loads(pickle.dumps(StopRun("enough"))).reason == "enough"


def test_errors_survive_pickling():
    error = MissingMetric("loss", ["acc"], reader="KeepBest")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.name) == (MissingMetric, str(error), "loss")


def test_a_pipeline_with_its_own_handler_raises():
    class Steps(CallbackPipeline):
        def on_epoch_end(self, run): ...

    with pytest.raises(NotACallback) as caught:
        Hooks([Steps([Callback()])])
    assert str(caught.value) == (
        "Steps.on_epoch_end would never be called: a pipeline only runs its callbacks.\n"
        "  move      on_epoch_end into one of the pipeline's callbacks\n"
        "  override  run(self, hookpoint=None, logs=None) instead: it receives every point"
    )


def test_a_lambda_without_a_point_name_raises():
    with pytest.raises(UnknownPoint, match="a name that starts with on_"):
        LambdaCallback(epochs=lambda: None)
