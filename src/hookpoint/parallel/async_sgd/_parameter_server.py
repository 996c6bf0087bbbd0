"""ParameterServer: hold the authoritative parameters, update them with gradients from all ranks, and exchange messages."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from threading import Condition, Thread
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.core.errors import OutOfStep
from hookpoint.parallel.async_sgd._staleness import Applied, Staleness
from hookpoint.parallel.averaging.sync_callback import copy_into

PULL, PUSH, DROP, DONE, FAILED = range(5)
NO_VERSION = -1
HEAD = 16  # header size in bytes: two 64-bit numbers
ALIGNED = 16


class ParameterServer:
    """Apply gradients in order of arrival, and send the resulting parameters to the workers.

    The server runs on the chief, with one thread for each worker. Only one thread is active at a time. A worker that must not
    continue yet waits inside its call. The server uses a copy of the user's optimizer. The copy has the same class, current
    settings and state objects as the original, but updates the server's own parameters.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], optimizer: Any, rule: Staleness, trace: deque[Applied], wait_seconds: float
    ) -> None:
        self.rule, self.failure = rule, ""
        self._model_parameters = list(parameters)
        self.parameters = [torch.nn.Parameter(parameter.detach().clone()) for parameter in self._model_parameters]
        self._optimizer = optimizer
        replaced: dict[int, Any] = dict(zip(map(id, self._model_parameters), self.parameters, strict=True))
        self._twin = copy.deepcopy(optimizer, {**replaced, **{id(state): state for state in optimizer.state.values()}})
        self._trace = trace
        self._wait_seconds = wait_seconds
        self._queue: deque[int] = deque()  # workers that are waiting for parameters, in order of arrival
        self._changed = Condition()

    def pull(self, worker: int, into: Callable[[Sequence[torch.Tensor]], None]) -> int:
        """Wait until this worker may compute, pass the parameters to `into`, and return their version."""
        with self._changed:
            self._queue.append(worker)
            try:
                self._wait(worker, lambda: self._queue[0] == worker and self.rule.may_pull())
            finally:
                self._queue.remove(worker)
                self._changed.notify_all()
            into(self.parameters)
            return self.rule.pull(worker)

    def push(self, worker: int, gradients: Sequence[torch.Tensor | None]) -> None:
        """Wait until this gradient may be applied, then step the optimizer with it."""
        with self._changed:
            self._wait(worker, lambda: self.rule.may_push(worker))
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
            for group, settings in zip(self._twin.param_groups, self._optimizer.param_groups, strict=True):
                group.update({name: value for name, value in settings.items() if name != "params"})
            self._twin.step()
            self._trace.append(Applied(worker, *self.rule.push(worker)))
            self._changed.notify_all()

    def leave(self, worker: int) -> None:
        """Stop waiting for a worker's gradient."""
        with self._changed:
            self.rule.leave(worker)
            self._changed.notify_all()

    drop = leave

    def fail(self, why: str) -> None:
        """Raise an error in all waiting workers, because a rank has failed. Only the first line of the reason is kept."""
        headline = why.strip().partition("\n")[0].rstrip(". ")  # error messages contain the reason inside a sentence
        with self._changed:
            self.failure = self.failure or headline
            self._changed.notify_all()

    def copy_to_model(self) -> None:
        """Copy the parameters to the chief's model, and the new optimizer state to the chief's optimizer."""
        with self._changed:
            copy_into(self._model_parameters, self.parameters)
            for parameter, own in zip(self._model_parameters, self.parameters, strict=True):
                if own in self._twin.state:
                    self._optimizer.state[parameter] = self._twin.state[own]

    def _wait(self, worker: int, may_continue: Callable[[], bool]) -> None:
        is_ready = self._changed.wait_for(lambda: bool(self.failure) or may_continue(), self._wait_seconds)
        if self.failure:
            raise OutOfStep(f"rank {worker} is waiting for the parameter server, but {self.failure}.", see="its output")
        if not is_ready:
            late = ", ".join(str(other) for other in self.rule.computing if other != worker)
            why = f", which got no gradient from rank {late}" if late else ""
            waited = f"rank {worker} has waited {self._wait_seconds:.0f} s for the parameter server{why}."
            raise OutOfStep(waited, see="its output" if late else "the output of the other ranks")


class RemoteServer:
    """Call the parameter server from another rank. Each call sends a message to the chief.

    A push returns when the chief has received the gradient. The next pull waits until this gradient is applied.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], group: Any) -> None:
        self._group, self._buffer = group, TensorBuffer(parameters)

    def pull(self, worker: int, into: Callable[[Sequence[torch.Tensor]], None]) -> int:
        self._send(PULL)
        dist.recv(self._buffer.bytes, src=0, group=self._group)
        if self._buffer.number == NO_VERSION:
            what = f"rank {worker} is waiting for the parameter server, but another rank has failed."
            raise OutOfStep(what, see="the others' output")
        into([tensor for tensor in self._buffer.tensors() if tensor is not None])
        return self._buffer.number

    def push(self, worker: int, gradients: Sequence[torch.Tensor | None]) -> None:
        self._buffer.put(gradients)
        self._send(PUSH)
        dist.send(self._buffer.bytes, dst=0, group=self._group)

    def drop(self, worker: int) -> None:
        self._send(DROP)

    def leave(self, worker: int, *, has_failed: bool = False) -> None:
        self._send(FAILED if has_failed else DONE)

    def _send(self, request: int) -> None:
        dist.send(torch.tensor([request]), dst=0, group=self._group)


class ServerRpc:
    """Serve the requests of remote workers on the chief, with one thread per worker.

    A thread ends when its worker has finished, failed or disconnected. Until then, it responds to every request, even after the
    server has failed, so that no worker waits forever.
    """

    def __init__(self, server: ParameterServer, workers: Sequence[int], group: Any) -> None:
        self._server, self._group = server, group
        self._threads = [
            Thread(target=self._serve, args=(worker,), name=f"hookpoint-server-{worker}", daemon=True) for worker in workers
        ]
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for every worker to leave, for at most `seconds`. Return whether all workers have left."""
        deadline = monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self, worker: int) -> None:
        server = self._server
        try:
            buffer, request = TensorBuffer(server.parameters), torch.zeros(1, dtype=torch.int64)
            while True:
                dist.recv(request, src=worker, group=self._group)
                if request == PULL:
                    try:
                        buffer.number = server.pull(worker, buffer.put)
                    except OutOfStep as error:
                        server.fail(str(error))
                        buffer.number = NO_VERSION
                    dist.send(buffer.bytes, dst=worker, group=self._group)
                elif request == PUSH:
                    dist.recv(buffer.bytes, src=worker, group=self._group)
                    self._apply(worker, buffer.tensors())
                elif request == DROP:
                    server.drop(worker)
                else:
                    if request == FAILED:
                        server.fail(f"rank {worker} has failed")
                    return
        except RuntimeError:
            server.fail(f"rank {worker} is gone")
        except BaseException as error:
            server.fail(f"the server's thread for rank {worker} failed with {type(error).__name__}: {error}")
            raise
        finally:
            server.leave(worker)

    def _apply(self, worker: int, gradients: list[torch.Tensor | None]) -> None:
        try:
            self._server.push(worker, gradients)
        except OutOfStep as error:
            self._server.fail(str(error))
        except Exception as error:  # the optimizer failed; the chief raises this error
            self._server.fail(f"applying rank {worker}'s gradient failed with {type(error).__name__}: {error}")


class TensorBuffer:
    """Store a number and tensors in one host buffer. The tensors' shapes are fixed, and any tensor may be missing."""

    def __init__(self, like: Sequence[torch.Tensor]) -> None:
        self._like = [(tensor.shape, tensor.dtype, tensor.numel() * tensor.element_size()) for tensor in like]
        self._flags = HEAD + len(like)
        self._offsets = [*accumulate((_aligned(size) for _, _, size in self._like), initial=_aligned(self._flags))]
        self.bytes = torch.zeros(self._offsets.pop(), dtype=torch.uint8)
        self._head = self.bytes[:HEAD].view(torch.int64)

    @property
    def number(self) -> int:
        return int(self._head[0])

    @number.setter
    def number(self, number: int) -> None:
        self._head[0] = number

    def put(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Copy tensors into the buffer."""
        self.bytes[HEAD : self._flags] = torch.tensor([tensor is not None for tensor in tensors], dtype=torch.uint8)
        for tensor, view in zip(tensors, self._views(), strict=True):
            if tensor is not None:
                view.copy_(tensor.to_dense().detach() if tensor.is_sparse else tensor.detach())

    def tensors(self) -> list[torch.Tensor | None]:
        """Return views of the tensors in the buffer."""
        flags = self.bytes[HEAD : self._flags].tolist()
        return [view if is_there else None for view, is_there in zip(self._views(), flags, strict=True)]

    def _views(self) -> list[torch.Tensor]:
        pairs = zip(self._offsets, self._like, strict=True)
        return [self.bytes[offset : offset + size].view(dtype).view(shape) for offset, (shape, dtype, size) in pairs]


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
