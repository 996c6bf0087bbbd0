"""Callback: an object whose methods are named after points."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from hookpoint.core.callback.callback_info import FromInfo, copied_state, info_of, read_info, run_method, set_name
from hookpoint.core.callback.handlers import call_directly, declared_only
from hookpoint.core.callback.knob import Knob
from hookpoint.core.callback.on import OnError, Ranks, checked_schedule
from hookpoint.core.errors import BadArgument, HookpointWarning, OutsideRun
from hookpoint.core.points import BY_NAME, POINTS
from hookpoint.core.text.spelling import near_miss

if TYPE_CHECKING:
    from typing import Self

    from hookpoint.core.schedule.when import When


class Options(TypedDict, total=False):
    """The keyword arguments that every callback accepts. A subclass with more arguments adds `**options: Unpack[Options]`."""

    name: str | None
    on_error: OnError | None
    ranks: Ranks | None


class FromRun(FromInfo):
    """Read an attribute from the callback's run, unless the callback itself has an attribute of the same name."""

    def __get__(self, callback: Callback | None, owner: type) -> Any:
        if callback is None:
            raise AttributeError(self.name)
        run = read_info(callback).run
        if run is None:
            raise OutsideRun(f"{owner.__name__}.{self.name} exists only during a run")
        return getattr(run, self.name)


class Callback:
    """Run code at named points of training: define a method named after a point, and pass an instance to the loop.

    A method receives only the arguments it names (`run`, `logs`, `epoch`, `batch`, `loss`, ...). An `on_...` method whose name
    is not a built-in point handles a custom point, which you fire yourself. Subclasses need not call `super().__init__()`.

    Attributes, all optional:

    - `name` identifies the callback in messages and checkpoints. Default: the class name, made unique.
    - `on_error`: "raise" ends the run. "warn" logs the error, and disables the callback after three failures in a row.
      "disable" disables the callback after the first failure.
    - `ranks`: "all", "chief" (rank 0) or "local_chief" (local rank 0 of each node).
    - `after` and `before` name callbacks, pipelines or classes; `reads` and `writes` name metrics. hookpoint uses all four to
      adjust the order in which callbacks run.
    - `may_write` names metrics that the callback logs only sometimes.
    - `points` names custom points that would otherwise be rejected as misspelled built-in points.
    - `optional_points` names points that the callback does not strictly need. The callback then also works in another library's
      trainer that never fires these points. For example, a trainer that never skips a batch does not fire on_iter_skip.
    - `knobs` lists the attributes that live control may set (see `Knob`). `actions` lists the methods that live control may
      call. Define `on_knob(run, name, was, value)` to respond to a change; raise an error in it to refuse the new value.
    - `outside = True` marks a monitor that uses the network. If the monitor is too slow, hookpoint drops its oldest records.
    - `asynchronous = True` marks a callback that reads values but does not change the run. Its handlers are called in the
      background, in order. They receive a read-only `run` and copies of their other arguments.

    For runs on multiple ranks:

    - `collective = True` marks a callback whose handlers communicate with other ranks.
    - `may_skip = True` marks a callback that calls `run.skip_batch()`, `run.skip_backward()` or `run.skip_step()`. Ranks agree
      on each skip, which costs one collective call.
    - `per_rank_state = True` saves the callback's state on every rank. By default, a checkpoint stores only the chief's state.

    >>> class Say(Callback):
    ...     def on_epoch_end(self, run, logs):
    ...         print(run.epoch, dict(logs))
    """

    on_error: OnError = "raise"
    ranks: Ranks = "all"
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    may_write: tuple[str, ...] = ()
    writes_anything: bool = False  # internal: the callback calls user functions, which may log any metric
    points: tuple[str, ...] = ()
    optional_points: tuple[str, ...] = ()
    outside: bool = False
    asynchronous: bool = False
    collective: bool = False
    may_skip: bool = False
    per_rank_state: bool = False
    knobs: tuple[Knob, ...] = ()
    actions: tuple[str, ...] = ()

    # A callback's name, schedule and so on are stored in its CallbackInfo. A subclass may therefore define attributes with
    # these names for its own use.
    name: Any = FromInfo("name")
    component: Any = FromInfo("component")
    save_path: Any = FromInfo("save_path")
    schedule: Any = FromInfo("schedule")
    _run: Any = FromInfo("run")

    def __init__(
        self, *, name: str | None = None, on_error: OnError | None = None, ranks: Ranks | None = None, **unknown: Any
    ) -> None:
        if unknown:
            own, names = type(self).__name__, ", ".join(f"{name}=" for name in unknown)
            raise BadArgument(f"{own} has no argument {names}.{_meant(type(self), unknown)}", see=f"help({own})")
        if name is not None:
            set_name(self, name)
        for option, value in (("on_error", on_error), ("ranks", ranks)):
            if value is not None:
                object.__setattr__(self, option, value)  # unlike setattr, this also works in a frozen dataclass

    def setup(self, component: Any, save_path: Any) -> None:
        """Set `component` and `save_path`. Before on_setup, a loop calls this method with the model and the workdir."""
        info = info_of(self)
        info.component, info.save_path = component, save_path

    def when(self, schedule: When) -> Self:
        """Call on_trigger on this schedule instead of at the end of each epoch. Return the callback.

        >>> LambdaCallback(on_trigger=lambda run: print(run.step)).when(Every(steps=500)).schedule
        Every(steps=500)
        """
        info_of(self).schedule = checked_schedule(schedule)
        if info_of(self).run is not None:
            warnings.warn(
                f"{type(self).__name__}.when({schedule!r}) has no effect in this run: schedules are read before the run begins."
                f" Call it before you pass the callback to the loop.",
                HookpointWarning,
                stacklevel=2,
            )
        return self

    def set_chief_only(self, chief_only: bool = True) -> Self:
        """Set whether the callback runs on the chief only or on all ranks, as in tensorpack. Return the callback."""
        object.__setattr__(self, "chief_only", chief_only)
        return self

    def trigger(self) -> None:
        """Call on_trigger now, regardless of its schedule. Works only during a run."""
        run = read_info(self).run
        if run is None:
            raise OutsideRun(f"{type(self).__name__}.trigger() works only during a run")
        (run_method(self) or partial(call_directly, self))("on_trigger", run.offered(BY_NAME["on_trigger"].offers))

    def run(self, hookpoint: str | None = None, logs: Mapping[str, Any] | None = None) -> None:
        """Call the callback's handler for a point. Do nothing if there is no such handler.

        `logs` maps argument names to values. If a subclass overrides `run`, the loop calls `run` at every point. If the
        subclass defines on_trigger, its schedule calls `run` with "on_trigger". Handlers cannot have schedules of their own.

        >>> LambdaCallback(on_say=lambda words: print(words, "words")).run(hookpoint="on_say", logs={"words": 3})
        3 words
        """
        call_directly(self, hookpoint, logs)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in the checkpoint. It may contain tensors and values of plain Python types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    def __getstate__(self) -> dict[str, Any]:
        return copied_state(self)

    # Methods in the style of Keras and tensorpack receive few arguments. They can read the attributes below instead.

    model: Any = FromRun("model")
    trainer: Any = FromRun("trainer")
    epoch_num: Any = FromRun("epoch_num")
    global_step: Any = FromRun("global_step")
    local_step: Any = FromRun("local_step")

    # The built-in points. Each method accepts any arguments, so an override can declare only those it needs.
    # The docstrings come from POINTS.

    def on_setup(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_run_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_train_epoch_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_batch_fetch_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_batch_fetch_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_iter_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_train_iter_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_train_forward(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_iter_forward(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_iter_backward(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_backward_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_backward_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_step_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_step_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_train_iter_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_iter_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_iter_error(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_iter_skip(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_train_epoch_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_val_epoch_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_val_iter_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_val_forward(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_val_iter_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_val_epoch_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_pred_epoch_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_pred_iter_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_pred_forward(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_pred_iter_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_pred_epoch_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_lr_adjust(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_epoch_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_trigger(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_save(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_load(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_exception(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_run_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_records(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_sample(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_batch_made(self, *args: Any, **kwargs: Any) -> Any: ...


def _meant(cls: type, unknown: Iterable[str]) -> str:
    """Return a question that names the arguments that were probably misspelled, or an empty string."""
    codes = [vars(base)["__init__"].__code__ for base in cls.__mro__ if hasattr(vars(base).get("__init__"), "__code__")]
    known = [name for code in codes for name in code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]]
    meant = [guess for name in unknown if (guess := near_miss(name, known)) is not None]
    return f" Did you mean {', '.join(meant)}?" if meant else ""


for _point in POINTS:
    declared_only(getattr(Callback, _point.name)).__doc__ = f"Called {_point.fires}."
