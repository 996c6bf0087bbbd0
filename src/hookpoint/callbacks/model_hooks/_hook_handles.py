"""HookHandles: hooks of torch that come and go together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

from hookpoint.callbacks._shared.named_modules import is_compiled
from hookpoint.callbacks.model_hooks._hook_call import HookCall

logger = logging.getLogger("hookpoint")

MOST_NAMED = 5

Registered = tuple[MethodType, HookCall, dict[str, Any]]  # the method of a module or parameter that takes a hook


class HookHandles:
    """Register hooks, and remove all of them.

    A compiled model does not look for hooks that come after its first call (torch 2.13): what was compiled is forgotten when
    hooks are registered, and compiled again at the next call, with the hooks in it as calls that are not compiled.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._calls: list[HookCall] = []
        self._hooked: dict[int, Any] = {}  # the parts themselves: an id alone may be that of another by now

    def register(self, model: Any, hooks: Iterable[Registered]) -> None:
        """Register each hook: how, what is called, and with which options of torch; all of them or none."""
        compiled = is_compiled(model)
        try:
            for how, call, options in hooks:
                self._handles.append(how(_not_compiled(call) if compiled else call, **options))
                self._calls.append(call)
                self._hooked[id(how.__self__)] = how.__self__
        except BaseException:
            self.remove()
            raise
        if compiled:
            import torch

            torch.compiler.reset()

    def remove(self) -> None:
        """Remove what was registered; where nothing was, do nothing."""
        while self._handles:
            self._handles.pop().remove()
        self._calls, self._hooked = [], {}

    def __contains__(self, part: Any) -> bool:
        return id(part) in self._hooked

    def say_uncalled(self, owner: str) -> None:
        """Log one line that names modules or parameters whose hooks were never called, if there are any."""
        names = dict.fromkeys(call.name for call in self._calls)
        for call in self._calls:
            if call.was_called:
                names.pop(call.name, None)
        if names:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            logger.warning(
                "%s was never called for %s%s: not called in a forward (as the out_proj of an attention, whose weights are used"
                " without it), without gradients, or inside of a function that was compiled before",
                owner,
                ", ".join(list(names)[:MOST_NAMED]),
                more,
            )

    def __bool__(self) -> bool:
        return bool(self._handles)

    def __reduce__(self) -> tuple[Any, ...]:
        return HookHandles, ()


def _not_compiled(call: HookCall) -> Callable[..., Any]:
    import torch

    plain: Callable[..., Any] = torch.compiler.disable(call, reason=f"{call.where}; fullgraph=True allows none")  # type: ignore[no-untyped-call]
    return plain
