"""Check the arguments of a Runner and of its methods before training starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hookpoint.core.callback.main_callback import MainCallback, overrides
from hookpoint.core.errors import BadArgument, BadData
from hookpoint.core.log.logbook import KNOWN_PREFIXES, renamed
from hookpoint.core.logger import logger
from hookpoint.core.loop.evaluation import LOADER_CHECK
from hookpoint.core.loop.options import LoopOptions
from hookpoint.core.run.run import Run
from hookpoint.core.run.verdicts import Reached
from hookpoint.core.schedule.when import When
from hookpoint.engine.step.modules import check_optimizer

CALLS = {"model": "{0}(...)", "optimizer": "{0}(model.parameters(), lr=0.1)", "lr_scheduler": "{0}(optimizer, ...)"}
MULTIPLE = {
    "write": 'a dict, {"body": ..., "head": ...}, and main=a MainCallback that uses each of them',
    "give": "or the object itself, if there is only one",
}


def check_instances(**arguments: Any) -> None:
    """Raise BadArgument if the model, optimizer, criterion or scheduler is a class or a list, or has the wrong type."""
    for name, argument in arguments.items():
        objects = argument.values() if isinstance(argument, Mapping) else [argument]
        kind = next((one for one in objects if isinstance(one, type)), None)
        if kind is not None:
            write = CALLS.get(name, "{0}()").format(kind.__name__)
            raise BadArgument(f"{name} must be an instance, got the class {kind.__name__}.", write=f"{name}={write}")
        if isinstance(argument, list | tuple) and name != "model":
            raise BadArgument(f"{name} must be one object or a dict of objects, got a {type(argument).__name__}.", **MULTIPLE)
    criterion = arguments["criterion"]
    if criterion is not None and not callable(criterion):
        cure = "a function (outputs, targets) -> loss, such as torch.nn.CrossEntropyLoss()"
        raise BadArgument(f"criterion must be callable, got {criterion!r}.", give=cure)
    for name, example in (("optimizer", "torch.optim.SGD"), ("lr_scheduler", "torch.optim.lr_scheduler.StepLR")):
        argument = arguments[name]
        for given in argument.values() if isinstance(argument, Mapping) else [argument]:
            if given is not None and not hasattr(given, "step"):
                cure = CALLS[name].format(example)
                raise BadArgument(f"{name} must have a step method, got {given!r}.", give=cure)


def check_schedulers(lr_scheduler: Any, optimizer: Any, main: MainCallback | None) -> None:
    """Raise BadArgument if a scheduler changes none of the optimizers. Wrappers share the groups of the inner optimizer.

    A main callback with its own step may use further optimizers, unless the Runner has a dict of them.
    """
    optimizers = list(optimizer.values() if isinstance(optimizer, Mapping) else [optimizer])
    has_own_step = not isinstance(optimizer, Mapping) and overrides(main, "on_iter_backward")
    if has_own_step or not all(hasattr(one, "param_groups") for one in optimizers):
        return
    own = {id(group) for one in optimizers for group in one.param_groups}
    for scheduler in lr_scheduler.values() if isinstance(lr_scheduler, Mapping) else [lr_scheduler]:
        groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", ())
        if groups and not any(id(group) in own for group in groups) and not _is_wrapped(scheduler.optimizer, optimizers):
            kind = type(scheduler).__name__
            raise BadArgument(
                f"the lr_scheduler {kind} was created for a different optimizer.",
                write=f"optimizer=optimizer, lr_scheduler={kind}(optimizer, ...)",
            )


def _is_wrapped(optimizer: Any, wrappers: list[Any]) -> bool:
    """Return whether one of the wrappers may contain an optimizer. An object with slots does not show what it contains."""
    return any(not hasattr(one, "__dict__") or any(value is optimizer for value in vars(one).values()) for one in wrappers)


def check_parts(runner: Any, created: LoopOptions) -> None:
    """Raise BadArgument if the Runner has no optimizer, or if one of its attributes was replaced and training would ignore it.

    `created` contains the objects that the Runner was created with. A new model is accepted if the optimizer changes it.
    """
    if created.optimizer is None:
        raise BadArgument("fit needs an optimizer.", write="Runner(model, optimizer, criterion)")
    for name in ("optimizer", "lr_scheduler"):
        if getattr(runner, name) is not getattr(created, name):
            problem = f"runner.{name} was replaced, but fit would still use the {name} that the Runner was created with"
            raise BadArgument(f"{problem}.", create=f"a new Runner with {name}=...")
    if runner.model is not created.model:
        check_optimizer(runner.model, created.optimizer)


def check_steps(optimizer: Any) -> None:
    """Raise BadArgument if the default step cannot use the optimizer.

    The default step cannot use a dict of optimizers, an optimizer that needs a closure, or an optimizer without param_groups.
    """
    kind, write = type(optimizer).__name__, "main=a MainCallback whose on_iter_backward performs the step"
    if isinstance(optimizer, Mapping):
        what = "there are multiple optimizers, and a Runner cannot decide when to call step() on each of them."
        write = "a MainCallback whose on_iter_backward uses run.optimizer['name']"
    elif _needs_closure(optimizer):
        what = f"{kind} needs a closure: it computes the loss multiple times per step, but the default step computes it once."
        write = "main=a MainCallback whose on_iter_backward calls run.optimizer.step(closure)"
    elif not hasattr(optimizer, "param_groups"):
        what = f"{kind} has no param_groups, which the default step needs to clear gradients."
    else:
        return
    raise BadArgument(what, write=write)


def _needs_closure(optimizer: Any) -> bool:
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except ValueError:  # a step method written in C has no signature
        return False
    return closure is not None and closure.default is closure.empty


def check_validation(validate_every: Any, val: Any) -> None:
    """Raise BadArgument if there is a schedule for validation but no data, or if the schedule is not a When.

    A number is rejected too, because it could mean epochs or steps.
    """
    if validate_every is None:
        return
    if not isinstance(validate_every, When):
        number = validate_every if isinstance(validate_every, int) and validate_every > 0 else 2
        cure = f"validate_every=Every(epochs={number}), or Every(steps=...)"
        raise BadArgument(f"validate_every must be a schedule, got {validate_every!r}.", write=cure)
    if val is None:
        raise BadArgument("validate_every needs validation data.", write="fit(train, val, validate_every=..., epochs=...)")


def warn_if_never_validated(run: Run, validate_every: When | None, *, has_fired: bool) -> None:
    """Warn at the end of a fit if `validate_every` was never due, unless the run was stopped early or has validated before."""
    was_cut_short = run.stop_reason is not None and not isinstance(run.stop_reason, Reached)
    if validate_every is None or has_fired or was_cut_short or not run.step or not run.is_chief:
        return
    if not any(name.startswith(KNOWN_PREFIXES["val"]) for name in run.metrics):
        line = "validation never ran: validate_every=%r was not due in %d steps (%d epochs)"
        logger.warning(line, validate_every, run.step, run.epoch)


def check_epoch(run: Run, *, is_empty: bool) -> None:
    """Raise BadData if a training pass had no batch. Warn if a custom on_iter_backward made no step in the first epoch."""
    if is_empty:
        raise BadData(f"the training data yielded no batch in epoch {run.epoch}.", check=LOADER_CHECK)
    has_no_step = run.epoch == 1 and run.iteration and not run.step and run.stop_reason is None
    if has_no_step and run.is_chief and overrides(run.hooks.main, "on_iter_backward"):
        line = "%s.on_iter_backward made no optimizer step in %d batches; call run.backward() and run.optimizer_step()"
        logger.warning(line, type(run.hooks.main).__name__, run.iteration)


def stop_at(run: Run, max_steps: int | None, *, before: bool = False) -> None:
    """Stop a run that has reached max_steps. With `before=True`, also warn that there is nothing to train."""
    if before and run.step and run.is_chief:
        logger.warning("max_steps=%s is already reached: nothing to train; pass a higher value to extend the run", max_steps)
    run.stop(Reached(f"max_steps={max_steps} is reached"), same_on_all_ranks=True)


def check_prefix(prefix: Any) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Check a prefix, and return a function that adds it to the names of validation metrics."""
    if not isinstance(prefix, str) or not prefix:
        raise BadArgument(f"prefix must be a non-empty string, got {prefix!r}.", write='prefix="test"')
    return partial(renamed, prefix=prefix) if prefix != "val" else dict


def measured(run: Run, values: Mapping[str, Any]) -> dict[str, float]:
    """Return the results of `validate` as floats. Warn if there are none because the Runner has nothing to measure."""
    if not values and run.criterion is None and run.is_chief:
        line = "validate has no results: pass criterion=... or metrics={...} to the Runner, or log values in callbacks"
        logger.warning(line)
    return {name: float(value) for name, value in values.items()}


def check_counts(**counts: Any) -> None:
    for name, number in counts.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise BadArgument(f"{name} must be an integer >= 0, got {number!r}.")
