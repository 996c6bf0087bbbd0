"""Checks of what a fit is given, before anything runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hookpoint.core.callback.main_callback import MainCallback
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.logbook import renamed
from hookpoint.core.run.run import Run
from hookpoint.core.run.verdicts import Reached
from hookpoint.core.schedule.when import When

logger = logging.getLogger("hookpoint")

CALLS = {
    "model": "{0}(...)",
    "optimizer": "{0}(model.parameters(), lr=0.1)",
    "lr_scheduler": "{0}(optimizer, ...)",
}
SEVERAL = {
    "write": 'a dict, {"body": ..., "head": ...}, and main=a MainCallback that uses each of them',
    "give": "the object itself, if there is one only",
}


def overrides(main: Any, *methods: str) -> bool:
    """Say whether a MainCallback has its own version of any of these methods."""
    return any(getattr(type(main), method) is not getattr(MainCallback, method) for method in methods)


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value of an option that is none of its choices."""
    if value not in choices:
        raise BadArgument(f"{name}={value!r}.", choose=" or ".join(map(repr, choices)))


def check_instances(**given: Any) -> None:
    """Refuse a class, or a list, where a model, optimizer, criterion or scheduler belongs."""
    for name, one in given.items():
        several = one.values() if isinstance(one, Mapping) else [one]
        wrong = next((each for each in several if isinstance(each, type)), None)
        if wrong is not None:
            write = CALLS.get(name, "{0}()").format(wrong.__name__)
            raise BadArgument(f"{name} must be an instance, got the class {wrong.__name__}.", write=f"{name}={write}")
        if isinstance(one, list | tuple) and name != "model":
            raise BadArgument(f"{name} must be one object or a dict of them, got a {type(one).__name__}.", **SEVERAL)
    if given["criterion"] is not None and not callable(given["criterion"]):
        cures = {"give": "a function (outputs, targets) -> loss, such as torch.nn.CrossEntropyLoss()"}
        raise BadArgument(f"criterion must be callable, got {given['criterion']!r}.", **cures)
    if (
        given["optimizer"] is not None
        and not isinstance(given["optimizer"], Mapping)
        and not hasattr(given["optimizer"], "step")
    ):
        raise BadArgument(
            f"optimizer must have a step method, got {given['optimizer']!r}.", give=CALLS["optimizer"].format("torch.optim.SGD")
        )


def check_steps(optimizer: Any) -> None:
    """Refuse an optimizer that the default step cannot use: a mapping of several, or one that computes the loss itself."""
    if not isinstance(optimizer, Mapping):
        if _needs_closure(optimizer):
            raise BadArgument(
                f"{type(optimizer).__name__} computes the loss several times in a step; the default step does so once.",
                write="main=a MainCallback whose on_iter_backward calls run.optimizer.step(closure)",
            )
        if not hasattr(optimizer, "param_groups"):
            raise BadArgument(
                f"{type(optimizer).__name__} has no param_groups, whose gradients the default step clears.",
                write="main=a MainCallback whose on_iter_backward makes the step",
            )
    else:
        raise BadArgument(
            "several optimizers are given; when each of them steps only their owner knows.",
            write="a MainCallback whose on_iter_backward uses run.optimizer['name']",
        )


def _needs_closure(optimizer: Any) -> bool:
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except ValueError:  # a builtin does not tell what it takes
        return False
    return closure is not None and closure.default is closure.empty


def check_schedule(name: str, given: Any) -> None:
    """Refuse a number where a schedule belongs: of epochs or of steps, nobody could tell."""
    if given is not None and not isinstance(given, When):
        number = given if isinstance(given, int) and given > 0 else 2
        raise BadArgument(f"{name}={given!r} is no schedule.", write=f"{name}=Every(epochs={number}), or Every(steps=...)")


def stop_at(run: Run, max_steps: int | None, *, before: bool = False) -> None:
    """End a fit that has had its steps: it is finished. One that has had them before it begins says so."""
    if before and run.step and run.is_chief:
        logger.warning("max_steps=%s is reached already, and nothing is trained; a higher max_steps extends the run", max_steps)
    run.stop(Reached(f"max_steps={max_steps} is reached"), same_on_all_ranks=True)


def asks_in_epochs(schedule: When | None, val: Any) -> bool:
    """Say whether a schedule of validation may be due in the middle of epochs."""
    return schedule is not None and val is not None and "iter" in schedule.moments()


def check_prefix(prefix: Any) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return what gives the metrics of a validation pass the names with this prefix, or refuse what is none."""
    if not isinstance(prefix, str) or not prefix:
        raise BadArgument(f"prefix must be a string that is not empty, got {prefix!r}.", write='prefix="test"')
    return partial(renamed, prefix=prefix) if prefix != "val" else dict


def check_counts(**counts: Any) -> None:
    """Refuse a number of epochs or steps that is none."""
    for name, number in counts.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise BadArgument(f"{name}={number!r}.", give="an integer, 0 or more")
