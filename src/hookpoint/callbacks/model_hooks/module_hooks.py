"""ModuleHooks: register functions as hooks on a model's modules for the duration of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import function as check_function
from hookpoint.callbacks._shared.name_pattern import Pattern
from hookpoint.callbacks.model_hooks._pattern_callback import PatternCallback
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run


class ModuleHooks(PatternCallback):
    """Register functions as torch hooks on the modules that match a pattern, and remove them at the end of the run.

        pattern: Glob over dotted names (`*` also matches dots), compiled regular expression (matched with `search`), or list of
            these. "" is the model itself. Raises if a pattern has no match.
        forward_pre: Called as `forward_pre(module, args)`.
        forward: Called as `forward(module, args, output)`.
        backward_pre: Called as `backward_pre(module, grad_output)`.
        backward: Called as `backward(module, grad_input, grad_output)`.
        with_kwargs: Also pass the forward's keyword arguments to the two forward hooks, after `args`.

    A value that a function returns replaces the input, output or gradient, as in torch. A function with a parameter `name`
    receives the module's name. An exception in a function ends the run, regardless of `on_error`. A note in the exception names
    the module.

    Hooks are active from on_run_begin to on_run_end, in all modes, and during `Runner.validate` and `predict` outside `fit`. A
    module with two names has one hook, under the first name that matches. Activation checkpointing calls hooks a second time
    during the backward pass. A `TransformerEncoderLayer` does not use its fast path while it has hooks. After the first epoch,
    a warning names modules that were never called. Registering hooks causes a compiled model to be compiled again, with graph
    breaks around the hooks. `fullgraph=True` does not allow graph breaks.

    >>> import torch
    >>> def shape(module, args, output, *, name):
    ...     print(name, tuple(output.shape))
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> with Loop([ModuleHooks("*", forward=shape)], model=model) as run:
    ...     for batch in run.batches([torch.ones(4, 2)]):
    ...         loss = model(batch).sum()
    0 (4, 3)
    1 (4, 3)
    """

    step_cost: ClassVar[str] = "the time that the functions take, plus one extra Python call each time a hook is called"

    def __init__(
        self,
        pattern: Pattern | Iterable[Pattern],
        *,
        forward: Callable[..., Any] | None = None,
        forward_pre: Callable[..., Any] | None = None,
        backward: Callable[..., Any] | None = None,
        backward_pre: Callable[..., Any] | None = None,
        with_kwargs: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(pattern, **options)
        functions = {"forward_pre": forward_pre, "forward": forward, "backward_pre": backward_pre, "backward": backward}
        self.functions = hook_functions("ModuleHooks", functions)
        self.with_kwargs = with_kwargs
        if with_kwargs and not (forward or forward_pre):
            raise BadArgument("ModuleHooks: with_kwargs=True needs a forward hook.", give="forward or forward_pre")
        self._is_in_run = self._has_checked = False

    def on_setup(self, run: Run) -> None:
        self.find_modules(run)

    def on_run_begin(self, run: Run) -> None:
        self._is_in_run = True
        self._hook(run)

    def on_epoch_end(self) -> None:
        if not self._has_checked:
            self._has_checked = True
            if self._run is None or not self._run.team.has_stages:
                self._handles.warn_uncalled(str(self.name))

    def on_val_epoch_begin(self, run: Run) -> None:
        if not self._is_in_run and len(machine_of(run).scopes.passes) == 1:
            self._hook(run)

    def on_val_epoch_end(self, run: Run) -> None:
        if not self._is_in_run and len(machine_of(run).scopes.passes) == 1:
            self.on_epoch_end()
            self.on_run_end()

    on_pred_epoch_begin, on_pred_epoch_end = on_val_epoch_begin, on_val_epoch_end

    def on_run_end(self) -> None:
        self._is_in_run = False
        self._handles.remove()

    on_exception = on_run_end

    def _hook(self, run: Run) -> None:
        self._handles.remove()
        self._has_checked = False
        modules = self.find_modules(run)
        self._handles.register(run.model, str(self.name), modules, self.functions, with_kwargs=self.with_kwargs)


def hook_functions(owner: str, functions: dict[str, Callable[..., Any] | None]) -> dict[str, Callable[..., Any]]:
    """Return the functions that are not None; raise if there are none, or if one is not callable."""
    hooks = {kind: check_function(owner, kind, hook) for kind, hook in functions.items() if hook is not None}
    if not hooks:
        raise BadArgument(f"{owner} has no function to call.", give=" or ".join(f"{kind}=..." for kind in functions))
    return hooks
