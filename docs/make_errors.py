"""Write errors.md from the classes of hookpoint.errors: `make docs`. A test keeps the page and the classes in step."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from hookpoint import errors

PAGE = Path(__file__).with_name("errors.md")
OF_NO_USE = ("LookupError", "Warning", "Exception", "BaseException", "object")

INTRODUCTION = """\
# Errors

<!-- Made by docs/make_errors.py from the classes of hookpoint.errors. Do not edit: run `make docs`. -->

A message says who, what, and what to type instead. Every class is in `hookpoint.errors`, and derives from `HookpointError` and
from the builtin one would catch; what the message is about is an attribute.

```python
from hookpoint import Callback, HookpointError, Loop, errors


class Greedy(Callback):
    def on_epoch_end(self, loss):
        print(loss)


try:
    Loop([Greedy()])
except errors.UnknownArgument as error:
    print(error)
    print(error.owner, error.argument, isinstance(error, TypeError), isinstance(error, HookpointError))
```

```text
Greedy.on_epoch_end takes 'loss', which this point does not provide.
  provided  epoch, logs, run
  default   write 'loss=None' if another trainer passes it
Greedy loss True True
```

An exception of one's own is not wrapped. It keeps its type, and a note says in which callback it was raised, at which point, in
which step, on which rank:

```python
class Fragile(Callback):
    def on_train_iter_end(self):
        raise OSError("the printer is on fire")


try:
    with Loop([Fragile()]) as run:
        for batch in run.batches([1, 2]):
            pass
except OSError as error:
    print(error.__notes__)
```

```text
['in callback Fragile at on_train_iter_end (step 1, rank 0)']
```

A callback that must not end a run has [another policy](writing-callbacks.md#when-a-callback-fails). A package that is missing
is an `ImportError`, or a line in the log where a run can do without; both name the extra to install: `pip install
'hookpoint[tensorboard]'`. A callback refuses a bad argument when it is created, with `BadArgument`: a `ValueError` and a
`TypeError`. The [command line](command-line.md#exit-codes) says each of these in one line and turns it into an exit code.
"""

GROUPS = {
    "Before the first step": {
        "CompileError": (
            "The class of those below; `except errors.CompileError` catches them all. They are raised by "
            "`Loop(...)`, `Runner(...)` and `Hooks(...)`; `hookpoint explain module:callbacks` finds them without "
            "training."
        ),
        "UnknownPoint": (
            "Rename the method, as the message says. If the point is your own, [declare it](guard.md#declare), or "
            "set `points` of the class."
        ),
        "UnknownArgument": (
            "Name what the point offers: [the table](points.md#in-the-order-they-fire). What lives in an "
            "iteration, such as `loss`, is not there at the end of an epoch; the mean of what was logged is in "
            "`logs`."
        ),
        "TwoSpellings": (
            "Two methods are one moment under two names, such as `on_train_batch_end` and `on_train_iter_end`. Keep one."
        ),
        "MainPointTaken": (
            "Forward, backward and the learning-rate step have [one owner](runner.md#the-step-as-a-callback). "
            "Derive from `MainCallback` and keep one of them, or do the work at another point."
        ),
        "NotACallback": (
            "An instance belongs there, not a class; a plain function needs `@on(point)`; a list in the list is a "
            "`CallbackPipeline`. A subclass of `Callback` needs a handler, `setup`, `run` or a state: methods in the way of "
            "another system are listed with what they are called here."
        ),
        "NoTrigger": (
            "`.when(...)` moves `on_trigger` and nothing else. Name the method so, or give the one method its "
            "[schedule](schedules.md#a-single-handler) with `@on(point, when=...)`."
        ),
        "OrderError": (
            "Drop one of the `after`, `before` or `reads` in the circle, or move the pipeline: "
            "[order](writing-callbacks.md#order-by-list-and-by-data)."
        ),
        "UnknownMetric": (
            "A `Runner` knows all names of this fit, and this is none of them. The message lists them, with the one that was "
            "probably meant: [metrics that are read](writing-callbacks.md#metrics-that-are-read)."
        ),
        "BadOption": "`on_error` is one of raise, warn, disable; `ranks` one of all, chief, local_chief.",
        "BadSchedule": (
            "Raised where it is written: `Every(steps=0)`, two clocks in one schedule, `and` in place of `&`. "
            "[Schedules](schedules.md#the-schedules) has the forms there are."
        ),
        "BadGuard": (
            "A guarded function needs a parameter `callbacks`; `install` needs the name of something that is "
            "there: [points of your own](guard.md)."
        ),
        "BadLoop": (
            "The loop cannot do what was requested: a callback needs a workdir, an optimizer or outputs that the run does "
            "not have, or a [verdict](verdicts.md) comes too late for its iteration. The three classes below derive from it."
        ),
        "BadArgument": (
            "An argument of a callback, a monitor, `Loop`, `Runner`, `fit`, `run.epochs` or `run.batches` has a value or a "
            "type that is not accepted. The message lists what is. It is a `ValueError` and a `TypeError`."
        ),
        "BadData": (
            "`fit`, `validate` or `predict` cannot use the data as given: a tuple of tensors needs a batch size, tensors "
            "differ in length, or a loader yields no batch."
        ),
        "BadStrategy": (
            "A [parallel strategy](strategies.md) cannot train this model, or does not support one of the options. "
            "The message names both."
        ),
        "BadRetention": "A rule of a saver that would keep no checkpoint at all. Give numbers above 0.",
    },
    "While it runs": {
        "BadValue": (
            "`run.log` takes real numbers and tensors of one element, `run.hyper` finite numbers of the setting's "
            "kind, an inferencer an entry for each sample."
        ),
        "MissingMetric": (
            "Nobody has logged it, or not yet. The message lists the names there are. Values of a validation are "
            "called `val_...`, and are there at `on_epoch_end`. Raised after the first epoch that should have logged a "
            "metric that a callback [reads](writing-callbacks.md#metrics-that-are-read)."
        ),
        "MissingOutput": (
            "The forward did not return an output of this name. Return a dict with it, or give the inferencer a function."
        ),
        "UnknownSetting": (
            "[Register it](own-loop.md#settings), or declare it in the [loader's "
            "settings](data-points.md#settings-from-the-training-to-the-data)."
        ),
        "NotShared": "Some other callback was to put it there, and has not: mind the order, or ask `run.store.get(key)`.",
        "OutsideIteration": (
            "`run.batch`, `run.outputs` and `run.loss` are let go of when an iteration ends, so that nothing "
            "keeps their memory. Keep what later points need in `run.store`, or log it."
        ),
        "NotAssignable": (
            "A method was assigned to, a clock was set, or a name was misspelt. What callbacks share goes into `run.store`."
        ),
        "OutsideRun": (
            "Use `run` inside of `with Loop(...) as run:`. A run inside of a run needs a `Loop` or `Runner` of its own."
        ),
        "NonFiniteLoss": (
            "A Runner raises it when [all losses of two log steps in a row, or of an "
            "epoch](runner.md#losses-that-are-not-finite), are NaN or infinite; `LossMonitor` and "
            "`TerminateOnNaN(raise_error=True)` when one is. The last good checkpoint stays the newest: start again from it "
            "with a lower learning rate or clipped gradients."
        ),
        "TooManyRetries": (
            "Each attempt of one batch asked for [another](verdicts.md#skipping-and-trying-again). Ask for "
            "`skip_batch` after some, or allow more with `max_retries=`."
        ),
        "DataTimeout": (
            "The message names the data worker, or shows where the training process waits. Resume the run; if the data is only "
            "slow, allow a longer `data_timeout_seconds`: [a run that hangs](runner.md#a-run-that-hangs)."
        ),
        "OutOfStep": (
            "The message says what each process was about to do, in which callback and at which point, or who waited in vain. "
            "What all of them have to do must not depend on what one alone knows: "
            "[several processes](verdicts.md#in-several-processes)."
        ),
    },
    "Saving and going on": {
        "NothingToSaveTo": ('A saver, or `run.save()`, needs `workdir="runs/name"`.'),
        "NotSaveable": (
            "A `state_dict()` holds an object that only pickle could keep. Keep plain types, arrays and tensors. "
            "It is found before the first step."
        ),
        "NotFinite": (
            "The model has diverged, and such state is [never saved as "
            "good](checkpoints.md#when-something-goes-wrong). `CheckNumerics` raises it as soon as it sees one."
        ),
        "CannotSave": (
            "The disk is full, gone or read-only. Make room and start again: the run goes on from the last good "
            "checkpoint, which the message names."
        ),
        "DamagedCheckpoint": (
            "Raised where this one checkpoint was asked for; `hookpoint verify RUN` looks at all of them. A run "
            "that resumes by itself takes the one before."
        ),
        "CannotResume": (
            "Nothing good is left, or the model or the data are others than those that were saved; the message "
            'has a table. Go back to what was saved, or start anew with `resume="never"`: '
            "[resuming](checkpoints.md#resuming)."
        ),
        "WorkdirInUse": (
            "The message has the process that writes there. Wait for it, stop it, or use another workdir. The "
            "lock of a process that has died is taken over."
        ),
    },
    "The rest": {
        "HookpointError": (
            "The root of all above: `except hookpoint.HookpointError`. `cb.StepTooSlow` of "
            "[StepTimeout](profiling.md#when-nothing-moves) and what `hookpoint.plot` refuses derive from it, "
            "too."
        ),
        "StopRun": ('`raise StopRun("why")` ends a run as [`run.stop("why")`](verdicts.md) does, from code that has no `run`.'),
        "HookpointWarning": (
            "Said with Python's `warnings`, so that a filter can silence it or make it an error: "
            '`warnings.simplefilter("error", HookpointWarning)`.'
        ),
    },
}


def page() -> str:
    """Return the page as it should be."""
    named = {name for group in GROUPS.values() for name in group}
    there = {name for name, one in vars(errors).items() if _is_ours(one)}
    if named != there:
        raise SystemExit(f"docs/make_errors.py: no words for {sorted(there - named)}; no class {sorted(named - there)}")
    return "\n".join([INTRODUCTION, *(line for title, group in GROUPS.items() for line in _group(title, group))])


def _group(title: str, group: dict[str, str]) -> Iterator[str]:
    yield from (f"## {title}", "")
    for name, advice in group.items():
        one = getattr(errors, name)
        yield from (f"### {name}", "", f"{' '.join((one.__doc__ or '').split())}{_also(one)}", "", advice, "")


def _also(one: type) -> str:
    """Say as what else it can be caught."""
    builtin = [base.__name__ for base in one.__mro__ if base.__module__ == "builtins" and base.__name__ not in OF_NO_USE]
    return f" Caught as {' and '.join(f'`{name}`' for name in builtin)}, too." if builtin else ""


def _is_ours(one: object) -> bool:
    return inspect.isclass(one) and issubclass(one, Exception) and one.__module__ == errors.__name__


if __name__ == "__main__":
    PAGE.write_text(page())
