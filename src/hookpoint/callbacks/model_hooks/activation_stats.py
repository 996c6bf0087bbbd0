"""ActivationStats: mean, spread, dead share and size of what modules compute."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from hookpoint.callbacks._shared.name_pattern import NamePattern, Pattern
from hookpoint.callbacks._shared.named_modules import is_compiled, named_modules
from hookpoint.callbacks.model_hooks._hook_call import HookCall
from hookpoint.callbacks.model_hooks._hook_handles import HookHandles
from hookpoint.callbacks.model_hooks._measured_steps import MeasuredSteps
from hookpoint.callbacks.model_hooks._tensor_stats import STATS, TensorStats, first_tensor
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run


class ActivationStats(Callback):
    """Log mean, standard deviation, share of zeros and largest magnitude of the outputs of modules, in training.

    `pattern` is as for `ModuleHooks`. The names are `activation/<module>/mean`, `/std`, `/zeros` and `/max`; `stats` says
    which of them. Measured are the batches of the steps at which values are sent (`log_every` of the Runner or Loop), or with
    `every` those of each n-th step; what is sent is the mean since the last time, as of anything that is logged. Of a module
    that returns several things the first tensor counts; the calls of one that is called several times count together, and
    those of a checkpointed one once.

    Listens to on_setup, on_run_begin, on_train_iter_begin, on_train_iter_end, on_iter_skip, on_exception and on_run_end. Keeps
    nothing in the checkpoint. Runs on the chief, and measures its batches. A step pays for two comparisons; one that is
    measured for hooks and a few passes over each output, on its device: no GPU is waited for. In a compiled model the hooks
    stay for the whole run, between its parts, as those of `ModuleHooks`.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with Loop([ActivationStats("1", every=1, stats=["zeros"])], model=model) as run:
    ...     for batch in run.batches([torch.zeros(4, 2)]):
    ...         outputs = model(batch - 1e9)
    >>> list(run.metrics)
    ['activation/1/zeros']
    """

    ranks = "chief"
    writes_anything = True  # the names of modules are known in the run

    def __init__(
        self,
        pattern: Pattern | Iterable[Pattern],
        *,
        every: int | None = None,
        stats: Iterable[str] = STATS,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.pattern = NamePattern("ActivationStats", pattern)
        self.stats = tuple([stats] if isinstance(stats, str) else stats)
        if not self.stats or set(self.stats) - set(STATS):
            raise BadArgument(f"ActivationStats(stats={stats!r}) means nothing.", choose=", ".join(STATS))
        self.steps = MeasuredSteps("ActivationStats", every)
        set_default_name(self, f"ActivationStats({self.pattern})")
        self._handles = HookHandles()
        self._modules: dict[str, Any] = {}
        self._measured: dict[str, TensorStats] | None = None
        self._stays = False

    def on_setup(self, run: Run) -> None:
        self.steps.check("ActivationStats", run)
        self._choose(run)

    def on_run_begin(self, run: Run) -> None:
        self._stop()
        self._choose(run)
        self._stays = is_compiled(run.model)  # where it would be compiled again each time they come
        if self._stays:
            self._hook(run)

    def on_train_iter_begin(self, run: Run) -> None:
        if self.steps.has_next(run):
            self._measured = {}
            if not self._handles:
                self._hook(run)

    def on_train_iter_end(self, run: Run) -> None:
        if self._measured is not None:
            for name, stats in self._rest().items():
                values = stats.values()
                run.log({f"activation/{name}/{stat}": values[stat] for stat in self.stats if stat in values})

    def on_iter_skip(self, run: Run) -> None:
        if run.mode == "train":
            self._rest()

    def on_exception(self) -> None:
        self._stop()

    def on_run_end(self) -> None:
        self._stop()

    def _choose(self, run: Run) -> None:
        self._modules = self.pattern.chosen(str(self.name), "module", named_modules(run.model))

    def _hook(self, run: Run) -> None:
        calls = ((one, HookCall(str(self.name), "forward", name, self._take, 3)) for name, one in self._modules.items())
        self._handles.register(run.model, ((one.register_forward_hook, call, {}) for one, call in calls))

    def _take(self, module: Any, args: Any, output: Any, *, name: str) -> None:
        # Other passes may be made in the middle of an iteration, and backward computes what is checkpointed once more.
        if self._measured is not None and self._run is not None and self._run.mode == "train" and not _is_in_backward():
            tensor = first_tensor(output)
            if tensor is not None:
                self._measured.setdefault(name, TensorStats()).add(tensor)

    def _rest(self) -> dict[str, TensorStats]:
        """Measure nothing until the next time; return what was measured."""
        measured, self._measured = self._measured or {}, None
        if not self._stays:
            self._handles.remove()
        return measured

    def _stop(self) -> None:
        self._stays, self._modules = False, {}
        self._rest()


def _is_in_backward() -> bool:
    import torch

    task: int = torch._C._current_graph_task_id()
    return task != -1
