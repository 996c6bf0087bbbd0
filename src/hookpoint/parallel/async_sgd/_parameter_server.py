"""ParameterServer: the authoritative parameters, and the optimizer that updates them with the gradients of all ranks."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Any

import torch

from hookpoint.core.errors import OutOfStep
from hookpoint.parallel.async_sgd._staleness import Applied, Staleness
from hookpoint.parallel.averaging.all_reduce_mean import copy_into


class ParameterServer:
    """Apply gradients in the order in which they arrive and hand out the resulting parameters.

    Runs on the chief, with one thread for each worker. Only one thread is active at a time; workers that must not continue wait
    inside. The server steps a twin of the user's optimizer: it has the same class, the user's current settings and the same
    state objects, but updates the server's own parameters.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        rule: Staleness,
        trace: deque[Applied],
        wait_seconds: float,
    ) -> None:
        self.rule, self.failure = rule, ""
        self._model_parameters = list(parameters)
        self.parameters = [torch.nn.Parameter(one.detach().clone()) for one in self._model_parameters]
        self._optimizer = optimizer
        replaced: dict[int, Any] = dict(zip(map(id, self._model_parameters), self.parameters, strict=True))
        self._twin = copy.deepcopy(optimizer, {**replaced, **{id(state): state for state in optimizer.state.values()}})
        self._trace = trace
        self._wait_seconds = wait_seconds
        self._queue: deque[int] = deque()  # workers that wait for parameters, first come first served
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
        """Wait until this gradient may be applied, and step with it."""
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
        """Wake up all waiting workers with an error: a rank has failed."""
        with self._changed:
            self.failure = self.failure or why
            self._changed.notify_all()

    def copy_to_model(self) -> None:
        """Copy the parameters into the chief's model, and the new state into its optimizer."""
        with self._changed:
            copy_into(self._model_parameters, self.parameters)
            for parameter, own in zip(self._model_parameters, self.parameters, strict=True):
                if own in self._twin.state:
                    self._optimizer.state[parameter] = self._twin.state[own]

    def _wait(self, worker: int, may_continue: Callable[[], bool]) -> None:
        is_ready = self._changed.wait_for(lambda: bool(self.failure) or may_continue(), self._wait_seconds)
        if self.failure:
            raise OutOfStep(f"rank {worker} waits for the parameter server; {self.failure}.", see="its output")
        if not is_ready:
            late = ", ".join(str(other) for other in self.rule.computing if other != worker)
            waited = f"for {self._wait_seconds:.0f} s, which got no gradient from rank {late}"
            raise OutOfStep(f"rank {worker} waits for the parameter server {waited}.", see="its output")
