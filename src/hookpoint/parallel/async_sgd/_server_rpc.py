"""Server RPC: how workers on other ranks reach the parameter server on the chief."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.core.errors import OutOfStep
from hookpoint.parallel.async_sgd._parameter_server import ParameterServer
from hookpoint.parallel.async_sgd._tensor_buffer import TensorBuffer

PULL, PUSH, DROP, DONE, FAILED = range(5)
NO_VERSION = -1


class RemoteServer:
    """Call the parameter server from another rank. Each call is a message to the chief.

    A push returns when the chief has received the gradient. The next pull waits until it is applied.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], group: Any) -> None:
        self._group, self._buffer = group, TensorBuffer(parameters)

    def pull(self, worker: int, into: Callable[[Sequence[torch.Tensor]], None]) -> int:
        self._send(PULL)
        dist.recv(self._buffer.bytes, src=0, group=self._group)
        if self._buffer.number == NO_VERSION:
            raise OutOfStep(f"rank {worker} waits for the parameter server; another rank has failed.", see="the others' output")
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
    """Serve the requests of each worker on another rank in a thread on the chief.

    A thread ends when its worker is done, has failed or is gone. Until then it answers every request, even after the server has
    failed, so that no worker waits forever.
    """

    def __init__(self, server: ParameterServer, workers: Sequence[int], group: Any) -> None:
        self._server, self._group = server, group
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), name=f"hookpoint-server-{worker}", daemon=True)
            for worker in workers
        ]
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> bool:
        """Wait until every worker has left. Return whether all have."""
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
            server.fail(f"its thread for rank {worker} failed with {type(error).__name__}: {error}")
            raise
        finally:
            server.leave(worker)

    def _apply(self, worker: int, gradients: list[torch.Tensor | None]) -> None:
        try:
            self._server.push(worker, gradients)
        except OutOfStep as error:
            self._server.fail(str(error))
        except Exception as error:  # from the optimizer; the chief raises it
            self._server.fail(f"{type(error).__name__} when its gradient was applied: {error}")
