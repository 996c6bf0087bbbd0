"""ModuleHooks: functions as hooks of a model's modules, while the run lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Unpack

from hookpoint.callbacks._shared.name_pattern import NamePattern, Pattern
from hookpoint.callbacks._shared.named_modules import has_other_layers, named_modules
from hookpoint.callbacks.model_hooks._hook_call import HookCall
from hookpoint.callbacks.model_hooks._hook_handles import HookHandles, Registered
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run

# Our name, torch's method, and how many arguments torch gives; in the order in which they are called.
KINDS = {
    "forward_pre": ("register_forward_pre_hook", 2),
    "forward": ("register_forward_hook", 3),
    "backward_pre": ("register_full_backward_pre_hook", 2),
    "backward": ("register_full_backward_hook", 3),
}


class ModuleHooks(Callback):
    """Register functions as PyTorch's own hooks on the modules whose names fit a pattern, and remove them when the run ends.

    `pattern` is a glob over dotted names (`*` stands for dots, too), a compiled regular expression that is searched for, or a
    list of these; "" is the model itself, and what fits nothing is refused. The functions are called as torch calls them:
    `forward_pre(module, args)`, `forward(module, args, output)`, `backward_pre(module, grad_output)`, `backward(module,
    grad_input, grad_output)`, and what they return, if anything, takes the place of the input, output or gradient. With
    `with_kwargs` the first two get the forward's keyword arguments behind `args`. One that has a parameter `name` as well is
    told the module's name. What a function raises ends the run, with a note that names the module, whatever `on_error` says.

    Hooks are there from on_run_begin to on_run_end, in all modes, and for `Runner.validate` and `predict` outside of a fit from
    the begin to the end of their pass. A module with two names has one hook, by the first name that fits; one that is called
    several times has its function called as often, and one that is checkpointed once more when backward computes it again. A
    `TransformerEncoderLayer` leaves its fast path while it is hooked. Modules that are never called are named once, after the
    first epoch. A compiled model is compiled again when the hooks come; they run between its parts, which `fullgraph=True`
    does not allow.

    Listens to on_setup, on_run_begin, on_epoch_end, on_exception, on_run_end and the begin and end of validation and
    prediction passes. Keeps nothing in the checkpoint. Runs on all ranks. A step pays for the functions, and one call around
    each.

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
        super().__init__(**options)
        given = {"forward_pre": forward_pre, "forward": forward, "backward_pre": backward_pre, "backward": backward}
        self.functions = functions_given("ModuleHooks", given)
        self.pattern = NamePattern("ModuleHooks", pattern)
        self.with_kwargs = with_kwargs
        if with_kwargs and not (forward or forward_pre):
            raise BadArgument("ModuleHooks(with_kwargs=True) is about a forward.", give="forward or forward_pre")
        set_default_name(self, f"ModuleHooks({self.pattern})")
        self._handles = HookHandles()
        self._is_in_run = self._has_looked = False

    def on_setup(self, run: Run) -> None:
        self._modules(run)

    def on_run_begin(self, run: Run) -> None:
        self._is_in_run = True
        self._hook(run)

    def on_epoch_end(self) -> None:
        self._look()

    def on_val_epoch_begin(self, run: Run) -> None:
        self._begin_pass(run)

    def on_val_epoch_end(self, run: Run) -> None:
        self._end_pass(run)

    def on_pred_epoch_begin(self, run: Run) -> None:
        self._begin_pass(run)

    def on_pred_epoch_end(self, run: Run) -> None:
        self._end_pass(run)

    def on_exception(self) -> None:
        self._unhook()

    def on_run_end(self) -> None:
        self._unhook()

    def _begin_pass(self, run: Run) -> None:
        if not self._is_in_run and len(machine_of(run).scopes.passes) == 1:
            self._hook(run)

    def _end_pass(self, run: Run) -> None:
        if not self._is_in_run and len(machine_of(run).scopes.passes) == 1:
            self._look()
            self._unhook()

    def _hook(self, run: Run) -> None:
        self._handles.remove()
        self._has_looked = False
        self._handles.register(run.model, self._hooks(self._modules(run)))

    def _unhook(self) -> None:
        self._is_in_run = False
        self._handles.remove()

    def _look(self) -> None:
        if not self._has_looked:
            self._has_looked = True
            if self._run is None or not has_other_layers(self._run):
                self._handles.say_uncalled(str(self.name))

    def _modules(self, run: Run) -> dict[str, Any]:
        return self.pattern.chosen(str(self.name), "module", named_modules(run.model))

    def _hooks(self, modules: dict[str, Any]) -> Iterator[Registered]:
        for name, module in modules.items():
            for kind, function in self.functions.items():
                method, given = KINDS[kind]
                has_kwargs = self.with_kwargs and kind.startswith("forward")
                call = HookCall(str(self.name), kind, name, function, given + has_kwargs)
                yield getattr(module, method), call, {"with_kwargs": True} if has_kwargs else {}


def functions_given(owner: str, given: dict[str, Callable[..., Any] | None]) -> dict[str, Callable[..., Any]]:
    """Return the functions that are there, or refuse what is none, and none at all."""
    functions = {kind: function for kind, function in given.items() if function is not None}
    if not functions:
        raise BadArgument(f"{owner} has no function to call.", give=" or ".join(f"{kind}=..." for kind in given))
    for kind, function in functions.items():
        if not callable(function):
            raise BadArgument(f"{owner}({kind}={function!r}) is no function.", give="one, or None")
    return functions
