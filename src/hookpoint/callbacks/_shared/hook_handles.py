"""HookHandles: torch hooks that are registered and removed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

from hookpoint.callbacks._shared.arguments import parameters_of
from hookpoint.callbacks._shared.named_modules import is_compiled
from hookpoint.core.logger import logger
from hookpoint.core.text.terminal import few

Function = Callable[..., Any]

MAX_LISTED = 5

# Maps each kind of hook to the torch method that registers it, and to the number of arguments that torch passes to the hook.
# The kinds are listed in the order in which torch calls the hooks.
KINDS = {
    "forward_pre": ("register_forward_pre_hook", 2),
    "forward": ("register_forward_hook", 3),
    "backward_pre": ("register_full_backward_pre_hook", 2),
    "backward": ("register_full_backward_hook", 3),
    "grad": ("register_hook", 1),
    "post_accumulate_grad": ("register_post_accumulate_grad_hook", 1),
}


class HookHandles:
    """Register hooks and remove them together.

    A compiled model ignores hooks that are registered after its first call (torch 2.13). Registering hooks therefore discards
    the compiled code. The next call compiles the model again, with graph breaks around the hooks.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._calls: list[HookCall] = []
        self._hooked: dict[int, Any] = {}  # keeps the items alive, so that no other object gets the same id

    def register(
        self, model: Any, owner: str, items: Mapping[str, Any], functions: Mapping[str, Function], *, with_kwargs: bool = False
    ) -> None:
        """Register functions as hooks on modules or parameters. If one registration fails, remove all hooks.

        `functions` maps each kind of hook, such as "forward", to the function to register.
        """
        compiled = is_compiled(model)
        try:
            for (name, item), (kind, function) in product(items.items(), functions.items()):
                method, arguments = KINDS[kind]
                options = {"with_kwargs": True} if with_kwargs and kind.startswith("forward") else {}
                call = HookCall(owner, kind, name, function, arguments + len(options))
                self._handles.append(getattr(item, method)(_not_compiled(call) if compiled else call, **options))
                self._calls.append(call)
                self._hooked[id(item)] = item
        except BaseException:
            self.remove()
            raise
        if compiled:
            import torch

            torch.compiler.reset()

    def remove(self) -> None:
        """Remove all registered hooks."""
        while self._handles:
            self._handles.pop().remove()
        self._calls, self._hooked = [], {}

    def __contains__(self, item: Any) -> bool:
        return id(item) in self._hooked

    def warn_uncalled(self, owner: str) -> None:
        """Log one line that names the modules or parameters whose hooks were never called, if any."""
        called = {call.name for call in self._calls if call.was_called}
        names = [name for name in dict.fromkeys(call.name for call in self._calls) if name not in called]
        if names:
            reasons = (
                "forward does not call the module (such as out_proj in an attention layer), there are no gradients, "
                "or the model was compiled before the hooks were registered"
            )
            logger.warning("%s was never called for %s. Possible reasons: %s", owner, few(names, MAX_LISTED), reasons)

    def __bool__(self) -> bool:
        return bool(self._handles)

    def __reduce__(self) -> tuple[Any, ...]:
        return HookHandles, ()


def _not_compiled(call: HookCall) -> Function:
    import torch

    plain: Function = torch.compiler.disable(call, reason=f"{call.where}; impossible with fullgraph=True")  # type: ignore[no-untyped-call]
    return plain


class HookCall:
    """Call a function with a torch hook's arguments, plus `name=` if the function has such a parameter.

    Exceptions get a note that names the callback and the module. In a copied or pickled model, the hook does nothing.
    """

    __slots__ = ("_function", "_options", "name", "was_called", "where")

    def __init__(self, owner: str, kind: str, name: str, function: Function, arguments: int) -> None:
        self.name = name
        self.was_called = False
        self._function = function
        self._options = {"name": name} if takes_name(function, arguments) else {}
        self.where = f"in {owner}, {kind} hook of '{name}'"

    def __call__(self, *args: Any) -> Any:
        self.was_called = True
        try:
            return self._function(*args, **self._options)
        except BaseException as error:
            error.add_note(self.where)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_do_nothing,)


def _do_nothing(*args: Any) -> None: ...


def takes_name(function: Function, arguments: int) -> bool:
    """Return whether a function has a parameter `name` after the parameters for torch's arguments.

    >>> takes_name(lambda module, args, output, *, name: None, 3), takes_name(lambda name, args, output: None, 3)
    (True, False)
    """
    for index, param in enumerate(parameters_of(function)):
        if param.name == "name":
            return param.kind is param.KEYWORD_ONLY or (param.kind is param.POSITIONAL_OR_KEYWORD and index >= arguments)
    return False
