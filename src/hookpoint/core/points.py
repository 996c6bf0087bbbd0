"""The table of built-in points: when each fires, what it offers, who may own it, and what other systems call it.

This is the one place where a point is declared. `Callback`, `docs/points.md`, the compiler's checks and the tests follow it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RUN_NAMES = ("run", "runner", "run_context", "trainer")
ALWAYS = ("run", "epoch", "logs")
BATCH = (*ALWAYS, "batch", "batch_idx")
STEP = (*BATCH, "outputs", "loss")
DATA = ("epoch", "mode", "batch_idx", "settings", "worker")

TRAIN = ("train",)
VAL = ("val",)
PRED = ("pred",)
EVERY_MODE = ("train", "val", "pred")


@dataclass(frozen=True, slots=True)
class Spelling:
    """Another system's name for a point.

    `only_with` restricts names so common that they count only with just these parameters. `second` marks a moment that
    its system keeps apart from another one of the same point: a class may define both, and both are called, in table
    order. `renames` maps parameters that mean something else there.
    """

    system: str
    name: str
    differs: str = ""
    only_with: tuple[str, ...] | None = None
    second: bool = False
    renames: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """A named moment of a run, or, `in_data`, of the making of its data, in whatever process that happens."""

    name: str
    fires: str
    offers: tuple[str, ...] = ALWAYS
    modes: tuple[str, ...] = ()
    main_only: bool = False
    in_data: bool = False
    spellings: tuple[Spelling, ...] = field(default=())


def orca(name: str, differs: str = "") -> Spelling:
    return Spelling("Orca", name, differs)


def orca_any_mode(name: str) -> Spelling:
    return Spelling("Orca", name, "called for the epoch of every mode", second=True)


def keras(name: str, differs: str = "") -> Spelling:
    return Spelling("Keras", name, differs)


def keras_batch(name: str) -> Spelling:
    return Spelling("Keras", name, "`batch` is the index there, and here in this spelling", renames=(("batch", "batch_idx"),))


def mindspore(name: str, differs: str = "", *, second: bool = False) -> Spelling:
    return Spelling("MindSpore", name, differs, second=second)


def mindspore_bare(name: str) -> Spelling:
    return Spelling("MindSpore", name, "there also in evaluation", only_with=("run_context",))


def tensorpack(name: str, differs: str = "", *, second: bool = False) -> Spelling:
    return Spelling("tensorpack", name, differs, only_with=(), second=second)


POINTS: tuple[Point, ...] = (
    Point(
        "on_setup",
        "once, before anything; callbacks check what they need and fail early",
        spellings=(tensorpack("_setup_graph", "there is no graph; the model is `run.model`"),),
    ),
    Point(
        "on_run_begin",
        "once, before the first epoch",
        spellings=(
            orca("before_run"),
            keras("on_train_begin"),
            mindspore("on_train_begin"),
            mindspore_bare("begin"),
            tensorpack("_before_train"),
        ),
    ),
    Point(
        "on_epoch_begin",
        "before each training epoch; `run.epoch` is the epoch now starting, from 1",
        modes=TRAIN,
        spellings=(keras("on_epoch_begin", "epochs count from 0 there, from 1 here"), mindspore_bare("epoch_begin")),
    ),
    Point(
        "on_train_epoch_begin",
        "before the first training batch of an epoch",
        modes=TRAIN,
        spellings=(orca_any_mode("before_epoch"), orca("before_train_epoch"), tensorpack("_before_epoch")),
    ),
    Point("on_batch_fetch_begin", "before the next batch is asked for", (*ALWAYS, "batch_idx"), EVERY_MODE),
    Point("on_batch_fetch_end", "after the next batch has come; after the last, once more with None", BATCH, EVERY_MODE),
    Point("on_iter_begin", "before each iteration, in every mode", BATCH, EVERY_MODE, spellings=(orca("before_iter"),)),
    Point(
        "on_train_iter_begin",
        "before each training iteration",
        BATCH,
        TRAIN,
        spellings=(
            orca("before_train_iter"),
            keras_batch("on_train_batch_begin"),
            keras_batch("on_batch_begin"),
            mindspore("on_train_step_begin"),
            mindspore_bare("step_begin"),
            tensorpack("_before_run", "takes no context and returns no fetches here"),
        ),
    ),
    Point("on_train_forward", "computes outputs and loss; calls on_iter_forward by default", STEP, TRAIN, main_only=True),
    Point("on_iter_forward", "what the forward of every mode calls by default", STEP, EVERY_MODE, main_only=True),
    Point("on_iter_backward", "computes gradients and steps the optimizer", STEP, TRAIN, main_only=True),
    Point("on_backward_begin", "before the backward pass", STEP, TRAIN),
    Point("on_backward_end", "after the backward pass", STEP, TRAIN),
    Point("on_step_begin", "before the optimizer's step, once per accumulation window", STEP, TRAIN),
    Point("on_step_end", "after the optimizer's step, once per accumulation window", STEP, TRAIN),
    Point(
        "on_train_iter_end",
        "after each training iteration; `run.iteration` and `run.step` count it already",
        STEP,
        TRAIN,
        spellings=(
            orca("after_train_iter"),
            keras_batch("on_train_batch_end"),
            keras_batch("on_batch_end"),
            mindspore("on_train_step_end"),
            mindspore_bare("step_end"),
            tensorpack("_after_run", "takes no context and no values here"),
            tensorpack("_trigger_step", second=True),
        ),
    ),
    Point(
        "on_iter_end",
        "after each iteration, in every mode; batch, outputs and loss are gone after it",
        STEP,
        EVERY_MODE,
        spellings=(orca("after_iter"),),
    ),
    Point(
        "on_iter_error",
        "when a runner's step raised; a callback may ask for retry or skip_batch, or the error goes on",
        (*STEP, "error"),
        EVERY_MODE,
    ),
    Point("on_iter_skip", "instead of the end of an iteration that a verdict skipped", BATCH, EVERY_MODE),
    Point(
        "on_train_epoch_end",
        "right after the last training step of an epoch, for fast work; training metrics are final",
        modes=TRAIN,
        spellings=(
            orca("after_train_epoch", "comes after validation there; here on_epoch_end does"),
            orca_any_mode("after_epoch"),
            mindspore("on_train_epoch_end", "comes after evaluation there; here on_epoch_end does"),
            tensorpack("_after_epoch"),
        ),
    ),
    Point(
        "on_val_epoch_begin",
        "before a validation pass",
        modes=VAL,
        spellings=(
            orca_any_mode("before_epoch"),
            orca("before_val_epoch"),
            keras("on_test_begin"),
            mindspore("on_eval_begin"),
            mindspore("on_eval_epoch_begin", second=True),
        ),
    ),
    Point(
        "on_val_iter_begin",
        "before each validation iteration",
        BATCH,
        VAL,
        spellings=(orca("before_val_iter"), keras_batch("on_test_batch_begin"), mindspore("on_eval_step_begin")),
    ),
    Point("on_val_forward", "computes outputs, and loss where there are targets", STEP, VAL, main_only=True),
    Point(
        "on_val_iter_end",
        "after each validation iteration",
        STEP,
        VAL,
        spellings=(orca("after_val_iter"), keras_batch("on_test_batch_end"), mindspore("on_eval_step_end")),
    ),
    Point(
        "on_val_epoch_end",
        "after a validation pass; its metrics are final",
        modes=VAL,
        spellings=(
            orca("after_val_epoch"),
            orca_any_mode("after_epoch"),
            keras("on_test_end"),
            mindspore("on_eval_epoch_end", "metrics are not there yet there; here they are"),
            mindspore("on_eval_end", second=True),
        ),
    ),
    Point(
        "on_pred_epoch_begin",
        "before a prediction pass",
        modes=PRED,
        spellings=(orca_any_mode("before_epoch"), orca("before_pred_epoch"), keras("on_predict_begin")),
    ),
    Point(
        "on_pred_iter_begin",
        "before each prediction iteration",
        BATCH,
        PRED,
        spellings=(orca("before_pred_iter"), keras_batch("on_predict_batch_begin")),
    ),
    Point("on_pred_forward", "computes outputs", STEP, PRED, main_only=True),
    Point(
        "on_pred_iter_end",
        "after each prediction iteration",
        STEP,
        PRED,
        spellings=(orca("after_pred_iter"), keras_batch("on_predict_batch_end")),
    ),
    Point(
        "on_pred_epoch_end",
        "after a prediction pass",
        modes=PRED,
        spellings=(orca("after_pred_epoch"), orca_any_mode("after_epoch"), keras("on_predict_end")),
    ),
    Point("on_lr_adjust", "steps the learning-rate scheduler", modes=TRAIN, main_only=True),
    Point(
        "on_epoch_end",
        "when every metric of the epoch is known: save, schedule, decide; `run.epoch_complete` says whether it was cut short",
        modes=TRAIN,
        spellings=(
            keras("on_epoch_end", "epochs count from 0 there, from 1 here"),
            mindspore_bare("epoch_end"),
            tensorpack("_trigger_epoch"),
        ),
    ),
    Point(
        "on_trigger",
        "at on_epoch_end of complete epochs, unless `.when(...)` says otherwise: the what without a when",
        spellings=(tensorpack("_trigger", "not called at the end of an epoch where `_trigger_epoch` is defined"),),
    ),
    Point("on_save", "after a checkpoint was written", (*ALWAYS, "path", "tags")),
    Point("on_load", "after a checkpoint was restored", (*ALWAYS, "path")),
    Point("on_exception", "when an exception escaped, before on_run_end; its errors are contained", (*ALWAYS, "error")),
    Point(
        "on_run_end",
        "once at the end, always, also after an exception; each callback's error is contained until all have run",
        spellings=(
            orca("after_run"),
            keras("on_train_end"),
            mindspore("on_train_end"),
            mindspore_bare("end"),
            tensorpack("_after_train"),
        ),
    ),
    Point(
        "on_records",
        "off the training thread, with what was logged: this makes a callback a monitor",
        ("run", "records"),
    ),
    Point(
        "on_sample",
        "by a `HookedLoader`, in the process that made it, with each sample; `return Replace(value)` gives another",
        ("sample", "index", *DATA),
        EVERY_MODE,
        in_data=True,
    ),
    Point(
        "on_batch_made",
        "by a `HookedLoader`, in the process that made it, with each batch; `return Replace(value)` gives another",
        ("batch", "indices", *DATA),
        EVERY_MODE,
        in_data=True,
    ),
)

BY_NAME: dict[str, Point] = {point.name: point for point in POINTS}

SPELLINGS: dict[str, list[tuple[Point, Spelling]]] = {}
for _point in POINTS:
    for _spelling in _point.spellings:
        SPELLINGS.setdefault(_spelling.name, []).append((_point, _spelling))

# Names of trainers whose callbacks do not run here as they are, and our name for the same moment.
FOREIGN: dict[str, str] = {
    "on_fit_start": "on_run_begin",
    "on_train_start": "on_run_begin",
    "before_fit": "on_run_begin",
    "after_fit": "on_run_end",
    "before_train": "on_run_begin",
    "after_train": "on_run_end",
    "on_train_epoch_start": "on_train_epoch_begin",
    "on_train_batch_start": "on_train_iter_begin",
    "before_batch": "on_iter_begin",
    "after_batch": "on_iter_end",
    "on_before_backward": "on_backward_begin",
    "on_after_backward": "on_backward_end",
    "before_backward": "on_backward_begin",
    "after_backward": "on_backward_end",
    "on_before_optimizer_step": "on_step_begin",
    "on_pre_optimizer_step": "on_step_begin",
    "on_optimizer_step": "on_step_end",
    "before_step": "on_step_begin",
    "after_step": "on_step_end",
    "on_validation_start": "on_val_epoch_begin",
    "on_validation_end": "on_val_epoch_end",
    "on_validation_epoch_start": "on_val_epoch_begin",
    "on_validation_epoch_end": "on_val_epoch_end",
    "on_validation_batch_start": "on_val_iter_begin",
    "on_validation_batch_end": "on_val_iter_end",
    "before_validate": "on_val_epoch_begin",
    "after_validate": "on_val_epoch_end",
    "on_test_start": "on_val_epoch_begin",
    "on_test_batch_start": "on_val_iter_begin",
    "on_predict_start": "on_pred_epoch_begin",
    "on_predict_batch_start": "on_pred_iter_begin",
    "on_save_checkpoint": "on_save",
    "on_load_checkpoint": "on_load",
    "ds_begin": "on_run_begin",
    "ds_epoch_begin": "on_train_epoch_begin",
    "ds_epoch_end": "on_train_epoch_end",
    "ds_step_begin": "on_sample",
    "ds_step_end": "on_batch_made",
    "sync_epoch_begin": "on_epoch_begin",
    "sync_step_begin": "on_batch_fetch_begin",
}

_declared: set[str] = set()


def declare(*names: str) -> None:
    """Say that points of these names exist, so that handlers for them are never taken for a slip of the pen.

    >>> declare("on_epochs_end")
    """
    for name in names:
        if not name.startswith("on_") or not name.isidentifier():
            raise ValueError(f"a point's name begins with on_ and is an identifier, as in on_tokenize_begin; got {name!r}")
    _declared.update(names)


def declared() -> frozenset[str]:
    """Return the names of points that users have declared, by `declare` or with a guard."""
    return frozenset(_declared)


def points() -> tuple[Point, ...]:
    """Return the table of built-in points, in the order in which a run fires them.

    >>> [point.name for point in points()][:2]
    ['on_setup', 'on_run_begin']
    """
    return POINTS
