"""ParameterHooks: functions as hooks of a model's parameters, while the run lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Unpack

from hookpoint.callbacks._shared.name_pattern import NamePattern, Pattern
from hookpoint.callbacks._shared.named_modules import chosen_parameters
from hookpoint.callbacks._shared.sharded_tensors import is_sharded
from hookpoint.callbacks.model_hooks._hook_call import HookCall
from hookpoint.callbacks.model_hooks._hook_handles import HookHandles, Registered
from hookpoint.callbacks.model_hooks.module_hooks import functions_given
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

METHODS = {"grad": "register_hook", "post_accumulate_grad": "register_post_accumulate_grad_hook"}


class ParameterHooks(Callback):
    """Register functions as PyTorch's own hooks on the parameters whose names fit a pattern, and remove them when the run ends.

    `pattern` is as for `ModuleHooks`. `grad(gradient)` is called with the gradient of each backward pass, before it is added
    to `parameter.grad`; what it returns, if anything, takes its place. `post_accumulate_grad(parameter)` is called after that.
    One that has a parameter `name` as well is told the parameter's name. With fp16 gradients are still scaled here, and with
    accumulation they are those of one batch: `GradientStats` and on_step_begin have those of the step. What a function raises
    ends the run, with a note that names the parameter, whatever `on_error` says.

    A frozen parameter has no gradient, and no hook. One that is thawed in the middle, or put in the place of another, has its
    hooks from the next training pass on; one that is frozen in the middle keeps them, and they are not called. A tied
    parameter has one hook, by the first name that fits. Sharded parameters are refused: torch calls no hooks of theirs.

    Listens to on_setup, on_run_begin, on_train_epoch_begin, on_exception and on_run_end. Keeps nothing in the checkpoint. Runs
    on all ranks. A step pays for the functions, and one call around each.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1)
    >>> with Loop([ParameterHooks("weight", grad=lambda gradient: 0 * gradient)], model=model) as run:
    ...     for batch in run.batches([torch.ones(4, 1)]):
    ...         model(batch).sum().backward()
    >>> model.weight.grad.item(), model.bias.grad.item()
    (0.0, 4.0)
    """

    def __init__(
        self,
        pattern: Pattern | Iterable[Pattern],
        *,
        grad: Callable[..., Any] | None = None,
        post_accumulate_grad: Callable[..., Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.functions = functions_given("ParameterHooks", {"grad": grad, "post_accumulate_grad": post_accumulate_grad})
        self.pattern = NamePattern("ParameterHooks", pattern)
        set_default_name(self, f"ParameterHooks({self.pattern})")
        self._handles = HookHandles()

    def on_setup(self, run: Run) -> None:
        self._refuse_sharded(run)
        if not any(parameter.requires_grad for parameter in self._parameters(run).values()):
            logger.warning("%s: every parameter that fits is frozen, and has no hook until it is thawed", self.name)

    def on_run_begin(self) -> None:
        self._handles.remove()

    def on_train_epoch_begin(self, run: Run) -> None:
        new = {
            name: parameter
            for name, parameter in self._parameters(run).items()
            if parameter.requires_grad and parameter not in self._handles
        }
        if new:
            self._handles.register(run.model, self._hooks(new))

    def on_exception(self) -> None:
        self._handles.remove()

    def on_run_end(self) -> None:
        self._handles.remove()

    def _refuse_sharded(self, run: Run) -> None:
        for name, parameter in self._parameters(run).items():
            if is_sharded(parameter):
                raise BadLoop(
                    f"{self.name}: {name} is sharded, and torch calls no hooks of its gradient.",
                    look="at parameter.grad at on_step_begin, or use GradientStats",
                )

    def _parameters(self, run: Run) -> dict[str, Any]:
        return chosen_parameters(run, self.pattern, str(self.name))

    def _hooks(self, parameters: dict[str, Any]) -> Iterator[Registered]:
        for name, parameter in parameters.items():
            for kind, function in self.functions.items():
                yield getattr(parameter, METHODS[kind]), HookCall(str(self.name), kind, name, function, 1), {}
