"""AsyncSGD: ranks compute gradients at their own pace, and a parameter server on the chief applies them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.core.callback.callback import Callback
from hookpoint.core.checkpoint.stateful import state_of
from hookpoint.core.errors import BadStrategy, OutOfStep
from hookpoint.core.logger import logger
from hookpoint.core.team.team import Answer, Team
from hookpoint.parallel.async_sgd._parameter_server import ParameterServer, RemoteServer, ServerRpc, TensorBuffer
from hookpoint.parallel.async_sgd._staleness import Applied, Staleness
from hookpoint.parallel.averaging.sync_callback import SyncCallback, copy_into
from hookpoint.parallel.shared.buffer_sync import BufferSync
from hookpoint.parallel.shared.model_setup import modules_in, optimizers_in, parameters_of, send_weights
from hookpoint.parallel.strategy.strategy import StrategyDefaults
from hookpoint.parallel.team.init_process import join_team
from hookpoint.parallel.team.peer_errors import waiting_in
from hookpoint.parallel.team.torch_team import MESSAGES, SECONDS, TorchTeam, gloo_group

TRACED = 100_000  # maximum number of gradients in the trace
CLOSE_SECONDS = 30.0  # how long a failed chief waits for the other ranks to detect the failure


class AsyncSGD(StrategyDefaults):
    """Send each rank's gradients to a parameter server, which applies them as they arrive. Ranks do not wait for each other.

    Before a batch, a rank pulls the server's current parameters. After the backward pass, it pushes its gradient. The server
    runs in threads on the chief and steps with your optimizer. The other ranks do not step.

        staleness: Maximum number of other ranks' gradients that are applied between a rank's pull and its push. A rank that
            would exceed this number waits. With 0, one rank computes at a time. With (number of ranks - 1) or more, all ranks
            compute concurrently.
        wait_seconds: How long a rank waits for the server or for other ranks before it raises an error.

    Each gradient that this rank has pushed counts as one step of the run. All ranks run the same number of steps, and the
    server applies the gradients of all ranks. Between a step and the next batch, the model has the parameters of the last pull.
    At the end of a training pass, before a validation pass, and before a checkpoint is saved, all ranks wait for each other.
    They then use the server's parameters. The server uses the chief's current learning rate and other settings. A request, such
    as `run.stop()`, takes effect on all ranks `lag` steps later. Gradients and their norms are local to each rank. Runs are not
    reproducible and do not resume bit for bit, because the order of gradients varies. In a single process, AsyncSGD does
    nothing.

    On the chief, `trace` contains the last 100,000 applied gradients.

    >>> model = torch.nn.Linear(2, 1)
    >>> runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), strategy=AsyncSGD(staleness=2))
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    def __init__(self, staleness: int = 4, *, wait_seconds: float = SECONDS) -> None:
        if not isinstance(staleness, int) or isinstance(staleness, bool) or staleness < 0:
            raise BadStrategy(f"AsyncSGD: staleness must be an integer >= 0, got {staleness!r}.")
        if not wait_seconds > 0:
            raise BadStrategy(f"AsyncSGD: wait_seconds must be > 0, got {wait_seconds!r}.")
        self.staleness, self.wait_seconds = staleness, wait_seconds
        self.callbacks: list[Callback] = [SyncCallback(self)]
        self._trace: deque[Applied] = deque(maxlen=TRACED)
        self._model: Any = None
        self._optimizer: Any = None
        self._parameters: list[torch.nn.Parameter] = []
        self._server: ParameterServer | RemoteServer | None = None
        self._rpc: ServerRpc | None = None
        self._group: Any = None
        self._rank, self._version = 0, 0
        self._is_computing = self._is_in_run = False

    @property
    def lag(self) -> int:
        """Number of steps until a request takes effect. One rank can be at most this many steps ahead of another."""
        return max(2, self.staleness)

    @property
    def trace(self) -> list[Applied]:
        return list(self._trace)

    def team(self) -> Team:
        kind = partial(AsyncTeam, lag=self.lag, before_waiting=self._check_may_wait, on_close=self._close_team)
        team = join_team(seconds=self.wait_seconds, kind=kind)
        if team.size > 1:
            self._group = gloo_group(self.wait_seconds)
            self._rank, self._is_in_run, self._version = team.rank, True, 0
            self._trace.clear()
        return team

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        self._model, modules = model, modules_in(model)
        send_weights(modules)
        self._buffers = BufferSync(modules)
        optimizers = optimizers_in(optimizer)
        if optimizers:
            if len(optimizers) > 1 or not isinstance(optimizers[0], torch.optim.Optimizer):
                what = "multiple optimizers" if len(optimizers) > 1 else type(optimizers[0]).__name__
                raise BadStrategy(f"AsyncSGD does not support {what}.", give="one torch.optim.Optimizer")
            self._optimizer = optimizers[0]
            self._parameters = parameters_of(self._optimizer)
            self._replace_step(self._optimizer)
        return model

    def evaluating(self, *, same_batch_count: bool) -> AbstractContextManager[None]:
        self._check_may_wait()
        self.synchronize()
        return nullcontext()

    # The training step

    def begin_batch(self) -> None:
        """Pull the parameters from the server. With accumulation, this happens only before the first batch of a window."""
        if self._is_computing:
            return
        if self._server is None:
            self._open_server()
        self._call_server(lambda server: server.pull(self._rank, partial(copy_into, self._parameters)))
        self._is_computing = True

    def drop_batch(self) -> None:
        """Tell the server that this rank sends no gradient, because its step was skipped."""
        if self._is_computing:
            self._call_server(lambda server: server.drop(self._rank))
            self._is_computing = False

    def end_run(self) -> None:
        """Do nothing. The parameter server shuts down later, when the team is closed."""

    def _push(self, optimizer: Any, closure: Any = None) -> None:
        """Send this rank's gradient to the server instead of stepping the optimizer."""
        if closure is not None or not self._is_computing:
            what = "with a closure" if closure is not None else "without a new batch"
            raise BadStrategy(f"AsyncSGD sends a gradient in optimizer.step(), which was called {what}.")
        optimizer._opt_called = True  # schedulers check this attribute
        self._call_server(lambda server: server.push(self._rank, [parameter.grad for parameter in self._parameters]))
        self._is_computing = False

    def _call_server(self, call: Callable[[Any], Any]) -> None:
        try:
            call(self._server)
        except OutOfStep:
            raise
        except RuntimeError as error:
            if self._rank == 0:
                raise
            message = f"rank {self._rank} is waiting for the parameter server, but the chief is gone."
            raise OutOfStep(message, see="its output") from error

    def _replace_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make `optimizer.step()` send the gradient to the server during a run.

        Outside a run, `optimizer.step()` updates the parameters as usual. The optimizer's step hooks are called in both cases.
        """
        before = optimizer.step

        def push(_: Any, closure: Any = None) -> Any:
            return self._push(optimizer, closure)

        hooked: Any = torch.optim.Optimizer.profile_hook_step(push)

        def step(_: Any, closure: Any = None) -> Any:
            return hooked(optimizer, closure) if self._is_in_run else before(closure)

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined] # _push sets the attribute that schedulers check
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    # The server's parameters

    def synchronize(self) -> None:
        """Wait until all gradients are applied, then copy the server's parameters to all ranks. All ranks must call this."""
        server, rpc = self._server, self._rpc
        if server is None:
            return
        if isinstance(server, ParameterServer):
            assert rpc is not None
            server.leave(0)
            have_left = rpc.join(self.wait_seconds)
            if server.failure or not have_left:
                why = server.failure or f"not all ranks arrived within {self.wait_seconds:.0f} s"
                raise OutOfStep(f"the parameter server could not apply all gradients: {why}.", see="their output")
            self._version = server.rule.version
            server.copy_to_model()
        else:
            self._call_server(lambda server: server.leave(self._rank))
        self._server = self._rpc = None
        self._is_computing = False
        buffer = TensorBuffer(self._parameters)
        buffer.number = self._version
        buffer.put(self._parameters)
        with waiting_in("the server's parameters"):
            dist.broadcast(buffer.bytes, 0, group=self._group)
            self._buffers.sync()
        self._version = buffer.number
        copy_into(self._parameters, [tensor for tensor in buffer.tensors() if tensor is not None])

    def _open_server(self) -> None:
        if self._rank:
            self._server = RemoteServer(self._parameters, self._group)
            return
        rule = Staleness(self.staleness, self._version)
        server = ParameterServer(self._parameters, self._optimizer, rule, self._trace, self.wait_seconds)
        self._server, self._rpc = server, ServerRpc(server, range(1, dist.get_world_size()), self._group)

    def _check_may_wait(self) -> None:
        """Raise BadStrategy if other ranks may be waiting for this rank's gradient. Waiting for them would deadlock."""
        if self._is_computing and self._server is not None:
            why = "which may be waiting for its gradient"
            what = f"AsyncSGD: between a batch and its step, rank {self._rank} cannot wait for other ranks, {why}."
            raise BadStrategy(what, call="collectives at on_iter_begin or on_iter_end, with accumulate=1")

    def _close_team(self, close: Callable[[], None]) -> None:
        """End the run. If it has failed, notify the other ranks, so that the server's threads end."""
        server, rpc = self._server, self._rpc
        self._server = self._rpc = None
        self._is_in_run = self._is_computing = False
        if isinstance(server, RemoteServer):
            with suppress(RuntimeError):  # the chief may have exited
                server.leave(self._rank, has_failed=True)
        elif server is not None:
            server.fail("rank 0 has failed")
        close()
        if rpc is None or rpc.join(min(CLOSE_SECONDS, self.wait_seconds)):
            dist.destroy_process_group(self._group)
        else:
            logger.warning("AsyncSGD: the parameter server is still waiting for a rank that does not respond")

    # Checkpoints

    def rank_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def full_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the checkpoint entries, with the server's parameters and optimizer state."""
        self.synchronize()
        now = {"model": self._model, "optimizer": self._optimizer, "fit/strategy": self}
        return {name: state_of(now[name]) if name in now else part for name, part in parts.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"version": self._version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._version = state["version"]


class AsyncTeam(TorchTeam):
    """A team that checks for deadlocks before it waits for other ranks. Requests take effect after `lag` steps.

    `before_waiting` raises an error if this rank must not wait now. `on_close` is called with a function that closes the team.
    """

    inexact = "gradients were applied in order of arrival"

    def __init__(
        self, *, lag: int, before_waiting: Callable[[], None], on_close: Callable[[Callable[[], None]], None], **options: Any
    ) -> None:
        super().__init__(**options)
        self.lag, self._before_waiting, self._on_close = lag, before_waiting, on_close

    def _group(self, number: int = MESSAGES) -> Any:
        if number == MESSAGES:
            self._before_waiting()
        return super()._group(number)

    def start_agreeing(self, number: int) -> Answer:
        answer = super().start_agreeing(number)

        def checked_answer() -> int:
            self._before_waiting()
            return answer()

        return checked_answer

    def close(self) -> None:
        self._on_close(super().close)
