"""Every error and warning that hookpoint raises.

A message names the object, the problem, what is expected, and what to type instead. Many errors also have attributes, such as
the name of the callback.

    HookpointError
    ├── CompileError (ValueError)             raised when callbacks are compiled, before the first step
    │   ├── UnknownPoint                      a method name that resembles a point, or another trainer's name for it
    │   ├── UnknownArgument (TypeError)       a handler takes an argument that its point does not provide
    │   ├── TwoSpellings                      a class with two spellings of the same point
    │   ├── MainPointTaken                    a second MainCallback, or another callback that handles a MainCallback's point
    │   ├── NotACallback (TypeError)          a class, or an object without handlers, in a list of callbacks
    │   ├── NoTrigger                         .when(...) on a callback without on_trigger
    │   ├── OrderError                        callbacks whose required order has a cycle or would split a pipeline
    │   ├── UnknownMetric                     a callback reads a metric that nothing in the run logs
    │   └── BadOption                         an unknown value for on_error or ranks
    ├── BadSchedule (ValueError)              a schedule that cannot work
    ├── BadGuard (TypeError)                  a function that cannot be guarded, or an invalid point name
    ├── BadConfig (ValueError)                a configuration from which no callbacks can be built
    ├── BadValue (TypeError)                  a value that cannot be logged, set or measured
    ├── BadLoop (ValueError)                  a call or an option that the loop does not support here
    │   ├── BadArgument (TypeError)           an argument with an invalid value or type: epochs=-1
    │   ├── BadData (TypeError)               data or a loader that cannot be used as given
    │   └── BadStrategy                       a parallel strategy that does not support this model or these options
    ├── BadRetention (ValueError)             an invalid rule that selects which checkpoints to keep
    ├── MissingMetric (KeyError)              a metric that is read before it is logged
    ├── MissingOutput (KeyError)              an output that the forward pass does not return
    ├── UnknownSetting (KeyError)             a name that is not in run.hyper or a loader's settings
    ├── NotShared (KeyError)                  a key that run.store does not have
    ├── UnknownCallback (KeyError)            a callback that the run does not have
    ├── OutsideIteration (AttributeError)     run.batch or a similar value, used outside an iteration
    ├── NotAssignable (AttributeError)        run.stop = True
    ├── NotOffered (AttributeError)           a callback uses an attribute that its run does not provide
    ├── OutsideRun (RuntimeError)             a Loop used before it is entered or after it is exited
    ├── NothingToSaveTo (RuntimeError)        run.save() without a store
    ├── NotSaveable (TypeError)               state that cannot be loaded safely
    ├── NotFinite (ValueError)                state with NaN or infinity, never saved as a good checkpoint
    ├── NonFiniteLoss (ValueError)            a training loss that is NaN or infinite
    ├── CannotSave (OSError)                  a folder that is not writable, or three failed saves in a row
    ├── DamagedCheckpoint (ValueError)        a checkpoint that does not match its manifest
    ├── CannotResume (RuntimeError)           a checkpoint that is damaged or does not fit the run
    ├── WorkdirInUse (RuntimeError)           another process is writing to this workdir
    ├── BadControlFile (ValueError)           a live-control file that is damaged, unsafe or not hookpoint's
    ├── NotTraining (RuntimeError)            a command to a folder in which no process is training
    ├── NotApplied (RuntimeError)             a command that was refused, withdrawn or lost
    ├── TooManyRetries (RuntimeError)         too many calls to run.retry() for one batch
    ├── DataTimeout (TimeoutError)            a loader that yields no batch in time
    ├── OutOfStep (RuntimeError)              ranks that wait for each other, or make different collective calls
    └── ReplicasDiffer (RuntimeError)         weights that should be equal on all ranks differ

    StopRun (Exception)                       raise it to stop the run; not an error
    HookpointWarning (UserWarning)            a problem that does not stop the run
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any

CURE_WIDTH = 9


def text(headline: str, **cures: str) -> str:
    """Return a message: a headline, followed by one line per fix. The verbs are aligned in a column."""
    return "\n".join([headline, *(f"  {verb:<{CURE_WIDTH}} {cure}" for verb, cure in cures.items())])


def listed(names: Iterable[str]) -> str:
    """Return the names sorted and separated by commas, or 'none'."""
    return ", ".join(sorted(names)) or "none"


class StopRun(Exception):
    """Raise this inside a run to stop the run.

    Open passes end, points such as on_epoch_end and on_run_end still fire, and the exception is not re-raised.
    """

    def __init__(self, reason: str = "StopRun was raised") -> None:
        super().__init__(reason)
        self.reason = reason


class HookpointWarning(UserWarning):
    """A problem that does not stop the run."""


class HookpointError(Exception):
    """The base class of every error that hookpoint raises. A message is a headline, followed by one line per fix.

    >>> print(errors.BadArgument("DumpTensors: names is empty.", give="names=['loss']"))
    DumpTensors: names is empty.
      give      names=['loss']
    """

    def __init__(self, headline: str = "", /, **cures: str) -> None:
        super().__init__(text(headline, **cures))

    def __str__(self) -> str:  # KeyError would quote the text and escape its line breaks
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:  # the constructors of subclasses do not take the message
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[HookpointError], args: tuple[Any, ...], state: dict[str, Any]) -> HookpointError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class CompileError(HookpointError, ValueError):
    """A list of callbacks is invalid. Raised before the first step."""


class UnknownPoint(CompileError):
    """A method name resembles a point, or is another trainer's name for a point."""

    def __init__(self, owner: str, name: str, meant: str, *, foreign: bool = False) -> None:
        why = f"is another trainer's name for {meant}." if foreign else f"is not a point. Did you mean {meant}?"
        declare = f'{owner}.points = ("{name}",) if it is yours'
        super().__init__(f"{owner}.{name} {why}", rename=f"{name} -> {meant}", declare=declare)
        self.owner, self.name, self.meant = owner, name, meant


class UnknownArgument(CompileError, TypeError):
    """A handler takes an argument that its point does not provide."""

    def __init__(self, owner: str, handler: str, argument: str, offered: Iterable[str], meant: str | None = None) -> None:
        hint = "" if meant is None else f" Did you mean '{meant}'?"
        super().__init__(
            f"{owner}.{handler} takes '{argument}', which this point does not provide.{hint}",
            provided=listed(offered),
            default=f"write '{argument}=None' if another trainer passes it",
        )
        self.owner, self.handler, self.argument = owner, handler, argument


class TwoSpellings(CompileError):
    """A class has two methods for one point."""

    def __init__(self, owner: str, point: str, first: str, second: str) -> None:
        super().__init__(f"{owner} defines {point} twice: {first} and {second}.", keep=f"one of them, preferably {point}")
        self.owner, self.point, self.spellings = owner, point, (first, second)


class MainPointTaken(CompileError):
    """A second callback defines forward, backward or the learning-rate step. Only one MainCallback may define them."""


class NotACallback(CompileError, TypeError):
    """An object in a list of callbacks has no handler for any point."""

    @classmethod
    def a_class(cls, kind: type) -> NotACallback:
        return cls(f"{kind.__name__} is a class; expected an instance.", write=f"{kind.__name__}()")

    @classmethod
    def a_configuration(cls, subject: object) -> NotACallback:
        is_file = isinstance(subject, PathLike) or (isinstance(subject, str) and "." in subject)
        config = repr(str(subject)) if is_file else f"[{subject!r}]"
        return cls(f"{subject!r} is a configuration, not a callback.", write=f"callbacks=hookpoint.build({config})")


class NoTrigger(CompileError):
    """A schedule was set on a callback that has no on_trigger."""

    def __init__(self, owner: str, schedule: object) -> None:
        super().__init__(
            f"{owner} has no on_trigger for {schedule} to call.",
            define=f"on_trigger in {owner}",
            write=f"@on(point, when={schedule}) above the method to schedule",
        )
        self.owner, self.schedule = owner, schedule


class OrderError(CompileError):
    """No order of the callbacks satisfies all `after`, `before` and `reads` declarations."""


class UnknownMetric(CompileError):
    """A callback reads a metric that nothing in the run logs."""

    def __init__(self, owner: str, name: str, known: Iterable[str], meant: str | None, *, validates: bool = True) -> None:
        hint = "" if meant is None else f" Did you mean '{meant}'?"
        cures = {} if validates else {"pass": "validation data: fit(train, val, epochs=...)"}
        cures["log"] = "it with run.log in a callback, or with hookpoint.log in the model"
        super().__init__(f"{owner} reads '{name}', which nothing logs.{hint}", known=listed(known), **cures)
        self.owner, self.name, self.meant = owner, name, meant


class BadOption(CompileError):
    """The `on_error` or `ranks` option of a callback has an invalid value."""

    def __init__(self, owner: str, option: str, value: object, known: Iterable[str]) -> None:
        super().__init__(f"{owner}.{option} is {value!r}.", choose=listed(repr(name) for name in known))


class BadSchedule(HookpointError, ValueError):
    """A schedule has invalid arguments, or combines clocks that cannot be combined."""


class BadGuard(HookpointError, TypeError):
    """A guard cannot wrap the function, or the name of the guard's point is invalid."""


class BadConfig(HookpointError, ValueError):
    """A configuration of callbacks is invalid. The message names the key and what it may contain."""


class BadValue(HookpointError, TypeError):
    """A value cannot be logged, set or measured."""


class BadLoop(HookpointError, ValueError):
    """The loop does not support a call or an option in this situation."""


class BadArgument(BadLoop, TypeError):
    """An argument has a value or a type that is not accepted."""


class BadData(BadLoop, TypeError):
    """Data or a loader cannot be used as given."""


class BadStrategy(BadLoop):
    """A parallel strategy does not support this model or these options."""


class BadRetention(HookpointError, ValueError):
    """A rule that selects which checkpoints to keep is invalid."""


class MissingMetric(HookpointError, KeyError):
    """A metric is read before it is logged."""

    def __init__(self, name: str, known: Iterable[str], *, reader: str = "", why: str = "", **cures: str) -> None:
        who = f"{reader} reads" if reader else "there is no metric"
        cures = {"known": listed(known), "log": f'run.log({{"{name}": value}}) before it is read', **cures}
        super().__init__(f"{who} '{name}'{f', {why}' if why else ''}.", **cures)
        self.name = name


class MissingOutput(HookpointError, KeyError):
    """A callback reads an output that the forward pass does not return."""

    def __init__(self, reader: str, name: str, kind: str, known: Iterable[str]) -> None:
        names = listed({str(key) for key in known})
        super().__init__(
            f"{reader} reads '{name}', which is not among the outputs.",
            known=names if names != "none" else f"none: the outputs are a {kind}, without names",
            set=f"run.outputs = {{'{name}': ...}} in the forward pass",
        )
        self.name = name


class UnknownSetting(HookpointError, KeyError):
    """`run.hyper` or a loader has no setting with this name."""

    def __init__(self, name: str, known: Iterable[str], **cures: str) -> None:
        cures = cures or {"register": f'run.hyper.register(ObjAttrParam(obj, "attribute", name="{name}"))'}
        super().__init__(f"there is no setting '{name}'.", known=listed(known), **cures)
        self.name = name


class NotShared(HookpointError, KeyError):
    """`run.store` has no such key."""

    def __init__(self, key: str, known: Iterable[str]) -> None:
        super().__init__(f"run.store has no key '{key}'.", known=listed(known), share=f"run.put('{key}', value)")


class UnknownCallback(HookpointError, KeyError):
    """The run has no such callback, or more than one."""


class OutsideIteration(HookpointError, AttributeError):
    """A per-iteration value was read or set outside an iteration."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"run.{name} exists only from on_iter_begin to on_iter_end; no iteration is running.",
            store=f"what later points need: run.store['{name}'] = ...",
        )
        self.name = name


class NotAssignable(HookpointError, AttributeError):
    """An attribute of the run cannot be assigned."""


class NotOffered(HookpointError, AttributeError):
    """A callback uses an attribute that its run does not provide.

    The callback is asynchronous, or it comes from another library and expects that library's trainer.
    """

    def __init__(self, callback: str, attribute: str, offered: Iterable[str], why: str = "", **cures: str) -> None:
        why = why or "which a hookpoint run does not offer"
        super().__init__(f"{callback} uses {attribute}, {why}.", offered=listed(offered), **cures)
        self.callback, self.attribute = callback, attribute


class OutsideRun(HookpointError, RuntimeError):
    """A loop was used before it was entered or after it was exited."""


class NothingToSaveTo(HookpointError, RuntimeError):
    """run.save() was called, but the loop has no store."""


class NotSaveable(HookpointError, TypeError):
    """The state contains a type that cannot be loaded without running code."""


class NotFinite(HookpointError, ValueError):
    """Weights, optimizer state or buffers contain NaN or infinity. Such state is never saved as a good checkpoint."""


class NonFiniteLoss(HookpointError, ValueError):
    """A training loss is NaN or infinite.

    `step` and `value` belong to the first such loss, or to the first mean that contains such a loss.
    """

    def __init__(self, value: float, *, epoch: int, step: int, now: int, what: str | None = None) -> None:
        late = f" Detected at step {now}, because training does not wait for values on the device." if now > step else ""
        super().__init__(
            f"{what or f'the loss is {value} at step {step}, in epoch {epoch}'}.{late}",
            resume="from the last good checkpoint",
            lower="the learning rate, clip gradients, or inspect this step's data",
            **({} if what is None else {"continue": 'anyway with Runner(on_nonfinite="warn")'}),
        )
        self.value, self.epoch, self.step = value, epoch, step


class CannotSave(HookpointError, OSError):
    """A checkpoint cannot be written. `errno` is the error number of the failed operation."""

    def __init__(self, headline: str = "", /, *, errno: int | None = None, **cures: str) -> None:
        super().__init__(headline, **cures)
        self.errno = errno


class DamagedCheckpoint(HookpointError, ValueError):
    """A checkpoint does not match its manifest, or has no manifest."""


class CannotResume(HookpointError, RuntimeError):
    """A checkpoint exists, but it is damaged or does not match this run."""


class WorkdirInUse(HookpointError, RuntimeError):
    """Another process, or another loop in this process, is writing to the workdir."""


class BadControlFile(HookpointError, ValueError):
    """A live-control file or folder is damaged, too large, a link, or writable by others."""


class NotTraining(HookpointError, RuntimeError):
    """No process is training in this folder, or the training process does not accept commands."""


class NotApplied(HookpointError, RuntimeError):
    """A command to a run in progress was refused, withdrawn or lost. `answer` contains the run's reply, if there is one."""

    def __init__(self, headline: str, answer: Any = None) -> None:
        super().__init__(headline)
        self.answer = answer


class TooManyRetries(HookpointError, RuntimeError):
    """run.retry() was called for one batch more often than the loop allows."""


class DataTimeout(HookpointError, TimeoutError):
    """A loader yielded no batch for `data_timeout_seconds`."""


class OutOfStep(HookpointError, RuntimeError):
    """The ranks are out of step: a rank waits for others that never arrive, or ranks make different collective calls."""


class ReplicasDiffer(HookpointError, RuntimeError):
    """Weights that should be equal on all ranks differ."""
