"""ModelGraph: a model as text and as a graph for TensorBoard."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hookpoint.callbacks._shared.sharded_tensors import is_sharded
from hookpoint.core.callback.current import CURRENT
from hookpoint.core.checkpoint.randomness import PlainRandomness

GRAPH_VERSION = 22  # version of TensorFlow's graph format, which TensorBoard reads


class ModelGraph(str):
    """A model as text, for all monitors. `graph_def` is its graph in TensorBoard's format."""

    graph_def: bytes

    @classmethod
    def of(cls, model: Any, inputs: tuple[Any, ...]) -> ModelGraph:
        """Trace a model with the inputs of an earlier call. Raise if it cannot be traced.

        The model is called once, in eval mode and without gradients. Its hooks also run. Modes, buffers and random number
        generators are restored, and values that the model logs are dropped.
        """
        import torch
        from tensorboard.compat.proto.graph_pb2 import GraphDef
        from tensorboard.compat.proto.versions_pb2 import VersionDef

        # `SummaryWriter.add_graph` also calls `parse`, but it writes the graph to a file.
        from torch.utils.tensorboard._pytorch_graph import parse

        if any(map(is_sharded, model.parameters())):  # calling the model would gather shards from other ranks
            raise TypeError("its parameters are sharded")
        with restored(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tracing is deprecated and emits many warnings
            model.eval()
            # check_trace would call the model a second time, which fails if the model draws random numbers.
            trace: Any = torch.jit.trace(model, inputs, strict=False, check_trace=False)  # type: ignore[no-untyped-call]
            nodes = parse(trace.inlined_graph, trace, inputs)  # type: ignore[no-untyped-call]
        graph = cls(f"```\n{model}\n```")
        graph.graph_def = GraphDef(node=nodes, versions=VersionDef(producer=GRAPH_VERSION)).SerializeToString()
        return graph


def as_positional(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Convert a model's arguments to positional arguments, which tracing requires. Raise if that is impossible."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    if bound.kwargs:
        raise TypeError(f"it is called with {', '.join(bound.kwargs)} by keyword")
    return bound.args


@contextmanager
def restored(model: Any) -> Iterator[None]:
    """Compute no gradients inside the block, and restore modes, buffers and random number generators afterwards."""
    import torch

    modes = {module: module.training for module in model.modules()}
    buffers = {buffer: buffer.detach().clone() for buffer in model.buffers()}
    devices = {tensor.device.index for tensor in (*model.parameters(), *buffers) if tensor.is_cuda}
    randomness = PlainRandomness()
    state, run = randomness.state_dict(), CURRENT.set(None)
    try:
        with torch.random.fork_rng(devices=sorted(devices)), torch.no_grad():
            yield
    finally:
        CURRENT.reset(run)
        randomness.load_state_dict(state)
        with torch.no_grad():
            for buffer, before in buffers.items():
                buffer.copy_(before)
        for module, mode in modes.items():
            module.training = mode
