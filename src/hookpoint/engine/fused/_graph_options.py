"""graph_options: decide before training whether `Runner(cuda_graph=...)` can work."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

import torch

from hookpoint.core.callback.main_callback import overrides
from hookpoint.core.errors import BadArgument, HookpointError

logger = logging.getLogger("hookpoint")

CudaGraph = bool | Literal["auto"]


def graph_options(
    cuda_graph: CudaGraph, *, device: torch.device, optimizer: Any, precision: str, strategy: Any, main: Any
) -> CudaGraph:
    """Return whether to use CUDA graphs.

    If they cannot work, `cuda_graph=True` raises an error. "auto" logs the reason and returns False.
    """
    if cuda_graph not in (True, False, "auto") or (isinstance(cuda_graph, int) and not isinstance(cuda_graph, bool)):
        raise BadArgument(f"cuda_graph must be True, False or 'auto', got {cuda_graph!r}.", write='cuda_graph="auto"')
    if cuda_graph is False:
        return False
    try:
        _check_run(device, precision, strategy, main)
        if optimizer is not None:
            check_graph_optimizer(optimizer)
    except HookpointError as error:
        if cuda_graph is True:
            raise
        logger.warning("training without CUDA graphs: %s", str(error).splitlines()[0])
        return False
    return cuda_graph


def _check_run(device: torch.device, precision: str, strategy: Any, main: Any) -> None:
    if device.type != "cuda":
        what = f"cuda_graph=True needs a CUDA device; this run uses {str(device)!r}."
        raise BadArgument(what, choose='device="cuda" on a machine with a GPU', drop="cuda_graph=True instead")
    if precision == "fp16":
        what = "cuda_graph=True does not support precision='fp16': the gradient scaler decides on the CPU whether to step."
        raise BadArgument(what, choose="precision='bf16' or '32'")
    if strategy is not None:
        what = f"cuda_graph=True supports one process; this run uses {type(strategy).__name__}."
        raise BadArgument(what, start="one process, or drop cuda_graph=True")
    if overrides(main, "on_iter_backward"):
        what = f"cuda_graph=True captures the Runner's own step, but {type(main).__name__} overrides on_iter_backward."
        raise BadArgument(what, move="its computation to on_iter_forward or the loss", drop="cuda_graph=True instead")


def check_graph_optimizer(optimizer: Any) -> None:
    """Raise BadArgument if the optimizer's step cannot be captured.

    The optimizer's options are never changed, because different kernels compute slightly different results.
    """
    if isinstance(optimizer, Mapping):
        what = f"cuda_graph=True supports one optimizer, got {len(optimizer)}."
        raise BadArgument(what, give="one optimizer with multiple parameter groups")
    kind = type(optimizer).__name__
    for group in getattr(optimizer, "param_groups", ()):
        if "capturable" in group and not group["capturable"]:
            options = "fused=True, capturable=True" if "fused" in group else "capturable=True"
        elif "capturable" not in group and not group.get("fused"):
            options = "fused=True" if "fused" in group else ""
        else:
            if isinstance(group["lr"], torch.Tensor) and not group["lr"].is_cuda:
                what = f"cuda_graph=True: the learning rate of {kind} is a tensor on the CPU."
                raise BadArgument(what, give=f"lr={float(group['lr'])}")
            continue
        if options:
            what = f"cuda_graph=True cannot capture {kind} with its current options."
            raise BadArgument(what, write=f"torch.optim.{kind}(..., {options})")
        what = f"cuda_graph=True cannot capture {kind}: it has neither a fused nor a capturable step."
        raise BadArgument(what, use="torch.optim.AdamW(..., fused=True, capturable=True) or torch.optim.SGD(..., fused=True)")
