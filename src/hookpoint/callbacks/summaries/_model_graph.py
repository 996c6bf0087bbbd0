"""ModelGraph: what a model is made of, in words and as a graph."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hookpoint.callbacks._shared.sharded_tensors import is_sharded
from hookpoint.core.callback.current import CURRENT

GRAPH_VERSION = 22  # of TensorFlow's graphs, which TensorBoard reads


class ModelGraph(str):
    """A model in words, which every monitor can show; `graph_def` has its graph as TensorBoard's writer takes it."""

    graph_def: bytes

    @classmethod
    def of(cls, model: Any, inputs: tuple[Any, ...]) -> ModelGraph:
        """Trace a model with inputs it was called with; raise whatever keeps it from being traced.

        The model is called once, in eval mode and without gradients; its hooks are called with it. Modes, buffers and
        generators of random numbers are put back, and what it logs is dropped.
        """
        import torch
        from tensorboard.compat.proto.graph_pb2 import GraphDef
        from tensorboard.compat.proto.versions_pb2 import VersionDef
        from torch.utils.tensorboard._pytorch_graph import parse  # what add_graph uses; that one needs a file to write to

        if any(map(is_sharded, model.parameters())):  # a call would ask other processes for their parts
            raise TypeError("its parameters are sharded")
        with undisturbed(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing is full of them, and on its way out of torch
            model.eval()
            # Not checked by a second call: a model that draws random numbers would fail there.
            trace: Any = torch.jit.trace(model, inputs, strict=False, check_trace=False)  # type: ignore[no-untyped-call]
            nodes = parse(trace.inlined_graph, trace, inputs)  # type: ignore[no-untyped-call]
        found = cls(f"```\n{model}\n```")
        found.graph_def = GraphDef(node=nodes, versions=VersionDef(producer=GRAPH_VERSION)).SerializeToString()
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
