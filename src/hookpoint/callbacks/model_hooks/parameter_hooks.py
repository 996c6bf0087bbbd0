"""ParameterHooks: register functions as hooks on a model's parameters for the duration of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.name_pattern import Pattern
from hookpoint.callbacks._shared.sharded_tensors import is_sharded
from hookpoint.callbacks.model_hooks._pattern_callback import PatternCallback
from hookpoint.callbacks.model_hooks.module_hooks import hook_functions
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadLoop
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run


class ParameterHooks(PatternCallback):
    """Register functions as torch hooks on the parameters that match a pattern, and remove them at the end of the run.

        pattern: Names of parameters, as for `ModuleHooks`.
        grad: Called as `grad(gradient)` in each backward pass, before the gradient is added to `parameter.grad`. A returned
            tensor replaces the gradient.
        post_accumulate_grad: Called as `post_accumulate_grad(parameter)` after the gradient is added to `parameter.grad`.

    A function with a parameter `name` receives the parameter's name. With fp16, the gradients passed to the functions are still
    scaled. With gradient accumulation, each call receives the gradient of a single batch. To read the gradients that a step
    uses, use `GradientStats` or on_step_begin. An exception in a function ends the run, regardless of `on_error`. A note in the
    exception names the parameter.

    A frozen parameter has no gradient and no hook. For a parameter that is unfrozen or replaced during the run, hooks are
    registered at the start of the next training pass. A tied parameter has one hook, under the first name that matches. A
    sharded parameter raises an error, because torch does not call its hooks.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1)
    >>> with Loop([ParameterHooks("weight", grad=lambda gradient: 0 * gradient)], model=model) as run:
    ...     for batch in run.batches([torch.ones(4, 1)]):
    ...         model(batch).sum().backward()
    >>> model.weight.grad.item(), model.bias.grad.item()
    (0.0, 4.0)
    """

    step_cost: ClassVar[str] = "the time that the functions take, plus one extra Python call each time a hook is called"

    def __init__(
        self,
        pattern: Pattern | Iterable[Pattern],
        *,
        grad: Callable[..., Any] | None = None,
        post_accumulate_grad: Callable[..., Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(pattern, **options)
        self.functions = hook_functions("ParameterHooks", {"grad": grad, "post_accumulate_grad": post_accumulate_grad})

    def on_setup(self, run: Run) -> None:
        parameters = self.find_parameters(run)
        for name, parameter in parameters.items():
            if is_sharded(parameter):
                read = "parameter.grad at on_step_begin, or use GradientStats"
                raise BadLoop(f"{self.name}: '{name}' is sharded, and torch does not call hooks on its gradient.", read=read)
        if not any(parameter.requires_grad for parameter in parameters.values()):
            logger.warning("%s: all matching parameters are frozen; they have no hooks until they are unfrozen", self.name)

    def on_run_begin(self) -> None:
        self._handles.remove()

    on_exception = on_run_end = on_run_begin

    def on_train_epoch_begin(self, run: Run) -> None:
        named = self.find_parameters(run).items()
        new = {name: parameter for name, parameter in named if parameter.requires_grad and parameter not in self._handles}
        if new:
            self._handles.register(run.model, str(self.name), new, self.functions)
