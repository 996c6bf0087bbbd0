"""Server lines: how the workers on other processes reach the parameter server on the chief."""

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
    """The parameter server as a worker on another process has it: each call is a message to the chief.

    A push waits until the chief has taken it, not until it is applied: the next pull does.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], group: Any) -> None:
        self._group = group
        self._parcel = TensorBuffer(parameters)

    def pull(self, worker: int, into: Callable[[Sequence[torch.Tensor]], None]) -> int:
        self._ask(PULL)
        dist.recv(self._parcel.buffer, src=0, group=self._group)
        if self._parcel.number == NO_VERSION:
            raise OutOfStep(
                f"rank {worker} waits for the parameter server; another process has failed.", see="what the others say"
            )
        into([one for one in self._parcel.tensors() if one is not None])
        return self._parcel.number

    def push(self, worker: int, gradients: Sequence[torch.Tensor | None]) -> None:
        self._parcel.put(gradients)
        self._ask(PUSH)
        dist.send(self._parcel.buffer, dst=0, group=self._group)

    def drop(self, worker: int) -> None:
        self._ask(DROP)

    def leave(self, worker: int, *, has_failed: bool = False) -> None:
        self._ask(FAILED if has_failed else DONE)

    def _ask(self, what: int) -> None:
        dist.send(torch.tensor([what]), dst=0, group=self._group)


class ServerRpc:
    """The chief's end: a thread for each worker on another process, which calls the server for it.

    A thread ends when its worker says that it is done, or has failed, or is gone; until then it answers, also when the server
    has failed, so that no worker waits for an answer that never comes.
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
        """Wait until every worker has left; say whether all have."""
        until = monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self, worker: int) -> None:
        server = self._server
        try:
            parcel, asked = TensorBuffer(server.parameters), torch.zeros(1, dtype=torch.int64)
            while True:
                dist.recv(asked, src=worker, group=self._group)
                if asked == PULL:
                    self._answer(worker, parcel)
                elif asked == PUSH:
                    dist.recv(parcel.buffer, src=worker, group=self._group)
                    self._apply(worker, parcel)
                elif asked == DROP:
                    server.drop(worker)
                else:
                    if asked == FAILED:
                        server.fail(f"rank {worker} has failed")
                    return
        except RuntimeError:
            server.fail(f"rank {worker} is gone")
        except BaseException as error:
            server.fail(f"its thread for rank {worker} failed with {type(error).__name__}: {error}")
            raise
        finally:
            server.leave(worker)

    def _answer(self, worker: int, parcel: TensorBuffer) -> None:
        try:
            parcel.number = self._server.pull(worker, parcel.put)
        except OutOfStep as error:
            self._server.fail(str(error))
            parcel.number = NO_VERSION
        dist.send(parcel.buffer, dst=worker, group=self._group)

    def _apply(self, worker: int, parcel: TensorBuffer) -> None:
        try:
            self._server.push(worker, parcel.tensors())
        except OutOfStep as error:
            self._server.fail(str(error))
        except Exception as error:  # of the optimizer: the chief raises it
            self._server.fail(f"{type(error).__name__} when its gradient was applied: {error}")
