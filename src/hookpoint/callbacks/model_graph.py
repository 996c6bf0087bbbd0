"""ModelGraph: what a model is made of, in words and as a graph."""

from __future__ import annotations

import inspect
import io
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from hookpoint.core.current import CURRENT


class ModelGraph(str):
    """A model in words, which every monitor can show; `graph_def` has its graph as TensorBoard's writer takes it."""

    graph_def: bytes

    @classmethod
    def of(cls, model: Any, inputs: tuple[Any, ...]) -> ModelGraph:
        """Trace a model with inputs it was called with; raise whatever keeps it from being traced.

        The model is called a few times, in eval mode and without gradients; its hooks are called with it. Modes, buffers and
        generators of random numbers are put back, and what it logs is dropped.
        """
        from torch.utils.tensorboard._pytorch_graph import graph  # all of what add_graph does, without a file to write to

        with undisturbed(model), warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # tracing is full of them, and on its way out of torch
            definition, _ = graph(model, inputs, use_strict_trace=False)
        found = cls(f"```\n{model}\n```")
        found.graph_def = definition.SerializeToString()
        return found


def as_positional(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a model was called with as positional arguments, as tracing wants them; refuse what cannot be."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    if bound.kwargs:
        raise TypeError(f"it is called with {', '.join(bound.kwargs)} by keyword")
    return bound.args


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Let a model be called without a trace: modes, buffers, generators and gradients are as before."""
    import numpy
    import torch

    modes = {module: module.training for module in model.modules()}
    buffers = {buffer: buffer.detach().clone() for buffer in model.buffers()}
    devices = {one.device.index for one in (*model.parameters(), *buffers) if one.is_cuda}
    python, arrays = random.getstate(), numpy.random.get_state()
    run = CURRENT.set(None)
    try:
        with torch.random.fork_rng(devices=sorted(devices)), torch.no_grad():
            yield
    finally:
        CURRENT.reset(run)
        random.setstate(python)
        numpy.random.set_state(arrays)
        with torch.no_grad():
            for buffer, before in buffers.items():
                buffer.copy_(before)
        for module, mode in modes.items():
            module.training = mode
