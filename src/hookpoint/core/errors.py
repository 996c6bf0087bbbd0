"""Every error and warning hookpoint raises, and their texts.

A text says who, what, what was expected and what to type instead. Offending objects are attributes.

    HookpointError
    ├── CompileError (ValueError)             found when callbacks are compiled, before the first step
    │   ├── UnknownPoint                      a method's name is nearly a point, or another trainer's name for one
    │   ├── UnknownArgument (TypeError)       a handler names what its point does not offer
    │   ├── TwoSpellings                      one class spells one point twice
    │   ├── MainPointTaken                    a second MainCallback, or its points in another callback
    │   ├── NotACallback (TypeError)          a class, or an object without a handler, in a list of callbacks
    │   ├── NoTrigger                         .when(...) on a callback without on_trigger
    │   ├── OrderError                        a cycle, or a callback that would have to leave its pipeline
    │   ├── UnknownMetric                     a metric is read that nothing in the run logs
    │   └── BadOption                         on_error or ranks has a value nobody knows
    ├── BadSchedule (ValueError)              a schedule that can never be meant
    ├── BadGuard (TypeError)                  a guard around something it cannot see into
    ├── BadValue (TypeError)                  a value that cannot be logged, set or measured
    ├── BadLoop (ValueError)                  a request that a loop cannot honour
    │   ├── BadArgument (TypeError)           an argument with a value or type that is not accepted: epochs=-1
    │   ├── BadData (TypeError)               data or a loader that cannot be used as given
    │   └── BadStrategy                       a parallel strategy that cannot train this model, or not with these options
    ├── BadRetention (ValueError)             a rule of which checkpoints stay that can never be meant
    ├── MissingMetric (KeyError)              a metric that was to be read is not there
    ├── MissingOutput (KeyError)              an output that was to be measured is not there
    ├── UnknownSetting (KeyError)             run.hyper, or a loader's settings, has no such name
    ├── NotShared (KeyError)                  run.store has no such key
    ├── OutsideIteration (AttributeError)     run.batch and the like, read when there is no iteration
    ├── NotAssignable (AttributeError)        run.stop = True
    ├── OutsideRun (RuntimeError)             a Loop used before it is entered or after it is left
    ├── NothingToSaveTo (RuntimeError)        run.save() without a store
    ├── NotSaveable (TypeError)               state that could not be read back safely
    ├── NotFinite (ValueError)                state with NaN or infinity in it, which is never saved as good
    ├── NonFiniteLoss (ValueError)            a training loss is NaN or infinite
    ├── CannotSave (OSError)                  nothing can be written, or three checkpoints in a row could not be
    ├── DamagedCheckpoint (ValueError)        a checkpoint is not what its manifest says
    ├── CannotResume (RuntimeError)           there is something to resume from, and it does not fit or is damaged
    ├── WorkdirInUse (RuntimeError)           another process is writing to this workdir
    ├── TooManyRetries (RuntimeError)         run.retry() asked again and again
    ├── DataTimeout (TimeoutError)            a loader gave no batch in time
    └── OutOfStep (RuntimeError)              the processes of a run are not at the same place

    StopRun (Exception)                       raise it to stop the run; no error
    HookpointWarning (UserWarning)            what does not stop a run but should be known
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CURE_WIDTH = 9


def text(headline: str, **cures: str) -> str:
    """Return a message: one headline, then a line per cure, its verb in a column of its own."""
    return "\n".join([headline, *(f"  {verb:<{CURE_WIDTH}} {cure}" for verb, cure in cures.items())])


def listed(names: Iterable[str]) -> str:
    """Return the names as a sentence part, sorted, or 'none'."""
    return ", ".join(sorted(names)) or "none"


class StopRun(Exception):
    """Raise it anywhere inside a run to stop the run: what is open is closed, the end points fire, nothing is re-raised."""

    def __init__(self, reason: str = "StopRun was raised") -> None:
        super().__init__(reason)
        self.reason = reason


class HookpointWarning(UserWarning):
    """Something that does not stop a run but that its owner should know."""


class HookpointError(Exception):
    """The base class of every error that hookpoint raises: one headline, then one line per cure, its verb in a column.

    >>> print(errors.BadArgument("DumpTensors: names is empty.", give="names=['loss']"))
    DumpTensors: names is empty.
      give      names=['loss']
    """

    def __init__(self, headline: str = "", /, **cures: str) -> None:
        super().__init__(text(headline, **cures))

    def __str__(self) -> str:  # KeyError would show the text quoted, its line breaks escaped
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:  # its text is made of other arguments than the one it keeps
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[HookpointError], args: tuple[Any, ...], state: dict[str, Any]) -> HookpointError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class CompileError(HookpointError, ValueError):
    """A list of callbacks cannot be compiled."""


class UnknownPoint(CompileError):
    """A method's name is nearly a point's, or another trainer's name for one."""

    def __init__(self, owner: str, name: str, meant: str, *, foreign: bool = False) -> None:
        why = "is another trainer's name" if foreign else "is no point"
        super().__init__(
            f"{owner}.{name} {why}; {meant} is{' ours' if foreign else ''}.",
            rename=f"{name} -> {meant}",
            declare=f'{owner}.points = ("{name}",) if it is yours',
        )
        self.owner, self.name, self.meant = owner, name, meant


class UnknownArgument(CompileError, TypeError):
    """A handler names an argument that its point does not offer."""

    def __init__(self, owner: str, handler: str, argument: str, offered: Iterable[str]) -> None:
        super().__init__(
            f"{owner}.{handler} asks for '{argument}', which this point does not offer.",
            offered=listed(offered),
            default=f"give it one, '{argument}=None', if another trainer passes it",
        )
        self.owner, self.handler, self.argument = owner, handler, argument


class TwoSpellings(CompileError):
    """One class has two methods for one point."""

    def __init__(self, owner: str, point: str, first: str, second: str) -> None:
        super().__init__(
            f"{owner} spells {point} twice: {first} and {second}.", keep=f"one of them; {point} is our name for it"
        )
        self.owner, self.point, self.spellings = owner, point, (first, second)


class MainPointTaken(CompileError):
    """Forward, backward and the learning-rate step have one owner, and there were two."""

    @classmethod
    def two(cls, first: str, second: str) -> MainPointTaken:
        return cls(
            f"two MainCallbacks: {first} and {second}; a step is computed once.",
            keep="one of them, or make one of the two an ordinary Callback",
        )

    @classmethod
    def outsider(cls, owner: str, point: str) -> MainPointTaken:
        return cls(
            f"{owner}.{point} belongs to the MainCallback alone; otherwise a step would be computed twice.",
            derive=f"class {owner}(MainCallback), or move the work to another point",
        )


class NotACallback(CompileError, TypeError):
    """Something in a list of callbacks cannot be called at any point."""

    @classmethod
    def a_class(cls, given: type) -> NotACallback:
        return cls(f"{given.__name__} is a class where an instance belongs.", write=f"{given.__name__}()")

    @classmethod
    def a_function(cls, name: str) -> NotACallback:
        return cls(f"the function {name} does not say at which point it runs.", write=f'@on("on_epoch_end") above def {name}')

    @classmethod
    def a_pipeline(cls, name: str, method: str) -> NotACallback:
        return cls(
            f"{name}.{method} would never be called: a pipeline runs its callbacks and nothing else.",
            move=f"{method} into a callback of the pipeline",
            override="or run(self, hookpoint=None, logs=None), which gets every point",
        )

    @classmethod
    def a_thing(cls, given: Any) -> NotACallback:
        if isinstance(given, list | tuple):
            return cls("a list of callbacks stands in a list of callbacks.", write="*callbacks, or CallbackPipeline(...)")
        return cls(
            f"{given!r} is no callback: it has no method named after a point.",
            write="a class with a method such as on_epoch_end(self, run)",
        )


class NoTrigger(CompileError):
    """A schedule was given to a callback that has nothing to trigger."""

    def __init__(self, owner: str, schedule: object) -> None:
        super().__init__(
            f"{owner} has no on_trigger that {schedule} could move.",
            define=f"on_trigger in {owner}",
            write=f"@on(point, when={schedule}) above the one method that is to run then",
        )
        self.owner, self.schedule = owner, schedule


class OrderError(CompileError):
    """Declared constraints leave no order."""

    @classmethod
    def cycle(cls, point: str, names: Iterable[str]) -> OrderError:
        return cls(
            f"no order at {point}: {' -> '.join(names)} each wait for the next.", drop="one of their after, before or reads"
        )

    @classmethod
    def pipeline(cls, name: str, pipeline: str, why: str, *, behind: str) -> OrderError:
        return cls(
            f"{name} {why}, but stands in {pipeline}, which it cannot leave.",
            move=f"{pipeline} behind {behind} in the list, or {name} out of {pipeline}",
        )


class UnknownMetric(CompileError):
    """A metric is read that nothing in the run logs."""

    def __init__(self, owner: str, name: str, known: Iterable[str], meant: str | None, *, validates: bool = True) -> None:
        hint = "" if meant is None else f" Did you mean '{meant}'?"
        cures = {} if validates else {"give": "validation data: fit(train, val, epochs=...)"}
        cures["log"] = "it in a callback, with run.log, or in the model, with hookpoint.log"
        super().__init__(f"{owner} reads '{name}', which nothing logs.{hint}", known=listed(known), **cures)
        self.owner, self.name, self.meant = owner, name, meant


class BadOption(CompileError):
    """An option of a callback has a value nobody knows."""

    def __init__(self, owner: str, option: str, value: object, known: Iterable[str]) -> None:
        super().__init__(f"{owner}.{option} is {value!r}.", choose=listed(repr(name) for name in known))


class BadSchedule(HookpointError, ValueError):
    """A schedule that can never be meant."""


class BadGuard(HookpointError, TypeError):
    """A guard around something it cannot see into."""


class BadValue(HookpointError, TypeError):
    """A value that cannot be logged, set or measured."""


class BadLoop(HookpointError, ValueError):
    """A loop was asked for what cannot be."""


class BadArgument(BadLoop, TypeError):
    """An argument has a value or a type that is not accepted."""


class BadData(BadLoop, TypeError):
    """Data, or a loader, cannot be used as given."""


class BadStrategy(BadLoop):
    """A parallel strategy cannot train this model, or not with these options."""


class BadRetention(HookpointError, ValueError):
    """A rule of which checkpoints stay that can never be meant."""


class MissingMetric(HookpointError, KeyError):
    """A metric that was to be read is not there."""

    def __init__(self, name: str, known: Iterable[str], *, reader: str = "", why: str = "", **cures: str) -> None:
        who = f"{reader} reads" if reader else "there is no metric"
        cures = {"known": listed(known), "log": f'run.log({{"{name}": value}}) before it is read', **cures}
        super().__init__(f"{who} '{name}'{f', {why}' if why else ''}.", **cures)
        self.name = name


class MissingOutput(HookpointError, KeyError):
    """An output that was to be measured is not among those of the forward."""

    def __init__(self, reader: str, name: str, kind: str, known: Iterable[str]) -> None:
        names = listed({str(one) for one in known})
        super().__init__(
            f"{reader} reads '{name}', which is not among the outputs.",
            known=names if names != "none" else f"none: the outputs are a {kind}, without names",
            set=f"run.outputs = {{'{name}': ...}} in the forward",
        )
        self.name = name


class UnknownSetting(HookpointError, KeyError):
    """run.hyper, or a loader, has no setting of that name."""

    def __init__(self, name: str, known: Iterable[str], **cures: str) -> None:
        cures = cures or {"register": f'run.hyper.register(ObjAttrParam(obj, "attribute", name="{name}"))'}
        super().__init__(f"there is no setting '{name}'.", known=listed(known), **cures)
        self.name = name


class NotShared(HookpointError, KeyError):
    """Nothing is shared under that key."""

    def __init__(self, key: str, known: Iterable[str]) -> None:
        super().__init__(f"nothing is shared under '{key}'.", known=listed(known), share=f"run.put('{key}', value)")


class OutsideIteration(HookpointError, AttributeError):
    """A value of the iteration was read or set when there is no iteration."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"run.{name} is there from on_iter_begin to on_iter_end only; no iteration is running now.",
            keep=f"what later points need: run.store['{name}'] = ...",
        )
        self.name = name


class NotAssignable(HookpointError, AttributeError):
    """An attribute of the run was assigned that is not to be assigned."""

    @classmethod
    def method(cls, name: str, call: str) -> NotAssignable:
        return cls(f"run.{name} is a method; assigning to it would do nothing.", call=call)

    @classmethod
    def kept(cls, name: str) -> NotAssignable:
        return cls(f"run.{name} is kept by the loop; it can be read, not set.")

    @classmethod
    def unknown(cls, name: str) -> NotAssignable:
        return cls(f"the run has no attribute '{name}'.", share=f"run.store['{name}'] = value")


class OutsideRun(HookpointError, RuntimeError):
    """A loop was used before it was entered or after it was left."""


class NothingToSaveTo(HookpointError, RuntimeError):
    """run.save() was called, and the loop has no store."""


class NotSaveable(HookpointError, TypeError):
    """A part of the state is of a type that cannot be read back without running code."""


class NotFinite(HookpointError, ValueError):
    """Weights, optimizer state or buffers hold NaN or infinity; such state is never saved as good."""


class NonFiniteLoss(HookpointError, ValueError):
    """Training losses are NaN or infinite. `step` and `value` are those of the first one, or of the mean, that was seen."""

    def __init__(self, value: float, *, epoch: int, step: int, now: int, what: str | None = None) -> None:
        late = f" Seen at step {now}: values are read late, so that no step waits for the device." if now > step else ""
        super().__init__(
            f"{what or f'the loss is {value} at step {step}, in epoch {epoch}'}.{late}",
            resume="from the last good checkpoint",
            lower="the learning rate, clip gradients, or look at the data of this step",
            **({} if what is None else {"continue": 'in spite of it with Runner(on_nonfinite="warn")'}),
        )
        self.value, self.epoch, self.step = value, epoch, step


class CannotSave(HookpointError, OSError):
    """Nothing can be written where checkpoints belong. `errno` is that of the operation that failed."""

    def __init__(self, headline: str = "", /, *, errno: int | None = None, **cures: str) -> None:
        super().__init__(headline, **cures)
        self.errno = errno


class DamagedCheckpoint(HookpointError, ValueError):
    """A checkpoint is not what its manifest says, or has none."""


class CannotResume(HookpointError, RuntimeError):
    """There is something to resume from, and it does not fit this run or is damaged."""


class WorkdirInUse(HookpointError, RuntimeError):
    """Another process, or another loop of this one, is writing to the workdir."""


class TooManyRetries(HookpointError, RuntimeError):
    """run.retry() was asked for one batch more often than the loop allows."""


class DataTimeout(HookpointError, TimeoutError):
    """A loader gave no batch for `data_timeout_seconds`."""


class OutOfStep(HookpointError, RuntimeError):
    """The processes of a run are not at the same place: one waits for the others, or talks of something else."""
