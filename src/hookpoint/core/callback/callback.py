"""Callback: an object whose methods are named after points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from hookpoint.core.callback.handlers import call_by_hand, declared_only
from hookpoint.core.callback.kept import FromKept, kept_of, name_it, run_of, state_of, what_is_kept
from hookpoint.core.callback.on import OnError, Ranks
from hookpoint.core.errors import BadArgument, OutsideRun
from hookpoint.core.points import BY_NAME, POINTS

if TYPE_CHECKING:
    from typing import Self

    from hookpoint.core.schedule.when import When


class Options(TypedDict, total=False):
    """The keywords every callback takes: a class with arguments of its own adds `**options: Unpack[Options]`."""

    name: str | None
    on_error: OnError | None
    ranks: Ranks | None


class FromRun:
    """Read an attribute of the run a callback is in. An instance attribute of the same name wins."""

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, callback: Callback | None, owner: type) -> Any:
        if callback is None:  # @dataclass asks so whether a field of this name has a default
            raise AttributeError(self._attribute)
        run = what_is_kept(callback).run
        if run is None:
            raise OutsideRun(f"{owner.__name__}.{self._attribute} is there during a run only")
        return getattr(run, self._attribute)


class Callback:
    """Do something else at named moments of a run: define a method named after a point, and put an instance in the list.

    A method takes just the arguments it names (`run`, `logs`, `epoch`, `batch`, `loss`, ...). Any other `on_...` method is
    a handler of a point of one's own. Nothing here needs `super().__init__()`.

    `name` identifies the callback in messages and checkpoints (default: the class's name, made unique). `on_error` says what
    a failure does: "raise" ends the run, "warn" logs it and gives up after three in a row, "disable" gives up at once.
    `ranks` says on which processes it runs. `after` and `before` name callbacks or classes, `reads` and `writes` metrics:
    they refine the order of the list. `may_write` names metrics that it logs only now and then. `points` names methods that
    look like slips of the pen and are not. `outside` marks a monitor that talks to the network: when it is too slow, the oldest
    records are dropped instead of waiting for it.
    In a run of several processes, `collective` marks one whose handlers talk to the other processes, and `may_skip` one that
    asks for skips: `run.skip_batch()` and the like are agreed on with the others, which costs a word with them each time. A
    checkpoint keeps the chief's state of each callback, and that of every process where `per_rank_state` is set.

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
    writes_anything: bool = False  # of hookpoint's own: it calls what may log any name
    points: tuple[str, ...] = ()
    outside: bool = False
    collective: bool = False
    may_skip: bool = False
    per_rank_state: bool = False

    # What hookpoint keeps with a callback. A class may use these names for its own attributes.
    name: Any = FromKept("name")
    component: Any = FromKept("component")
    save_path: Any = FromKept("save_path")
    schedule: Any = FromKept("schedule")
    _run: Any = FromKept("run")

    def __init__(
        self, *, name: str | None = None, on_error: OnError | None = None, ranks: Ranks | None = None, **unknown: Any
    ) -> None:
        if unknown:
            own = type(self).__name__
            raise BadArgument(f"{own} takes no {', no '.join(f'{one}=' for one in unknown)}.", see=f"help({own})")
        if name is not None:
            name_it(self, name)
        for option, value in (("on_error", on_error), ("ranks", ranks)):
            if value is not None:
                object.__setattr__(self, option, value)  # also in a frozen dataclass

    def setup(self, component: Any, save_path: Any) -> None:
        """Attach the callback to what it works on: a loop calls it with the model and the workdir, before on_setup."""
        kept = kept_of(self)
        kept.component, kept.save_path = component, save_path

    def when(self, schedule: When) -> Self:
        """Trigger by this schedule instead of at the end of each epoch; return the callback, so that it can stand in a list.

        >>> LambdaCallback(on_trigger=lambda run: print(run.step)).when(Every(steps=500)).schedule
        Every(steps=500)
        """
        kept_of(self).schedule = schedule
        return self

    def set_chief_only(self, chief_only: bool = True) -> Self:
        """Run on the chief only, or on all ranks, in tensorpack's words; return the callback."""
        object.__setattr__(self, "chief_only", chief_only)
        return self

    def trigger(self) -> None:
        """Call this callback's on_trigger now, in a run, whatever its schedule says."""
        run = what_is_kept(self).run
        if run is None:
            raise OutsideRun(f"{type(self).__name__}.trigger() is there during a run only")
        (run_of(self) or partial(call_by_hand, self))("on_trigger", run.offered(BY_NAME["on_trigger"].offers))

    def run(self, hookpoint: str | None = None, logs: Mapping[str, Any] | None = None) -> None:
        """Call this callback's handler for a point by hand; without one, do nothing.

        `logs` holds what the point offers, by name. A subclass that overrides `run` gets every point of a run through it.

        >>> LambdaCallback(on_say=lambda words: print(words, "words")).run(hookpoint="on_say", logs={"words": 3})
        3 words
        """
        call_by_hand(self, hookpoint, logs)

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint is to keep of this callback: plain types and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""

    def __getstate__(self) -> dict[str, Any]:
        return state_of(self)

    # What methods in the way of Keras and tensorpack, which are given little, know of the run.

    model: Any = FromRun("model")
    trainer: Any = FromRun("trainer")
    epoch_num: Any = FromRun("epoch_num")
    global_step: Any = FromRun("global_step")
    local_step: Any = FromRun("local_step")

    # The built-in points. Each takes anything, so that an override may name what it needs; the docstrings are the table's.

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


for _point in POINTS:
    declared_only(getattr(Callback, _point.name)).__doc__ = f"Called {_point.fires}."
