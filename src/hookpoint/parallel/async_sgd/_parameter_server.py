"""ParameterServer: the copy of the parameters that counts, and the optimizer that steps it with everybody's gradients."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Any

import torch

from hookpoint.core.errors import OutOfStep
from hookpoint.parallel.async_sgd._staleness import Applied, Staleness
from hookpoint.parallel.averaging.all_reduce_mean import put


class ParameterServer:
    """Apply gradients in the order in which they come, and hand out the parameters that result.

    It lives on the chief, and is called by one thread for each worker; one at a time is in it, and those who may not go on yet
    wait inside. It steps a twin of the user's optimizer: of the same class, with the settings that the user's has at that
    moment and with its state, which both have in common, but on parameters of the server's own.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        rule: Staleness,
        trace: deque[Applied],
        wait_seconds: float,
    ) -> None:
        self.rule = rule
        self._theirs = list(parameters)
        self.parameters = [torch.nn.Parameter(one.detach().clone()) for one in self._theirs]
        self._optimizer = optimizer
        self._twin = _twin_of(optimizer, dict(zip(map(id, self._theirs), self.parameters, strict=True)))
        self._trace = trace
        self._wait_seconds = wait_seconds
        self._asking: deque[int] = deque()  # who wants parameters, in the order of asking: nobody is passed over for ever
        self._changed = Condition()
        self._failure = ""

    def pull(self, worker: int, into: Callable[[Sequence[torch.Tensor]], None]) -> int:
        """Wait until this worker may compute, give the parameters to a function, and return their version."""
        with self._changed:
            self._asking.append(worker)
            try:
                self._wait(worker, lambda: self._asking[0] == worker and self.rule.may_pull())
            finally:
                self._asking.remove(worker)
                self._changed.notify_all()
            into(self.parameters)
            return self.rule.pull(worker)

    def push(self, worker: int, gradients: Sequence[torch.Tensor | None]) -> None:
        """Wait until this gradient may be applied, and step with it."""
        with self._changed:
            self._wait(worker, lambda: self.rule.may_push(worker))
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
            for mine, theirs in zip(self._twin.param_groups, self._optimizer.param_groups, strict=True):
                mine.update({name: value for name, value in theirs.items() if name != "params"})
            self._twin.step()
            self._trace.append(Applied(worker, *self.rule.push(worker)))
            self._changed.notify_all()

    def drop(self, worker: int) -> None:
        """Wait no longer for the gradient that a worker was computing."""
        self.leave(worker)

    def leave(self, worker: int) -> None:
        """Take a worker off: nobody waits for its gradient any more."""
        with self._changed:
            self.rule.leave(worker)
            self._changed.notify_all()

    def fail(self, why: str) -> None:
        """Let nobody wait here any more, as one of the processes has failed."""
        with self._changed:
            self._failure = self._failure or why
            self._changed.notify_all()

    @property
    def failure(self) -> str:
        return self._failure

    def give_back(self) -> None:
        """Put the parameters into the model of the chief, and let its optimizer know of the state that has come about."""
        with self._changed:
            put(self._theirs, self.parameters)
            for theirs, mine in zip(self._theirs, self.parameters, strict=True):
                if mine in self._twin.state:
                    self._optimizer.state[theirs] = self._twin.state[mine]

    def _wait(self, worker: int, may_go_on: Callable[[], bool]) -> None:
        came = self._changed.wait_for(lambda: bool(self._failure) or may_go_on(), self._wait_seconds)
        if self._failure:
            raise OutOfStep(f"rank {worker} waits for the parameter server; {self._failure}.", see="what it says")
        if not came:
            late = ", ".join(str(other) for other in self.rule.computing if other != worker)
            waited = f"for {self._wait_seconds:.0f} s, and has got no gradient of rank {late}"
            raise OutOfStep(f"rank {worker} waits for the parameter server {waited}.", see="what it says")


def _twin_of(optimizer: torch.optim.Optimizer, parameters: dict[int, torch.nn.Parameter]) -> Any:
    """Return an optimizer like another one, for other parameters, with the very state that the other has."""
    states = {id(state): state for state in optimizer.state.values()}
    return copy.deepcopy(optimizer, {**parameters, **states})
