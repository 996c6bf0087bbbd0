"""The statistics of batch norm for the weights that a model has now, measured with a pass over data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hookpoint.callbacks.weights._weight_average import named_buffers
from hookpoint.core.loop.evaluation import preserved_randomness
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.run.run import Run, now_of, set_now, stepper_of


def batch_norm_buffers(model: Any) -> dict[str, Any]:
    """Return the statistics of a model's batch norms, by name; empty where it has none."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return dict(named_buffers(model, of=_BatchNorm))


def measured_statistics(run: Run, model: Any, data: Any, forward: Callable[[Any], object] | None) -> dict[str, Any]:
    """Return the statistics over the data, as torch's update_bn measures them; empty where there is no batch.

    Nothing else changes: the model keeps its own statistics and modes, random numbers are put back, what is logged is dropped.
    """
    from torch import nn
    from torch.optim.swa_utils import update_bn

    class Through(nn.Module):
        """What update_bn takes for the model: it has its modules, and is called with a whole batch."""

        def __init__(self) -> None:
            super().__init__()
            self.modules_of_model = nn.ModuleList(_modules(model))

        def forward(self, batch: Any) -> None:
            if forward is not None:
                forward(batch)
            else:
                _as_in_validation(run, batch)

    own = {name: buffer.detach().clone() for name, buffer in batch_norm_buffers(model).items()}
    machine = machine_of(run)
    loader = stepper_of(run).batches(data, None)
    batches = _Counted(run, loader)
    modules = [module for one in _modules(model) for module in one.modules()]
    found_as = [(module, module.training, getattr(module, "momentum", None)) for module in modules]
    with preserved_randomness(machine.objects.randomness, loader), machine.options.may_wait(), _unlogged(run):
        try:
            update_bn(batches, Through())
            found = {name: buffer.detach().clone() for name, buffer in batch_norm_buffers(model).items()}
        finally:
            for name, buffer in batch_norm_buffers(model).items():
                buffer.data.copy_(own[name])
            for module, training, momentum in found_as:
                module.training = training
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.momentum = momentum
    return _of_all(run, found, batches.number)


def _of_all(run: Run, found: dict[str, Any], batches: int) -> dict[str, Any]:
    """Return the statistics over the batches of all processes, the same on each; those of a pipeline see the same ones."""
    if run.team.size > 1 and not run.team.has_stages:
        # The statistics are means over batches; what is no mean counts them.
        shares = [one.double() * batches if one.is_floating_point() else one for one in found.values()]
        total, *sums = run.team.sums([batches, *(value for one in shares for value in one.reshape(-1).tolist())])
        batches, numbers = int(total), iter(sums)
        for one in found.values():
            values = [next(numbers) for _ in range(one.numel())]
            means = [value / max(batches, 1) for value in values] if one.is_floating_point() else values
            one.copy_(one.new_tensor(means).view_as(one))
    return found if batches else {}


class _Counted:
    """Batches, on the device of the run, each in a list: update_bn takes the first of several things for the input."""

    def __init__(self, run: Run, loader: Iterable[Any]) -> None:
        self._prepare, self._loader = machine_of(run).options.prepare, loader
        self.number = 0

    def __iter__(self) -> Iterator[list[Any]]:
        for batch in self._loader:
            self.number += 1
            yield [batch if self._prepare is None else self._prepare(batch)]


def _as_in_validation(run: Run, batch: Any) -> None:
    now = Iteration()
    now.batch = batch
    outer_now, outer_mode = now_of(run), run.mode
    set_now(run, now)
    run.mode = "val"
    try:
        (run.hooks.dispatch("on_val_forward", mode="val") or stepper_of(run).forward)(run)
    finally:
        set_now(run, outer_now)
        run.mode = outer_mode


@contextmanager
def _unlogged(run: Run) -> Iterator[None]:
    logbook = machine_of(run).logbook
    logbook.open_page("val", is_side=True)
    try:
        yield
    finally:
        logbook.drop_page()


def _modules(model: Any) -> list[Any]:
    several = model.values() if hasattr(model, "values") else model if isinstance(model, list | tuple) else [model]
    return [one for one in several if hasattr(one, "modules")]
