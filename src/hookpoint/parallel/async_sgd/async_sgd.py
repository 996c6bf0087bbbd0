"""AsyncSGD: every process computes gradients at its own pace, and a parameter server on the chief applies them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.core.callback.callback import Callback
from hookpoint.core.checkpoint.stateful import state_of
from hookpoint.core.errors import BadStrategy, OutOfStep
from hookpoint.core.team.team import Solo, Team
from hookpoint.parallel.async_sgd._async_team import ServedTeam
from hookpoint.parallel.async_sgd._parameter_server import ParameterServer
from hookpoint.parallel.async_sgd._server_rpc import RemoteServer, ServerRpc
from hookpoint.parallel.async_sgd._staleness import Applied, Staleness
from hookpoint.parallel.async_sgd._tensor_buffer import TensorBuffer
from hookpoint.parallel.averaging.all_reduce_mean import put, waiting_for
from hookpoint.parallel.averaging.sync_callback import Merging
from hookpoint.parallel.shared.buffers import SharedBuffers
from hookpoint.parallel.shared.parts_by_name import modules_in, optimizers_in, send_weights
from hookpoint.parallel.team.init_process import joined
from hookpoint.parallel.team.torch_team import SECONDS

TRACED = 100_000  # gradients
GOODBYE_SECONDS = 30.0  # how long a chief that has failed waits for the others to hear of it

logger = logging.getLogger("hookpoint")


class AsyncSGD:
    """Let no process wait for the gradients of the others: each sends its own to a server, which applies them as they come.

    Before a batch a process gets the parameters that the server has at that time; when its gradient is there, it sends it, and
    the server, which lives in threads of the chief, steps with it, by the optimizer that was given: the only one that steps.
    `staleness` bounds how many gradients of others may be applied between the two; a process that would break the bound waits.
    With 0 one process at a time computes; as many as there are other processes is the least with which all compute at once.

    A step of the run is a gradient that this process has sent: all processes make as many, and the server makes the sum of
    them. Between a step and the next batch the model has the parameters that the last gradient was computed on. At the end of
    a training pass, in a validation and in a checkpoint, all wait for each other and have the server's copy. Settings and
    learning rates are those of the chief at the time. What any process asks for happens on all at the same step, `lag` steps
    later. A gradient and its norm are those of one process. Going on from a checkpoint is inexact, as is every repetition:
    the order in which gradients come is never the same. In one process it does nothing.

    `trace` is on the chief who had which gradient applied when: the last hundred thousand of them.

    >>> model = torch.nn.Linear(2, 1)
    >>> runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), strategy=AsyncSGD(staleness=2))
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    def __init__(self, staleness: int = 4, *, wait_seconds: float = SECONDS) -> None:
        if not isinstance(staleness, int) or isinstance(staleness, bool) or staleness < 0:
            raise BadStrategy(f"AsyncSGD(staleness={staleness!r}).", give="a number of gradients, 0 or more")
        if not wait_seconds > 0:
            raise BadStrategy(f"AsyncSGD(wait_seconds={wait_seconds!r}).", give="a number of seconds above 0")
        self.staleness, self.wait_seconds = staleness, wait_seconds
        self.callbacks: list[Callback] = [Merging(self)]
        self._trace: deque[Applied] = deque(maxlen=TRACED)
        self._model: Any = None
        self._modules: list[torch.nn.Module] = []
        self._optimizer: Any = None
        self._parameters: list[torch.nn.Parameter] = []
        self._server: ParameterServer | RemoteServer | None = None
        self._lines: ServerRpc | None = None
        self._group: Any = None
        self._rank, self._version = 0, 0
        self._is_computing = self._is_in_run = False

    @property
    def lag(self) -> int:
        """How many steps after it was asked for something happens: as far as a process may be ahead of another."""
        return max(2, self.staleness)

    @property
    def trace(self) -> list[Applied]:
        return list(self._trace)

    def team(self) -> Team:
        team = joined(seconds=self.wait_seconds)
        if isinstance(team, Solo):
            return team
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.wait_seconds))
        self._rank, self._is_in_run, self._version = team.rank, True, 0
        self._trace.clear()
        return ServedTeam(team, self.lag, self._refuse_to_wait, self._leave)

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        self._model, self._modules = model, modules_in(model)
        send_weights(self._modules)
        self._buffers = SharedBuffers(self._modules)
        optimizers = optimizers_in(optimizer)
        if optimizers:
            if len(optimizers) > 1 or not isinstance(optimizers[0], torch.optim.Optimizer):
                what = "several optimizers" if len(optimizers) > 1 else type(optimizers[0]).__name__
                raise BadStrategy(f"AsyncSGD cannot step with {what}.", give="one torch.optim.Optimizer")
            self._optimizer = optimizers[0]
            self._parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
            self._replace_step(self._optimizer)
        return model

    def accumulating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def merge_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        pass  # they are never merged

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def evaluating(self, *, is_even: bool) -> AbstractContextManager[None]:
        self._refuse_to_wait()
        self.settle()
        return nullcontext()

    def close(self) -> None:
        pass

    # A step

    def begin_batch(self) -> None:
        """Get the parameters to compute on; in a window of several batches, before the first."""
        if self._is_computing:
            return
        if self._server is None:
            self._open()
        assert self._server is not None
        self._heard(lambda server: server.pull(self._rank, lambda values: put(self._parameters, values)))
        self._is_computing = True

    def drop_batch(self) -> None:
        """Let nobody wait for the gradient of a batch whose step was skipped."""
        if self._is_computing:
            self._heard(lambda server: server.drop(self._rank))
            self._is_computing = False

    def leave(self) -> None:
        pass  # the team's end is the run's

    def _send(self, optimizer: Any, closure: Any = None) -> None:
        """Send this process's gradient, in the place of a step."""
        if closure is not None or not self._is_computing:
            what = "a closure" if closure is not None else "no batch before it"
            raise BadStrategy(f"optimizer.step() is called with {what}, and AsyncSGD sends a gradient to the server in it.")
        optimizer._opt_called = True  # what schedulers look for
        self._heard(lambda server: server.push(self._rank, [one.grad for one in self._parameters]))
        self._is_computing = False

    def _heard(self, talk: Callable[[Any], Any]) -> None:
        try:
            talk(self._server)
        except OutOfStep:
            raise
        except RuntimeError as error:
            if self._rank == 0:
                raise
            raise OutOfStep(
                f"rank {self._rank} waits for the parameter server; the chief is gone.", see="what it says"
            ) from error

    def _replace_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let `optimizer.step()` send the gradient, with all of its hooks around that; outside of a run it steps as before."""
        before = optimizer.step

        def send(_: Any, closure: Any = None) -> Any:
            return self._send(optimizer, closure)

        hooked: Any = torch.optim.Optimizer.profile_hook_step(send)

        def step(_: Any, closure: Any = None) -> Any:
            return hooked(optimizer, closure) if self._is_in_run else before(closure)

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # we tell the schedulers ourselves
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    # The server's copy

    def settle(self) -> None:
        """Wait until all gradients are applied, and have the server's copy on all processes. All of them call this."""
        server, lines = self._server, self._lines
        if server is None:
            return
        if isinstance(server, ParameterServer):
            assert lines is not None
            server.leave(0)
            has_ended = lines.join(self.wait_seconds)
            if server.failure or not has_ended:
                why = server.failure or f"not all processes came within {self.wait_seconds:.0f} s"
                raise OutOfStep(f"the parameter server waits for the last gradients; {why}.", see="what they say")
            self._version = server.rule.version
            server.give_back()
        else:
            self._heard(lambda server: server.leave(self._rank))
        self._server = self._lines = None
        self._is_computing = False
        parcel = TensorBuffer(self._parameters)
        parcel.number = self._version
        parcel.put(self._parameters)
        with waiting_for("the server's copy of the parameters"):
            dist.broadcast(parcel.buffer, 0, group=self._group)
            self._buffers.share()
        self._version = parcel.number
        put(self._parameters, _all(parcel.tensors()))

    def _open(self) -> None:
        if self._rank:
            self._server = RemoteServer(self._parameters, self._group)
            return
        rule = Staleness(self.staleness, self._version)
        server = ParameterServer(self._parameters, self._optimizer, rule, self._trace, self.wait_seconds)
        self._server, self._lines = server, ServerRpc(server, range(1, dist.get_world_size()), self._group)

    def _refuse_to_wait(self) -> None:
        """Refuse to wait for others who may wait for this process's gradient."""
        if self._is_computing and self._server is not None:
            raise BadStrategy(
                f"rank {self._rank} is to wait for the other processes between a batch and its step, and with AsyncSGD some"
                " of them may not begin theirs before this one has ended.",
                talk="at on_iter_begin or on_iter_end, where a step is made of one batch",
            )

    def _leave(self, close_team: Callable[[], None]) -> None:
        """Let go of the run. Where it has failed, the others are told, and the server's threads end with them."""
        server, lines = self._server, self._lines
        self._server = self._lines = None
        self._is_in_run = self._is_computing = False
        has_ended = True
        if isinstance(server, RemoteServer):
            try:
                server.leave(self._rank, has_failed=True)
            except RuntimeError:
                pass  # the chief is gone
        elif server is not None:
            server.fail("rank 0 has failed")
        close_team()
        if lines is not None:
            has_ended = lines.join(min(GOODBYE_SECONDS, self.wait_seconds))
        if has_ended:
            dist.destroy_process_group(self._group)
        else:
            logger.warning("the parameter server's threads still wait for a process that neither ends nor answers")

    # Checkpoints

    def rank_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def full_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parts with the server's model and the state of its optimizer."""
        self.settle()
        now = {"model": self._model, "optimizer": self._optimizer, "fit/strategy": self}
        return {name: state_of(now[name]) if name in now else part for name, part in parts.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"version": self._version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._version = state["version"]

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.staleness, self.wait_seconds)


def _again(staleness: int, wait_seconds: float) -> AsyncSGD:
    return AsyncSGD(staleness, wait_seconds=wait_seconds)


def _all(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [one for one in tensors if one is not None]
