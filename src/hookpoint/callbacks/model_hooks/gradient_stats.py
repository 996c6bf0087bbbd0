"""GradientStats: the size of gradients and weight updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.name_pattern import Pattern
from hookpoint.callbacks._shared.step_gradients import OtherOptimizers, require_step_hooks, step_gradients
from hookpoint.callbacks.model_hooks._gradient_sizes import dense, joined_ratio, joined_sizes, sizes, update_norms, update_ratio
from hookpoint.callbacks.model_hooks._pattern_callback import MeasuringCallback
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.run import Run


class GradientStats(MeasuringCallback):
    """Log the norm, the largest magnitude and the fraction of nonfinite values of the gradients that a step uses.

        pattern: Names of parameters, as for `ModuleHooks`.
        per_parameter: Also log `gradient/<parameter>/norm` and so on.
        updates: Also log `gradient/update_ratio`, the norm of the weight change relative to the norm of the weights. About
            0.001 is healthy.
        every: Measure every n-th step; by default, the log steps (`log_every` of the Runner or Loop).

    The metrics are `gradient/norm`, `gradient/max` and `gradient/nonfinite`. A logged value is the mean since the last log
    step. Gradients are read at on_step_begin. At this point, they are accumulated over all batches of the step, unscaled and
    clipped. A step that the fp16 scaler skips is not measured. A step that a fused optimizer itself skips is still measured,
    and its values are nonfinite.

    With multiple optimizers, the steps of each one are counted and measured separately. The metrics of the first optimizer have
    the names above. The metrics of the others end with the optimizer's key or index, as in `gradient/norm@critic`.

    All ranks log the same values, even if parameters are sharded. If ranks have different layers, they wait for each other at
    measured steps. Otherwise, a step waits for the GPU only if gradients are sparse.

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

    keeps: ClassVar[str] = "with multiple optimizers, the number of steps of each"
    step_cost: ClassVar[str] = (
        "one comparison; on a measured step, three passes over the gradients and, with `updates`, a copy of the weights"
    )

    def __init__(
        self,
        pattern: Pattern | Iterable[Pattern] = "*",
        *,
        per_parameter: bool = False,
        updates: bool = False,
        every: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(pattern, every, **options)
        self.per_parameter = per_parameter
        self.updates = updates
        self._metrics = ("norm", "max", "nonfinite", *(["update_ratio"] if updates else []))
        self.may_write = tuple(f"gradient/{name}" for name in self._metrics)
        self.writes_anything = per_parameter
        self._parameters: dict[str, Any] = {}
        self._before: dict[str, Any] | None = None
        self._others = OtherOptimizers()
        self._counts: dict[str, int] = {}
        if updates:  # define the handler only if needed, because each handler costs time
            self.on_step_end = self._measure_update  # type: ignore[method-assign]

    def on_setup(self, run: Run) -> None:
        self.steps.check(run)
        self.find_parameters(run)
        require_step_hooks(run, str(self.name), "measure gradients")
        suffixes = [_suffix(run, index) for index in range(len(run.optimizers))]
        self.may_write = tuple(f"gradient/{name}{suffix}" for suffix in suffixes for name in self._metrics)

    def on_run_begin(self, run: Run) -> None:
        self._counts = {}
        self._others.observe(run, self, self._measure_other, self._measure_update if self.updates else None)

    def on_train_epoch_begin(self, run: Run) -> None:
        self._parameters = self.find_parameters(run)

    def leaves_graph(self, run: Run) -> bool:
        """Return whether the next step must run outside the CUDA graph so that it can be measured."""
        return self.steps.has_next(run)

    def on_step_begin(self, run: Run) -> None:
        self._before = None
        if self.steps.has_next(run):
            self._measure(run)

    def _measure_other(self, run: Run, index: int) -> None:
        """Count a step of another optimizer, and measure its gradients if the step is due."""
        self._before = None
        name = _suffix(run, index)
        self._counts[name] = self._counts.get(name, 0) + 1
        if self.steps.has(run, self._counts[name]):
            self._measure(run, index)

    def _measure(self, run: Run, index: int = 0) -> None:
        suffix = _suffix(run, index)
        gradients = {name: dense(gradient) for name, gradient in step_gradients(run, self._parameters.items(), index)}
        total = sizes(gradients.values())
        if run.team.has_stages:
            count = sum(gradient.numel() for gradient in gradients.values())
            total = joined_sizes(run.gather([*map(float, total.values()), count]))
        run.log({f"gradient/{name}{suffix}": value for name, value in total.items()})
        for name, gradient in gradients.items() if self.per_parameter else ():
            run.log({f"gradient/{name}/{size}": value for size, value in sizes([gradient]).items()})
        if self.updates:
            self._before = {name: dense(self._parameters[name]).clone() for name in gradients}

    def on_run_end(self) -> None:
        self._others.remove()
        self._parameters, self._before = {}, None

    def _measure_update(self, run: Run, index: int = 0) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        name = f"gradient/update_ratio{_suffix(run, index)}"
        pairs = [(old, dense(self._parameters[name])) for name, old in before.items()]
        if run.team.has_stages:
            run.log(name, joined_ratio(run.gather([float(norm) for norm in update_norms(pairs)])))
        elif pairs:
            run.log(name, update_ratio(pairs))

    def state_dict(self) -> dict[str, Any]:
        return dict(self._counts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts = dict(state)


def _suffix(run: Run, index: int) -> str:
    """Return the suffix of the names of an optimizer's metrics."""
    if index == 0:
        return ""
    return f"@{list(run.optimizer)[index] if isinstance(run.optimizer, Mapping) else index}"
