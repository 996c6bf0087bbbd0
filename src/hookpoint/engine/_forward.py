"""Forward: from a batch to a model's arguments, and from its outputs to a loss."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from hookpoint.core.errors import BadLoop
from hookpoint.core.fields import TARGET_NAMES, is_dataclass, is_graph, named_fields, target_field
from hookpoint.core.log.metric_objects import scores_in, takes_tensors
from hookpoint.engine.data.as_loader import described

SEQUENCES = (tuple, list)


class Forward:
    """Call a model with a batch, whatever it is made of. What the model takes is looked up once.

    A tensor is the one input. Of a tuple or list the last is the target where there is a criterion, or where the model takes
    fewer; the others are inputs. Of a mapping or dataclass the model gets what its forward names; what is left over is the
    target, or what is named as targets are, where the forward takes that too. A batch of graphs is given as a whole to a
    forward with one argument.
    """

    def __init__(self, model: Any, criterion: Callable[..., Any] | None) -> None:
        self._model = model if callable(model) else _refuse
        self._criterion = criterion
        self.may_return_loss = criterion is None
        self.parts: Mapping[str, Any] = {}  # of the last loss, where it is a sum
        self._takes_tensors = criterion is not None and takes_tensors(criterion)
        function = model.forward if isinstance(model, torch.nn.Module) else self._model
        parameters = _parameters(function)
        positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        required = sum(one.default is one.empty for one in positional)
        most = math.inf if any(one.kind is one.VAR_POSITIONAL for one in parameters) else len(positional)
        # What a batch has above this many parts is its target.
        self._inputs = max(1, most if criterion is None else 1)
        self._inputs_to_predict = max(1, most if criterion is None else required)
        self._takes_one = required <= 1
        self._names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        self._takes_any_name = any(one.kind is one.VAR_KEYWORD for one in parameters)

    def outputs(self, batch: Any, *, predicts: bool) -> tuple[Any, Any]:
        """Return the model's outputs and the targets, None where the batch has none."""
        if isinstance(batch, SEQUENCES):
            if len(batch) == 2 and self._criterion is not None and not predicts:
                return self._model(batch[0]), batch[1]
            has_targets = len(batch) > (self._inputs_to_predict if predicts else self._inputs)
            inputs, targets = (batch[:-1], batch[-1]) if has_targets else (batch, None)
            return self._model(*inputs), targets
        if isinstance(batch, Mapping) or is_dataclass(batch) or is_graph(batch):
            parts = named_fields(batch)
            if not is_graph(batch):
                named, targets = self._named(parts)
                return self._model(**named), targets
            return self._model(batch) if self._takes_one else self._model(**self._named(parts)[0]), target_field(parts)
        return self._model(batch), None

    def loss(self, outputs: Any, targets: Any, *, is_needed: bool = True) -> Any:
        """Return the loss of the outputs: the criterion's, or the one that the model returned itself.

        Where it is not needed, as in validation, a model may return none, as many detectors do in eval mode. Of a dict of
        losses it is the one that is called "loss", or else their sum; `parts` has the others.
        """
        if self._criterion is not None:
            if targets is None:
                raise BadLoop(
                    "the batch has no targets for the criterion.", give="batches of (inputs, targets), or no criterion"
                )
            if self._takes_tensors and not isinstance(outputs, Tensor):
                outputs = scores_in(outputs, self._criterion)
            loss = self._criterion(outputs, targets)
            return loss if isinstance(loss, Tensor) or not isinstance(loss, Mapping) else self._total(loss)
        if isinstance(outputs, torch.Tensor) and outputs.numel() == 1:
            return outputs
        if isinstance(outputs, Mapping):
            loss = self._total(outputs) if _are_losses(outputs) else outputs.get("loss")
            if loss is not None:
                return loss
        elif getattr(outputs, "loss", None) is not None:
            return outputs.loss
        elif type(outputs) is tuple and (is_needed or any(map(_is_loss, outputs))):
            raise BadLoop(
                f"there is no criterion, and the model returned {described(outputs)}, whose loss is not known.",
                **{"return": "(logits, loss), or a dict with 'loss', from the forward"},
                write="or Runner(model, optimizer, main=lambda run: run.model(run.batch)[...])",
            )
        if not is_needed:
            return None
        raise BadLoop(
            f"there is no criterion, and the model returned {type(outputs).__name__}, which is no loss.",
            give="Runner(model, optimizer, criterion)",
            write="or a MainCallback whose on_iter_forward sets run.loss",
        )

    def _total(self, losses: Mapping[str, Any]) -> Any:
        total, self.parts = total_of(losses)
        return total

    def split(self, outputs: Any) -> tuple[Any, Any]:
        """Return outputs and loss of a model that returns them as a pair, as nanoGPT does; no loss for anything else."""
        if self.may_return_loss and type(outputs) is tuple and len(outputs) == 2 and isinstance(outputs[0], torch.Tensor):
            scores, loss = outputs
            if loss is None or (_is_loss(loss) and not _is_loss(scores)):
                return scores, loss
        return outputs, None

    def _named(self, items: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        if self._takes_any_name:
            left = [name for name in items if self._criterion is not None and name in TARGET_NAMES]
        else:
            left = [name for name in items if name not in self._names]
        named = {name: value for name, value in items.items() if name not in left}
        if not named:
            raise BadLoop(
                f"the model's forward takes {', '.join(self._names)}; the batch has {', '.join(items)}.",
                write="a MainCallback whose on_iter_forward calls the model as it wants to be called",
            )
        taken = target_field(named)
        if taken is not None and target_field({name: items[name] for name in left}) is None:
            return named, taken
        return named, items[left[0]] if len(left) == 1 else {name: items[name] for name in left} or None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin does not tell what it takes
        signature = inspect.signature(_refuse)
    return list(signature.parameters.values())


def total_of(losses: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the loss of a dict of losses, which is called "loss" or else their sum, and the others by name."""
    if not _are_losses(losses):
        shown = {name: described(value) for name, value in losses.items()}
        raise BadLoop(f"a dict of losses has a tensor of one element for each name, not {shown}.", give="the losses alone")
    parts = {str(name): value for name, value in losses.items() if name != "loss"}
    return losses["loss"] if "loss" in losses else sum(parts.values()), parts


def _are_losses(values: Mapping[str, Any]) -> bool:
    return bool(values) and all(isinstance(value, torch.Tensor) and value.numel() == 1 for value in values.values())


def _is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise BadLoop(
        "several models are given; how a batch goes through them only their owner knows.",
        write="a MainCallback whose on_iter_forward sets run.outputs and run.loss",
    )
