"""ActivationStats: statistics of module outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import choices
from hookpoint.callbacks._shared.name_pattern import Pattern
from hookpoint.callbacks._shared.named_modules import is_compiled
from hookpoint.callbacks.model_hooks._pattern_callback import MeasuringCallback
from hookpoint.callbacks.model_hooks._tensor_stats import STATS, TensorStats, first_tensor
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.run import Run


class ActivationStats(MeasuringCallback):
    """Log the mean, standard deviation, fraction of zeros and largest magnitude of module outputs during training.

        pattern: A pattern for the names of modules, with the same syntax as in `ModuleHooks`.
        every: Measure all batches of every n-th step. By default, measure each log step (`log_every` of the Runner or Loop).
        stats: Which of "mean", "std", "zeros" and "max" to log, as `activation/<module>/mean` and so on.

    A logged value is the mean since the last log step. If a module returns multiple values, only the first tensor is measured.
    If a module is called more than once, its outputs are measured together. If activation checkpointing calls a module a second
    time, the second call is not measured. The callback runs on the chief and measures only the chief's batches. In a compiled
    model, the hooks remain registered for the whole run. They cause graph breaks, as described in `ModuleHooks`.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with Loop([ActivationStats("1", every=1, stats=["zeros"])], model=model) as run:
    ...     for batch in run.batches([torch.zeros(4, 2)]):
    ...         outputs = model(batch - 1e9)
    >>> list(run.metrics)
    ['activation/1/zeros']
    """

    ranks = "chief"
    optional_points = ("on_iter_skip",)
    writes_anything = True  # the module names are known only during the run
    step_cost: ClassVar[str] = (
        "two comparisons; on a measured step, also hooks and a few reductions of each output on its device"
    )

    def __init__(
        self,
        pattern: Pattern | Iterable[Pattern],
        *,
        every: int | None = None,
        stats: Iterable[str] = STATS,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(pattern, every, **options)
        self.stats = choices("ActivationStats", "stats", stats, STATS)
        self._modules: dict[str, Any] = {}
        self._measured: dict[str, TensorStats] | None = None
        self._keeps_hooks = False

    def on_setup(self, run: Run) -> None:
        self.steps.check(run)
        self.find_modules(run)

    def on_run_begin(self, run: Run) -> None:
        self.on_run_end()
        self._modules = self.find_modules(run)
        self._keeps_hooks = is_compiled(run.model)  # each registration would cause a recompilation
        if self._keeps_hooks:
            self._hook(run)

    def on_train_iter_begin(self, run: Run) -> None:
        if self.steps.has_next(run):
            self._measured = {}
            if not self._handles:
                self._hook(run)

    def on_train_iter_end(self, run: Run) -> None:
        if self._measured is not None:
            for name, stats in self._stop_measuring().items():
                values = stats.values()
                run.log({f"activation/{name}/{stat}": values[stat] for stat in self.stats if stat in values})

    def on_iter_skip(self, run: Run) -> None:
        if run.mode == "train":
            self._stop_measuring()

    def on_run_end(self) -> None:
        self._keeps_hooks, self._modules = False, {}
        self._stop_measuring()

    on_exception = on_run_end

    def _hook(self, run: Run) -> None:
        self._handles.register(run.model, str(self.name), self._modules, {"forward": self._take})

    def _take(self, module: Any, args: Any, output: Any, *, name: str) -> None:
        # An iteration may contain other passes, and the backward pass calls checkpointed modules a second time.
        if self._measured is not None and self._run is not None and self._run.mode == "train" and not _is_in_backward():
            tensor = first_tensor(output)
            if tensor is not None:
                self._measured.setdefault(name, TensorStats()).add(tensor)

    def _stop_measuring(self) -> dict[str, TensorStats]:
        """Stop measuring until the next measured step; return the measurements."""
        measured, self._measured = self._measured or {}, None
        if not self._keeps_hooks:
            self._handles.remove()
        return measured


def _is_in_backward() -> bool:
    import torch

    task: int = torch._C._current_graph_task_id()
    return task != -1
