"""The table of built-in points.

For each point, the table says when the point fires, which arguments a handler may have, which callbacks may define a handler,
and what other libraries call the point.

Points are declared only here. `Callback`, `docs/points.md`, the compiler's checks and the tests are derived from this table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from hookpoint.core.errors import BadArgument

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
    """The name of a point in another system.

    `only_with` is for names that unrelated methods may have too, such as `begin`: a method is a handler only if it has exactly
    these parameters. `second` marks a second method of that system for the same point. A class may define both, and both are
    called, in table order. `renames` is for parameters whose names have a different meaning in hookpoint. It maps each of these
    names to the name of the hookpoint argument that the parameter receives.
    """

    system: str
    name: str
    differs: str = ""
    only_with: tuple[str, ...] | None = None
    second: bool = False
    renames: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Point:
    """A named moment in a run. With `in_data`, the point fires while data is loaded, in the process that loads the data."""

    name: str
    fires: str
    offers: tuple[str, ...] = ALWAYS
    modes: tuple[str, ...] = ()
    main_only: bool = False
    in_data: bool = False
    spellings: tuple[Spelling, ...] = field(default=())


orca = partial(Spelling, "Orca")
orca_any_mode = partial(Spelling, "Orca", differs="called in training, validation and prediction", second=True)
keras = partial(Spelling, "Keras")
batch_is_index = "under the Keras name, `batch` is the batch index"
keras_batch = partial(Spelling, "Keras", differs=batch_is_index, renames=(("batch", "batch_idx"),))
mindspore = partial(Spelling, "MindSpore")
mindspore_bare = partial(Spelling, "MindSpore", differs="MindSpore also calls it in evaluation", only_with=("run_context",))
tensorpack = partial(Spelling, "tensorpack", only_with=())


POINTS: tuple[Point, ...] = (
    Point(
        "on_setup",
        "once, before anything else; callbacks check their requirements and fail early",
        spellings=(tensorpack("_setup_graph", "hookpoint has no graph; the model is `run.model`"),),
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
        "before each training epoch; `run.epoch` is its number, from 1",
        modes=TRAIN,
        spellings=(keras("on_epoch_begin", "Keras counts epochs from 0, hookpoint from 1"), mindspore_bare("epoch_begin")),
    ),
    Point(
        "on_train_epoch_begin",
        "before the first training batch of an epoch",
        modes=TRAIN,
        spellings=(orca_any_mode("before_epoch"), orca("before_train_epoch"), tensorpack("_before_epoch")),
    ),
    Point("on_batch_fetch_begin", "before the next batch is fetched", (*ALWAYS, "batch_idx"), EVERY_MODE),
    Point("on_batch_fetch_end", "after a batch is fetched, and once more with None after the last one", BATCH, EVERY_MODE),
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
            tensorpack("_before_run", "`_before_run(ctx)` may return the names of values to fetch"),
        ),
    ),
    Point("on_train_forward", "to compute outputs and loss; by default, it calls on_iter_forward", STEP, TRAIN, main_only=True),
    Point(
        "on_iter_forward",
        "when on_train_forward or on_val_forward calls it, as both do by default",
        STEP,
        EVERY_MODE,
        main_only=True,
    ),
    Point("on_iter_backward", "to compute gradients and step the optimizer", STEP, TRAIN, main_only=True),
    Point("on_backward_begin", "before the backward pass", STEP, TRAIN),
    Point("on_backward_end", "after the backward pass", STEP, TRAIN),
    Point("on_step_begin", "before the optimizer step, once per accumulation window", STEP, TRAIN),
    Point("on_step_end", "after the optimizer step, once per accumulation window", STEP, TRAIN),
    Point(
        "on_train_iter_end",
        "after each training iteration; `run.iteration` and `run.step` already count it",
        STEP,
        TRAIN,
        spellings=(
            orca("after_train_iter"),
            keras_batch("on_train_batch_end"),
            keras_batch("on_batch_end"),
            mindspore("on_train_step_end"),
            mindspore_bare("step_end"),
            tensorpack("_after_run", "`_after_run(ctx, values)` receives the fetched values"),
            tensorpack("_trigger_step", second=True),
        ),
    ),
    Point(
        "on_iter_end",
        "after each iteration, in every mode; batch, outputs and loss are cleared afterwards",
        STEP,
        EVERY_MODE,
        spellings=(orca("after_iter"),),
    ),
    Point(
        "on_iter_error",
        "when a step of the Runner raises; unless a callback calls `retry` or `skip_batch`, the error propagates",
        (*STEP, "error"),
        EVERY_MODE,
    ),
    Point("on_iter_skip", "instead of on_iter_end, if a verdict skipped the iteration", BATCH, EVERY_MODE),
    Point(
        "on_train_epoch_end",
        "right after the last training step of an epoch; training metrics are final",
        modes=TRAIN,
        spellings=(
            orca(
                "after_train_epoch",
                "Orca calls it after validation; hookpoint calls it before validation, and calls on_epoch_end after validation",
            ),
            orca_any_mode("after_epoch"),
            mindspore(
                "on_train_epoch_end",
                "MindSpore calls it after evaluation; hookpoint calls it before validation, and on_epoch_end after validation",
            ),
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
    Point("on_val_forward", "to compute outputs, and the loss if there are targets", STEP, VAL, main_only=True),
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
            mindspore("on_eval_epoch_end", "in MindSpore, metrics are not available yet; in hookpoint, they are"),
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
    Point("on_pred_forward", "to compute outputs", STEP, PRED, main_only=True),
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
    Point("on_lr_adjust", "to step the learning-rate scheduler", modes=TRAIN, main_only=True),
    Point(
        "on_epoch_end",
        "when all metrics of the epoch are known, so that callbacks can save, adjust the learning rate or stop the run; "
        "`run.epoch_complete` is False if the epoch ended early",
        modes=TRAIN,
        spellings=(
            keras("on_epoch_end", "Keras counts epochs from 0, hookpoint from 1"),
            mindspore_bare("epoch_end"),
            tensorpack("_trigger_epoch"),
        ),
    ),
    Point(
        "on_trigger",
        "at on_epoch_end if the epoch is complete, or on the schedule set with `.when(...)`",
        spellings=(tensorpack("_trigger", "not called at the end of an epoch if `_trigger_epoch` is defined"),),
    ),
    Point("on_save", "after a checkpoint is written", (*ALWAYS, "path", "tags")),
    Point("on_load", "after a checkpoint is restored", (*ALWAYS, "path", "info")),
    Point(
        "on_exception", "when an exception ends the run, before on_run_end; errors in handlers are logged", (*ALWAYS, "error")
    ),
    Point(
        "on_run_end",
        "once at the end, even after an exception; errors in handlers are raised after all handlers have run",
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
        "outside the training thread, with logged records; a callback that defines this method is a monitor",
        ("run", "records"),
    ),
    Point(
        "on_sample",
        "by a `HookedLoader`, in the process that loads the sample; return `Replace(value)` to replace it",
        ("sample", "index", *DATA),
        EVERY_MODE,
        in_data=True,
    ),
    Point(
        "on_batch_made",
        "by a `HookedLoader`, in the process that builds the batch; return `Replace(value)` to replace it",
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

# Maps each point to its names in other trainers. Callbacks for these trainers need changes to run in hookpoint.
_THEIR_NAMES = {
    "on_run_begin": "on_fit_start on_train_start before_fit before_train ds_begin",
    "on_run_end": "after_fit after_train",
    "on_epoch_begin": "sync_epoch_begin",
    "on_train_epoch_begin": "on_train_epoch_start ds_epoch_begin",
    "on_batch_fetch_begin": "sync_step_begin",
    "on_iter_begin": "before_batch",
    "on_train_iter_begin": "on_train_batch_start",
    "on_backward_begin": "on_before_backward before_backward",
    "on_backward_end": "on_after_backward after_backward",
    "on_step_begin": "on_before_optimizer_step on_pre_optimizer_step before_step",
    "on_step_end": "on_optimizer_step after_step",
    "on_iter_end": "after_batch",
    "on_train_epoch_end": "ds_epoch_end",
    "on_val_epoch_begin": "on_validation_start on_validation_epoch_start before_validate on_test_start",
    "on_val_iter_begin": "on_validation_batch_start on_test_batch_start",
    "on_val_iter_end": "on_validation_batch_end",
    "on_val_epoch_end": "on_validation_end on_validation_epoch_end after_validate",
    "on_pred_epoch_begin": "on_predict_start",
    "on_pred_iter_begin": "on_predict_batch_start",
    "on_save": "on_save_checkpoint",
    "on_load": "on_load_checkpoint",
    "on_sample": "ds_step_begin",
    "on_batch_made": "ds_step_end",
}
FOREIGN: dict[str, str] = {name: ours for ours, names in _THEIR_NAMES.items() for name in names.split()}

_declared: set[str] = set()


def declare(*names: str) -> None:
    """Declare custom points, so that handlers for them are not reported as misspelled.

    >>> declare("on_epochs_end")
    """
    for name in names:
        if not name.startswith("on_") or not name.isidentifier():
            raise BadArgument(f"declare: a point must be an identifier that starts with on_, got {name!r}.")
    _declared.update(names)


def declared() -> frozenset[str]:
    """Return all custom points that have been declared, including the points that `guard` declares."""
    return frozenset(_declared)


def points() -> tuple[Point, ...]:
    """Return the table of built-in points, in the order in which they fire.

    >>> [point.name for point in points()][:2]
    ['on_setup', 'on_run_begin']
    """
    return POINTS
