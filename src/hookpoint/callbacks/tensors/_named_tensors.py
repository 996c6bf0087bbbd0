"""NamedTensors: what is meant by the name of a tensor, and how it is read."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hookpoint.core.checkpoint.plain_names import plain_name
from hookpoint.core.errors import BadArgument, BadLoop, BadValue
from hookpoint.core.fields import named_fields
from hookpoint.core.text.spelling import near_miss

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run

    # What a name stands for, and the names that callbacks are given.
    Source = str | Callable[[Run], Any]
    Names = str | Iterable[str] | Mapping[str, Source]

logger = logging.getLogger("hookpoint")

OF_ITERATION = ("loss", "outputs", "batch", "targets")
GRADIENT = ".grad"
MOST_LISTED = 10
ALIKE = 0.7  # how alike a name has to be, from 0 to 1, to be what was meant
MISSING: Any = object()


class NamedTensors:
    """Read tensors of a run by name. There is no graph to look them up in; a name is the first of these that is there:

        loss  outputs  batch  targets     of the training iteration; a `run.loss` that was not set is what was logged as "loss"
        outputs/logits  batch/0           what is inside of them, by keys, names of fields, and numbers, at any depth
        fc.weight  norm.running_mean      a parameter or a buffer of the model, as it is now
        fc.weight.grad                    the gradient that the last optimizer step used, clipped and unscaled
        accuracy                          the latest value of a metric, as it was logged

    In a mapping, a name of one's own stands for any of them, or for a function of the run.

    Values are detached and not copied: they change with the next step. Gradients are copied before the step, as a loop may
    clear them right after it. What belongs to an iteration is that of the one which just ended; between epochs it is a copy
    from the last one of the epoch. With accumulation that is the last batch of a window, and gradients are those of all of it.
    Nothing here waits for a device, unless a metric is the mean of a pass that is not there yet.

    A name that is nearly a parameter's is refused at `check`, one that the first iteration does not have after that, and any
    other one, which may be a metric, when it is first read and not there.
    """

    def __init__(self, owner: str, names: Names) -> None:
        self.owner = owner
        self.sources: dict[str, Source] = _sources(owner, names)
        self.gradients = [name for name in self._words() if name.endswith(GRADIENT) and not _is_of_iteration(name)]
        self.clear()

    def clear(self) -> None:
        """Let go of everything that belongs to a run."""
        self._keeps = self._is_checked = self._has_stepped = self._has_said = False
        self._model: dict[str, Any] = {}
        self._copied: list[str] = []
        self._gradients: dict[str, Any] = {}
        self._kept: dict[str, Any] | None = None

    def check(self, run: Run) -> None:
        """Refuse what can be known to be wrong before the first step: for on_setup."""
        known = _of_model(run.model)
        for name in self._words():
            if name.partition("/")[0] in OF_ITERATION or name in known:
                continue
            if name.endswith(GRADIENT):
                self._check_gradient(run, name, known)
            elif (meant := near_miss(name, known)) is not None:
                raise BadLoop(f"{self.owner} reads '{name}', which the model does not have.", write=f"'{meant}'")

    def begin(self, run: Run, *, keeps: bool) -> None:
        """Get ready for a run. With `keeps`, values of an epoch's last iteration are to be there when it is over."""
        self.clear()
        self._model = _of_model(run.model)
        self._copied = [name for name in self.gradients if name not in self._model]  # a buffer may be called "grad"
        self._keeps = keeps and any(_is_of_iteration(source) for source in self.sources.values())

    def take_gradients(self, run: Run) -> None:
        """Copy the gradients that a step is about to use: for on_step_begin."""
        optimizer = next(iter(run.optimizer.values()), None) if isinstance(run.optimizer, Mapping) else run.optimizer
        scale = getattr(optimizer, "grad_scale", None)  # set where the step itself, and not the scaler, divides by it
        for name in self._copied:
            gradient = self._model[name.removesuffix(GRADIENT)].grad
            if gradient is not None:
                gradient = gradient.detach().clone() if scale is None else gradient.detach() / scale
            self._gradients[name] = gradient
        self._has_stepped = True

    def end_iteration(self, run: Run) -> None:
        """Refuse names after the first iteration; keep what is asked for when the epoch is over: for on_train_iter_end."""
        if not self._is_checked:
            self._is_checked = True
            self._check_first(run)
        if self._keeps:
            progress = run.progress
            if progress is None or progress.total is None or progress.done >= progress.total:
                found = {name: self._value(run, name) for name, source in self.sources.items() if _is_of_iteration(source)}
                self._kept = {name: _copy(value) for name, value in found.items()}

    def read(self, run: Run) -> dict[str, Any] | None:
        """Return the values by name; None while there are none: before the first iteration, or the first step of gradients."""
        if self._copied and not self._has_stepped:
            return None
        kept: dict[str, Any] | None = {}
        if run.mode != "train" and any(_is_of_iteration(source) for source in self.sources.values()):
            kept, self._kept = self._kept, None
        if kept is None:
            if not self._has_said:
                self._has_said = True
                logger.warning("%s has nothing to read: no training iteration of this epoch was seen to its end", self.owner)
            return None
        return {name: kept[name] if name in kept else self._value(run, name) for name in self.sources}

    def _words(self) -> Iterator[str]:
        return (source for source in self.sources.values() if isinstance(source, str))

    def _check_first(self, run: Run) -> None:
        """Refuse, however late the names are to be read, what is not in the first iteration, or is nearly a metric."""
        for name, source in self.sources.items():
            if not isinstance(source, str) or source in self._copied:
                continue
            if _is_of_iteration(source) or near_miss(source, run.metrics) is not None:
                self._value(run, name)

    def _value(self, run: Run, name: str) -> Any:
        source = self.sources[name]
        value = self._found(run, source) if isinstance(source, str) else source(run)
        if value is MISSING:
            assert isinstance(source, str)
            self._refuse(run, source)
        if hasattr(value, "detach"):
            return value.detach()
        if hasattr(value, "__array__") or isinstance(value, int | float | complex):
            return value
        if hasattr(value, "__float__"):  # a mean, of a metric
            return float(value)
        inside = [f"{source}/{key}" for key in _keys(value)] if isinstance(source, str) else []
        cures = {"write": " or ".join(map(repr, inside[:MOST_LISTED]))} if inside else {"give": "one tensor, array or number"}
        raise BadValue(f"{self.owner}: '{name}' is {_kind(value)}, and no tensor.", **cures)

    def _found(self, run: Run, name: str) -> Any:
        head, _, rest = name.partition("/")
        if head in OF_ITERATION:
            value = getattr(run, head)
            value = MISSING if value is None else _inside(value, rest) if rest else value
            if value is not MISSING:
                return value
        if name in self._model:
            return self._model[name]
        if name in self._gradients:
            gradient = self._gradients[name]
            if gradient is None:
                cures = {"leave": "it out, or see that it takes part in the loss and requires_grad is set"}
                raise BadLoop(f"{self.owner}: there is no '{name}' at step {run.step}.", **cures)
            return gradient
        return run.metrics.as_logged(name, MISSING)  # as it was logged: read as a metric it would be waited for

    def _check_gradient(self, run: Run, name: str, known: Mapping[str, Any]) -> None:
        parameter = name.removesuffix(GRADIENT)
        if parameter not in known:
            close = get_close_matches(parameter, known, 3, ALIKE) or list(known)[:MOST_LISTED]
            meant = {"write": " or ".join(f"'{one}{GRADIENT}'" for one in close)} if close else {"give": "model=..."}
            raise BadLoop(f"{self.owner} reads '{name}', and the model has no '{parameter}'.", **meant)
        optimizer = next(iter(run.optimizer.values()), None) if isinstance(run.optimizer, Mapping) else run.optimizer
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise BadLoop(f"{self.owner} sees no optimizer step, whose '{name}' it could read.", give="optimizer=...")

    def _refuse(self, run: Run, name: str) -> None:
        head = name.partition("/")[0]
        if head in OF_ITERATION and getattr(run, head) is None:
            logs = " or run.log(loss=...)" if name == "loss" else ""
            raise BadLoop(f"{self.owner} reads '{name}', and run.{head} was not set.", set=f"run.{head} = ...{logs}")
        here = list(dict.fromkeys([*self._of_iteration(run), *run.metrics]))
        close = get_close_matches(name, [*here, *self._model], 3, ALIKE)
        more = len(self._model) - MOST_LISTED
        known = [*here, *list(self._model)[:MOST_LISTED], *([f"and {more} more of the model"] if more > 0 else [])]
        meant = {"write": " or ".join(map(repr, close))} if close else {}
        raise BadLoop(f"{self.owner} reads '{name}', which is not there.", **meant, known=", ".join(known) or "none")

    def _of_iteration(self, run: Run) -> Iterator[str]:
        for name in OF_ITERATION:
            value = getattr(run, name) if run.mode == "train" else None
            if value is not None:
                keys = _keys(value)
                yield from (f"{name}/{key}" for key in keys) if keys else (name,)


def _sources(owner: str, names: Names) -> dict[str, Source]:
    """Return what each name stands for, or refuse what is no name."""
    several = [names] if isinstance(names, str) else list(names)
    sources = dict(names) if isinstance(names, Mapping) else {name: name for name in several}
    for name, source in sources.items():
        if not isinstance(name, str) or not name or not (callable(source) or (isinstance(source, str) and source)):
            cures = {"give": "names, as in ['loss', 'outputs/logits', 'fc.weight.grad']"}
            cures["write"] = "{'mine': lambda run: ...} for a function of the run"
            raise BadArgument(f"{owner}: {source!r} names no tensor.", **cures)
    if not sources:
        raise BadArgument(f"{owner} is given no names.", give="some, as in ['loss', 'outputs/logits', 'fc.weight.grad']")
    if len(sources) < len(several):
        raise BadArgument(f"{owner} is given a name twice: {', '.join(several)}.", give="each once")
    return sources


def _is_of_iteration(source: Source) -> bool:
    return not isinstance(source, str) or source.partition("/")[0] in OF_ITERATION


def _of_model(model: Any) -> dict[str, Any]:
    """Return parameters and buffers by name, of one model or several; tied ones under each of their names."""
    if isinstance(model, Mapping | list | tuple):
        pairs = model.items() if isinstance(model, Mapping) else enumerate(model)
        return {f"{key}.{name}": tensor for key, one in pairs for name, tensor in _of_model(one).items()}
    torch = sys.modules.get("torch")
    options = {"remove_duplicate": False} if torch is not None and isinstance(model, torch.nn.Module) else {}
    found: dict[str, Any] = {}
    for way in ("named_parameters", "named_buffers"):
        if hasattr(model, way):
            found.update((plain_name(name), tensor) for name, tensor in getattr(model, way)(**options))
    return found


def _inside(value: Any, path: str) -> Any:
    """Return what is inside of a value under a path, where keys may have slashes of their own; or MISSING."""
    keys = _keys(value)
    if path in keys:
        return keys[path]
    for cut in [place for place, character in enumerate(path) if character == "/"]:
        if path[:cut] in keys and (found := _inside(keys[path[:cut]], path[cut + 1 :])) is not MISSING:
            return found
    return MISSING


def _keys(value: Any) -> dict[str, Any]:
    """Return what is inside of a value, by key, name of field, or number."""
    if isinstance(value, tuple | list):
        by_number: dict[str, Any] = {str(number): one for number, one in enumerate(value)}
        return {**by_number, **named_fields(value)}
    return {str(key): one for key, one in named_fields(value).items()}


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value.copy() if hasattr(value, "copy") else value


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
