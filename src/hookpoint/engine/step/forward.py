"""Forward: pass a batch to a model, and compute a loss from the model's outputs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from hookpoint.core.callback.main_callback import MainCallback
from hookpoint.core.errors import BadArgument, BadLoop, BadStrategy, NotACallback
from hookpoint.core.fields import TARGET_NAMES, is_dataclass, is_graph, named_fields, target_field
from hookpoint.core.log.metric_objects import scores_in, takes_tensors
from hookpoint.core.run.run import Run
from hookpoint.engine.data.as_loader import described
from hookpoint.parallel.strategy.strategy import Pipelined

SEQUENCES = (tuple, list)


class Forward:
    """Call a model with a batch. The model's signature is inspected only once.

    - A tensor is passed to the model as its only input.
    - In a tuple or list, the last item is the target if there is a criterion or if the model takes fewer arguments than there
      are items. The other items are inputs.
    - From a mapping or dataclass, the model receives the fields whose names are parameters of its forward method. The other
      fields are the target. If the forward method takes all fields, a field with a common name such as "labels" is the target.
    - A batch of graphs from PyTorch Geometric is passed as one object if the forward method takes one argument.
    """

    def __init__(self, model: Any, criterion: Callable[..., Any] | None) -> None:
        self._model = model if callable(model) else _refuse
        self.criterion = criterion
        self.parts: Mapping[str, Any] = {}  # the components of the last loss, if the loss is a sum
        self._takes_tensors = criterion is not None and takes_tensors(criterion)
        function = model.forward if isinstance(model, torch.nn.Module) else self._model
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except ValueError:  # a function written in C has no signature
            parameters = list(inspect.signature(_refuse).parameters.values())
        positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        required = sum(one.default is one.empty for one in positional)
        most = math.inf if any(one.kind is one.VAR_POSITIONAL for one in parameters) else len(positional)
        # A batch with more than `_inputs` items contains a target.
        self._inputs = max(1, most if criterion is None else 1)
        self._inputs_to_predict = max(1, most if criterion is None else required)
        self._takes_one = required <= 1
        self._names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        self._takes_any_name = any(one.kind is one.VAR_KEYWORD for one in parameters)

    def compute(self, batch: Any, mode: str | None) -> tuple[Any, Any, Any]:
        """Return a batch's outputs, targets and loss. In prediction, the loss is None."""
        if mode == "pred" or self.criterion is None or not isinstance(batch, SEQUENCES) or len(batch) != 2:
            return self._compute(batch, mode)
        inputs, targets = batch
        outputs = self._model(inputs)
        if targets is None or not isinstance(outputs, Tensor):
            return outputs, targets, self.loss(outputs, targets)
        loss = self.criterion(outputs, targets)  # the same as self.loss(...) for a tensor, but faster
        return outputs, targets, loss if isinstance(loss, Tensor) or not isinstance(loss, Mapping) else self._total(loss)

    def _compute(self, batch: Any, mode: str | None) -> tuple[Any, Any, Any]:
        result, targets = self.outputs(batch, predicts=mode == "pred")
        outputs, loss = self._split(result)
        if mode == "pred":
            return outputs, targets, None
        return outputs, targets, self.loss(result, targets, is_needed=mode == "train") if loss is None else loss

    def outputs(self, batch: Any, *, predicts: bool) -> tuple[Any, Any]:
        """Return the model's outputs and the batch's targets. The targets are None if the batch contains none."""
        if isinstance(batch, SEQUENCES):
            has_targets = len(batch) > (self._inputs_to_predict if predicts else self._inputs)
            inputs, targets = (batch[:-1], batch[-1]) if has_targets else (batch, None)
            return self._model(*inputs), targets
        if isinstance(batch, Mapping) or is_dataclass(batch) or is_graph(batch):
            fields = named_fields(batch)
            if not is_graph(batch):
                named, targets = self._named(fields)
                return self._model(**named), targets
            return self._model(batch) if self._takes_one else self._model(**self._named(fields)[0]), target_field(fields)
        return self._model(batch), None

    def loss(self, outputs: Any, targets: Any, *, is_needed: bool = True) -> Any:
        """Return the criterion's loss or, without a criterion, the loss that the model returned.

        With `is_needed=False`, as in validation, the model may return no loss: many detectors return none in eval mode. For a
        dict of losses, the loss is the entry "loss". If there is no such entry, the loss is the sum of all entries. `parts`
        contains the entries other than "loss".
        """
        if self.criterion is not None:
            if targets is None:
                raise BadLoop("the batch has no targets for the criterion.", give="(inputs, targets) batches, or no criterion")
            if self._takes_tensors and not isinstance(outputs, Tensor):
                outputs = scores_in(outputs, self.criterion)
            loss = self.criterion(outputs, targets)
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
                f"there is no criterion, and the model returned {described(outputs)}: cannot tell which is the loss.",
                **{"return": "(logits, loss), or a dict with 'loss', from the forward"},
                write="Runner(model, optimizer, main=lambda run: run.model(run.batch)[...]) instead",
            )
        if not is_needed:
            return None
        raise BadLoop(
            f"there is no criterion, and the model returned {type(outputs).__name__}, which is not a loss.",
            give="Runner(model, optimizer, criterion)",
            write="a MainCallback whose on_iter_forward sets run.loss instead",
        )

    def _total(self, losses: Mapping[str, Any]) -> Any:
        total, self.parts = total_of(losses)
        return total

    def _split(self, outputs: Any) -> tuple[Any, Any]:
        """Split a pair (outputs, loss), which models such as nanoGPT return. For any other result, the loss is None."""
        if self.criterion is None and type(outputs) is tuple and len(outputs) == 2 and isinstance(outputs[0], torch.Tensor):
            scores, loss = outputs
            if loss is None or (_is_loss(loss) and not _is_loss(scores)):
                return scores, loss
        return outputs, None

    def _named(self, fields: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return the model's keyword arguments and the targets."""
        if self._takes_any_name:
            left = [name for name in fields if self.criterion is not None and name in TARGET_NAMES]
        else:
            left = [name for name in fields if name not in self._names]
        named = {name: value for name, value in fields.items() if name not in left}
        if not named:
            what = f"the model's forward takes {', '.join(self._names)}; the batch has {', '.join(fields)}."
            raise BadLoop(what, write="a MainCallback whose on_iter_forward calls the model")
        target = target_field(named)
        if target is not None and target_field({name: fields[name] for name in left}) is None:
            return named, target
        return named, fields[left[0]] if len(left) == 1 else {name: fields[name] for name in left} or None


class PipelinedForward(Forward):
    """Pass a batch to a model as `Forward` does, but compute outputs and loss with a pipeline.

    In training, the pipeline also computes the gradients. `loss.backward()` then adds them to the parameters' gradients.
    """

    def __init__(self, model: Any, criterion: Callable[..., Any] | None, strategy: Pipelined) -> None:
        super().__init__(model, criterion)
        signature = inspect.signature(model.forward)
        self._model = lambda *args, **kwargs: signature.bind(*args, **kwargs).args
        self._strategy = strategy
        self._loss: Any = None

    def compute(self, batch: Any, mode: str | None) -> tuple[Any, Any, Any]:
        return self._compute(batch, mode)

    def outputs(self, batch: Any, *, predicts: bool) -> tuple[Any, Any]:
        arguments, targets = super().outputs(batch, predicts=predicts)
        self._loss = None
        if predicts or not torch.is_grad_enabled():
            return self._strategy.outputs(arguments), targets
        if targets is None:
            raise BadStrategy("the batch has no targets for the criterion.", give="batches of (inputs, targets)")
        outputs, self._loss = self._strategy.forward_backward(arguments, targets, self.criterion)
        return outputs, targets

    def loss(self, outputs: Any, targets: Any, *, is_needed: bool = True) -> Any:
        loss, self._loss = self._loss, None
        return super().loss(outputs, targets, is_needed=is_needed) if loss is None else loss


class FunctionMain(MainCallback):
    """Compute the loss with a function of the run: `Runner(..., main=lambda run: my_loss(run.model, run.batch))`.

    If the function returns a dict of losses, the loss is the entry "loss". If there is no such entry, the loss is the sum of
    all entries. All entries other than "loss" are logged.
    """

    writes_anything = True

    def __init__(self, function: Callable[[Run], Any]) -> None:
        if isinstance(function, type):
            raise NotACallback.a_class(function)
        if not callable(function):
            cure = "a MainCallback, or a function that returns the loss"
            raise BadArgument(f"main must be callable, got {function!r}.", give=cure)
        super().__init__(name=getattr(function, "__name__", None))
        self._function = function

    def on_iter_forward(self, run: Run) -> None:
        loss = self._function(run)
        if isinstance(loss, Mapping):
            loss, parts = total_of(loss)
            run.log(parts)
        run.loss = loss


def total_of(losses: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the total loss in a dict of losses, and the other entries.

    The total is the entry "loss" or, if it is missing, the sum of all entries.
    """
    if not _are_losses(losses):
        shown = {name: described(value) for name, value in losses.items()}
        raise BadLoop(f"a dict of losses must contain tensors with one element, got {shown}.", give="only the losses")
    parts = {str(name): value for name, value in losses.items() if name != "loss"}
    return losses["loss"] if "loss" in losses else sum(parts.values()), parts


def _are_losses(values: Mapping[str, Any]) -> bool:
    return bool(values) and all(isinstance(value, torch.Tensor) and value.numel() == 1 for value in values.values())


def _is_loss(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    what = "there are multiple models: the default forward cannot call them."
    raise BadLoop(what, write="a MainCallback whose on_iter_forward sets run.outputs and run.loss")
