"""HookWatch: detect hooks on modules, parameters and the optimizer. A compiled or captured step would not call these hooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
GLOBAL_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
REPARAMETRIZATIONS = "torch.nn.utils."  # hooks from these modules only compute weights, as in spectral_norm


class HookWatch:
    """Detect hooks. torch numbers all hooks with a single counter, so the check costs one comparison if there is no new hook.

    Hooks from torch.nn.utils, such as the hooks that spectral_norm adds, do not count: they are part of the model, and are
    compiled and captured with it.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], optimizer: Any = None) -> None:
        self._modules = list(modules)
        self._optimizer = optimizer
        self._last = -1
        self._owner: str | None = None

    def is_hooked(self) -> bool:
        """Return whether there are any hooks at present."""
        if self._owner is not None or RemovableHandle.next_id != self._last:
            self._last = RemovableHandle.next_id
            self._owner = next(self._hooked(), None)
        return self._owner is not None

    @property
    def owner(self) -> str | None:
        """A description of the object that has a hook, for messages, or None if there are no hooks."""
        return self._owner

    def _hooked(self) -> Iterator[str]:
        for name in MODULE_HOOKS:
            if any(map(_is_foreign, getattr(torch_module, f"_global{name}").values())):
                yield "every module (a global hook)"
        for root in self._modules:
            for name, module in root.named_modules():
                if any(_is_foreign(hook) for kind in MODULE_HOOKS for hook in getattr(module, kind).values()):
                    yield f"module '{name}'"
            for name, parameter in root.named_parameters():
                if any(getattr(parameter, kind, None) for kind in PARAMETER_HOOKS):
                    yield f"parameter '{name}'"
        is_global = any(getattr(torch_optimizer, kind) for kind in GLOBAL_OPTIMIZER_HOOKS)
        if self._optimizer is not None and (is_global or any(getattr(self._optimizer, kind) for kind in OPTIMIZER_HOOKS)):
            yield "the optimizer"


def _is_foreign(hook: Any) -> bool:
    return not str(getattr(hook, "__module__", "")).startswith(REPARAMETRIZATIONS)
