"""CompiledForward: compute the forward pass and the loss with one compiled function."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch

from hookpoint.core.callback.main_callback import overrides
from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.engine.data.as_loader import map_tensors
from hookpoint.engine.fused._hook_watch import HookWatch
from hookpoint.engine.step.forward import Forward
from hookpoint.engine.step.modules import modules_of

DEFAULTS = {"dynamic": False}
OWN_GRAPHS = ("reduce-overhead", "max-autotune")  # modes in which torch.compile captures CUDA graphs
FORWARDS = ("on_iter_forward", "on_train_forward", "on_val_forward", "on_pred_forward")
Compute = Callable[[Any, "str | None"], tuple[Any, Any, Any]]


class CompiledForward:
    """Compute outputs, targets and loss with a compiled function, or without compilation while modules have hooks.

    The model itself is not wrapped, so its weights keep their names. torch.compile ignores hooks that are registered after
    compilation, so batches run uncompiled while there are hooks. The results of these batches may differ in the last bits.

    With `detaches=True`, the outputs are detached from the autograd graph. Code between forward and backward then cannot use
    them to change the loss.
    """

    def __init__(self, forward: Forward, options: Mapping[str, Any], parts: list[Any], *, detaches: bool) -> None:
        self._plain: Compute = forward.compute
        self._compiled: Compute = torch.compile(_forward_and_loss(forward, detaches), **options)
        self._watch = HookWatch(module for part in parts for module in modules_of(part))

    def compute(self, batch: Any, mode: str | None) -> tuple[Any, Any, Any]:
        return (self._plain if self._watch.is_hooked() else self._compiled)(batch, mode)


def _forward_and_loss(forward: Forward, detaches: bool) -> Compute:
    """Return a function with its own code object, because torch.compile limits how often it compiles the same code.

    With `detaches`, the function returns detached outputs. This saves time, because the backward pass does not have to
    propagate zero gradients through the outputs.
    """

    def forward_and_loss(batch: Any, mode: str | None) -> tuple[Any, Any, Any]:
        outputs, targets, loss = forward.compute(batch, mode)
        return map_tensors(outputs, torch.Tensor.detach) if detaches else outputs, targets, loss

    code = forward_and_loss.__code__.replace()
    return FunctionType(code, forward_and_loss.__globals__, code.co_name, None, forward_and_loss.__closure__)


def compile_options(compile: Any, device: torch.device, strategy: Any = None, main: Any = None) -> dict[str, Any]:
    """Return the options for torch.compile. Raise an error if compilation cannot work in this run or on this machine.

    >>> compile_options({"backend": "eager"}, torch.device("cpu"))
    {'dynamic': False, 'backend': 'eager'}
    """
    if compile is not True and not isinstance(compile, Mapping):
        what = f"compile must be True, False or a dict of torch.compile options, got {compile!r}."
        raise BadArgument(what, write="compile=True")
    options = DEFAULTS | dict(compile if isinstance(compile, Mapping) else {})
    known = set(inspect.signature(torch.compile).parameters) - {"model"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise BadArgument(f"compile: torch.compile has no option {unknown[0]!r}.", choose=", ".join(sorted(known)))
    if options.get("mode") in OWN_GRAPHS or dict(options.get("options") or {}).get("triton.cudagraphs"):
        what = "compile cannot use torch.compile's CUDA graphs: each batch would overwrite the values logged before it."
        raise BadArgument(what, write="cuda_graph=True", choose='mode="max-autotune-no-cudagraphs" instead')
    _check_run(strategy, main)
    if not options.get("disable") and options.get("backend", "inductor") == "inductor":
        _check_compiler(device)
    return options


def _check_run(strategy: Any, main: Any) -> None:
    if overrides(main, *FORWARDS):
        name = getattr(main, "name", None) or type(main).__name__
        raise BadArgument(
            f"compile=True compiles the Runner's forward and loss, but {name} has its own forward.",
            write="torch.compile(...) around the computation in that forward",
            drop="compile=True instead",
        )
    if strategy is not None:
        what = f"compile=True supports one process; this run uses {type(strategy).__name__}."
        raise BadArgument(what, write="Runner(torch.compile(model), ...)")


def _check_compiler(device: torch.device) -> None:
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            what = "compile=True needs Triton, which is not installed or does not support this GPU."
            raise BadLoop(what, run="pip install triton", drop="compile=True instead")
    elif not any(map(shutil.which, _compilers())):
        what = "compile=True needs a C++ compiler, and none was found."
        raise BadLoop(what, install="g++ or clang++, or set the environment variable CXX", drop="compile=True instead")


def _compilers() -> list[str]:
    from torch._inductor import config

    named = config.cpp.cxx if isinstance(config.cpp.cxx, tuple | list) else [config.cpp.cxx]
    return [name for name in (*named, "g++", "clang++") if name]
