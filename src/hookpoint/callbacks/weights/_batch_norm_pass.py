"""Run a pass over the data to measure batch norm statistics for the model's current weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hookpoint.callbacks.weights._weight_average import named_buffers
from hookpoint.core.loop.evaluation import preserved_randomness
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.run.run import Run, now_of, set_now, stepper_of


def batch_norm_buffers(model: Any) -> dict[str, Any]:
    """Return a model's batch norm statistics by name."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return dict(named_buffers(model, of=_BatchNorm))


def measured_statistics(run: Run, model: Any, data: Any, forward: Callable[[Any], object] | None) -> dict[str, Any]:
    """Return batch norm statistics over the data, measured with torch's update_bn. The result is empty if there are no batches.

    Afterwards, the model's own statistics, the train or eval mode of each module, and the random number generators are
    restored. Values that are logged during the measurement are dropped.
    """
    from torch import nn
    from torch.optim.swa_utils import update_bn

    machine, loader, count = machine_of(run), stepper_of(run).batches(data, None), 0
    prepare = machine.options.prepare

    class WholeBatchModel(nn.Module):
        """A wrapper around the model for update_bn. It has the same modules and is called with a whole batch."""

        def __init__(self) -> None:
            super().__init__()
            self.modules_of_model = nn.ModuleList(models)

        def forward(self, batch: Any) -> None:
            if forward is not None:
                forward(batch)
            else:
                _validation_forward(run, batch)

    def batches() -> Iterator[list[Any]]:
        nonlocal count
        for batch in loader:
            count += 1
            # update_bn passes only the first item of a list to the model, so the batch is wrapped in a list.
            yield [batch if prepare is None else prepare(batch)]

    models = model.values() if hasattr(model, "values") else model if isinstance(model, list | tuple) else [model]
    models = [module for module in models if hasattr(module, "modules")]
    before = _cloned(batch_norm_buffers(model))
    modules = [module for root in models for module in root.modules()]
    settings = [(module, module.training, getattr(module, "momentum", None)) for module in modules]
    with preserved_randomness(machine.objects.randomness, loader), machine.options.may_wait():
        machine.logbook.open_page("val", is_side=True)
        try:
            update_bn(batches(), WholeBatchModel())
            measured = _cloned(batch_norm_buffers(model))
        finally:
            for name, buffer in batch_norm_buffers(model).items():
                buffer.data.copy_(before[name])
            for module, training, momentum in settings:
                module.training = training
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.momentum = momentum
            machine.logbook.drop_page()
    return _over_all_ranks(run, measured, count)


def _cloned(buffers: dict[str, Any]) -> dict[str, Any]:
    return {name: buffer.detach().clone() for name, buffer in buffers.items()}


def _over_all_ranks(run: Run, statistics: dict[str, Any], batches: int) -> dict[str, Any]:
    """Return the statistics over the batches on all ranks. In a pipeline, all ranks see the same batches."""
    if run.team.size > 1 and not run.team.has_stages:
        # Floating-point statistics are means over batches; integers count batches.
        sums = [value.double() * batches if value.is_floating_point() else value for value in statistics.values()]
        total, *numbers = run.team.sums([batches, *(number for value in sums for number in value.reshape(-1).tolist())])
        batches, rest = int(total), iter(numbers)
        for value in statistics.values():
            own = [next(rest) for _ in range(value.numel())]
            means = [number / max(batches, 1) for number in own] if value.is_floating_point() else own
            value.copy_(value.new_tensor(means).view_as(value))
    return statistics if batches else {}


def _validation_forward(run: Run, batch: Any) -> None:
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
