"""The run as MindSpore callbacks see it: `run_context.original_args()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import OutsideIteration


def _net_outputs(run: Any) -> Any:
    try:
        return _detached(run.loss if run.loss is not None else run.outputs)
    except OutsideIteration:  # MindSpore would return the last step's outputs; return the logged loss instead
        if "loss" not in run.metrics:
            raise
        return run.metrics["loss"]


def _detached(value: Any) -> Any:
    """Detach a tensor or a list of tensors from the autograd graph, because MindSpore tensors have no graph.

    If a tensor that requires gradients is converted to a number, torch warns.
    """
    if type(value) in (tuple, list):
        return type(value)(map(_detached, value))
    return value.detach() if getattr(value, "requires_grad", False) else value


def _eval_results(run: Any) -> dict[str, Any]:
    """Return the validation metrics under their MindSpore names: without the prefix val_, except that the loss is eval_loss."""
    metrics = {name.removeprefix("val_"): run.metrics[name] for name in run.metrics if name.startswith("val_")}
    return {f"eval_{name}" if name == "loss" else name: value for name, value in metrics.items()}


LIVE: dict[str, Callable[[Any], Any]] = {
    "batch_num": lambda run: length_of(run.train_loader),
    "cur_epoch_num": lambda run: run.epoch,
    "cur_step_num": lambda run: run.current_iteration,
    "epoch_num": lambda run: run.max_epochs,
    "eval_results": _eval_results,
    "list_callback": lambda run: [entry.subject for entry in run.hooks.entries],
    "loss_fn": lambda run: run.criterion,
    "metrics": lambda run: run.metrics,
    "mode": lambda run: "eval" if run.mode == "val" else "train",
    "net_outputs": _net_outputs,
    "network": lambda run: run.model,
    "optimizer": lambda run: run.optimizer,
    "train_dataset": lambda run: run.train_loader,
    "train_network": lambda run: run.model,
    "valid_dataset": lambda run: run.val_loader,
}


class OriginalArgs(dict[str, Any]):
    """A dict with attribute access. It stores values that callbacks set. Other values are read from the run; see LIVE."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        object.__setattr__(self, "_run", run)

    def __missing__(self, name: str) -> Any:
        if name in LIVE:
            return LIVE[name](object.__getattribute__(self, "_run"))
        raise KeyError(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            known = ", ".join(sorted({*self, *LIVE}))
            raise AttributeError(f"the run's arguments have no '{name}'; known: {known}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in LIVE

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default
