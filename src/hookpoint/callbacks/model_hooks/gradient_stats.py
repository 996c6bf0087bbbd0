"""GradientStats: how large gradients and updates are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from hookpoint.callbacks._shared.name_pattern import NamePattern, Pattern
from hookpoint.callbacks._shared.named_modules import chosen_parameters, has_other_layers
from hookpoint.callbacks._shared.step_gradients import step_gradients
from hookpoint.callbacks.model_hooks._gradient_sizes import dense, joined_ratio, joined_sizes, sizes, update_norms, update_ratio
from hookpoint.callbacks.model_hooks._measured_steps import MeasuredSteps
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import Run


class GradientStats(Callback):
    """Log the norm of the gradients that a step is about to use, their largest magnitude, and the share that is not finite.

    The names are `gradient/norm`, `gradient/max` and `gradient/nonfinite`, of all parameters whose names fit `pattern`, which
    is as for `ModuleHooks`; with `per_parameter` there is `gradient/<parameter>/norm` and so on as well. `updates` adds
    `gradient/update_ratio`, the norm of what the step changed in ratio to the norm of the weights; some 0.001 is healthy.
    Gradients are those at on_step_begin: of all batches that were accumulated, clipped, and no longer scaled. A step that the
    scaler of fp16 leaves out is not seen; a fused optimizer leaves it out by itself, and it shows as not finite. Measured are
    the steps at which values are sent (`log_every` of the Runner or Loop), or with `every` each n-th; what is sent is the mean
    since the last time, as of anything that is logged.

    Listens to on_setup, on_train_epoch_begin, on_step_begin and on_run_end, with `updates` to on_step_end. Keeps nothing in the
    checkpoint. Runs on all ranks, which have the same values, also of sharded parameters, and of layers that lie on different
    processes, which wait for each other at steps that are measured. A step pays for one comparison; one
    that is measured for three passes over the gradients and with `updates` a copy of the weights, on their device: no GPU is
    waited for, unless gradients are sparse.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with Loop([GradientStats(every=1)], model=model, optimizer=optimizer) as run:
    ...     for batch in run.batches([torch.full((4, 1), 0.75)]):
    ...         model(batch).sum().backward()
    ...         optimizer.step()
    >>> run.metrics["gradient/norm"], run.metrics["gradient/max"], run.metrics["gradient/nonfinite"]
    (5.0, 4.0, 0.0)
    """

    def __init__(
        self,
        pattern: Pattern | Iterable[Pattern] = "*",
        *,
        per_parameter: bool = False,
        updates: bool = False,
        every: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.pattern = NamePattern("GradientStats", pattern)
        self.per_parameter = per_parameter
        self.updates = updates
        sizes_logged = ("norm", "max", "nonfinite", *(["update_ratio"] if updates else []))
        self.may_write = tuple(f"gradient/{size}" for size in sizes_logged)
        self.writes_anything = per_parameter
        self.steps = MeasuredSteps("GradientStats", every)
        set_default_name(self, f"GradientStats({self.pattern})")
        self._parameters: dict[str, Any] = {}
        self._before: dict[str, Any] | None = None
        if updates:  # the end of a step is watched only where it has to be
            self.on_step_end = self._measure_update  # type: ignore[method-assign]

    def on_setup(self, run: Run) -> None:
        self.steps.check("GradientStats", run)
        self._choose(run)
        optimizer = next(iter(run.optimizer.values()), None) if isinstance(run.optimizer, Mapping) else run.optimizer
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise BadLoop(f"{self.name} sees no optimizer step, before which it measures.", give="optimizer=...")

    def on_train_epoch_begin(self, run: Run) -> None:
        self._choose(run)

    def on_step_begin(self, run: Run) -> None:
        self._before = None
        if not self.steps.has_next(run):
            return
        gradients = {name: dense(one) for name, one in step_gradients(run.optimizer, self._parameters.items())}
        found = sizes(gradients.values())
        if has_other_layers(run):
            found = joined_sizes(run.gather([*map(float, found.values()), sum(one.numel() for one in gradients.values())]))
        run.log({f"gradient/{name}": value for name, value in found.items()})
        for name, gradient in gradients.items() if self.per_parameter else ():
            run.log({f"gradient/{name}/{what}": value for what, value in sizes([gradient]).items()})
        if self.updates:
            self._before = {name: dense(self._parameters[name]).clone() for name in gradients}

    def on_run_end(self) -> None:
        self._parameters, self._before = {}, None

    def _measure_update(self, run: Run) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        pairs = [(old, dense(self._parameters[name])) for name, old in before.items()]
        if has_other_layers(run):
            run.log("gradient/update_ratio", joined_ratio(run.gather([float(norm) for norm in update_norms(pairs)])))
        elif pairs:
            run.log("gradient/update_ratio", update_ratio(pairs))

    def _choose(self, run: Run) -> None:
        self._parameters = chosen_parameters(run, self.pattern, str(self.name))
