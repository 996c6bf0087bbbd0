"""TensorReader: the base class of callbacks that read tensors by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Unpack

from hookpoint.callbacks._shared.named_modules import named_buffers, named_parameters
from hookpoint.callbacks._shared.step_gradients import OtherOptimizers, require_step_hooks, step_gradients, stepped_parameters
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument, BadLoop, BadValue
from hookpoint.core.fields import named_fields
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.core.text.spelling import near_miss

Source = str | Callable[[Run], Any]
Names = str | Iterable[str] | Mapping[str, Source]


ITERATION_FIELDS = ("loss", "outputs", "batch", "targets")
GRADIENT = ".grad"
MAX_LISTED = 10
MIN_SIMILARITY = 0.7  # from 0 to 1: how similar a suggested name must be
MISSING: Any = object()


class TensorReader(Callback):
    """Read a run's tensors by name. Subclasses decide when to read them, and what to do with them.

    A name refers to the first of these that exists:

        loss  outputs  batch  targets     fields of the training iteration; if `run.loss` is not set, the metric "loss"
        outputs/logits  batch/0           values inside them, by key, field name or index, at any depth
        fc.weight  norm.running_mean      the current value of a parameter or buffer of the model
        fc.weight.grad                    the gradient that the last optimizer step used, clipped and unscaled
        accuracy                          the latest value of a metric, as it was logged

    A mapping gives names of your choice to these values, or to functions of the run.

    Values are detached but not copied, so the next step changes them. Gradients are copied before the step, because a loop may
    clear them right after it. Fields belong to the iteration that has just ended. Between epochs, they are copies from the
    epoch's last iteration. With gradient accumulation, fields belong to the last batch of a step, and gradients belong to all
    batches of the step. Reading waits for a device only if the value is a metric's mean over a pass and is not computed yet.

    A misspelled parameter name raises at on_setup. A field that the first iteration does not set raises after that iteration.
    Any other unknown name could be a metric, so it raises when it is first read.
    """

    ranks = "chief"

    def __init__(self, names: Names, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.owner = type(self).__name__
        self.sources: dict[str, Source] = sources_of(self.owner, names)
        self._paths = [source for source in self.sources.values() if isinstance(source, str)]
        self._reads_iteration = any(_is_of_iteration(source) for source in self.sources.values())
        set_default_name(self, f"{self.owner}({','.join(self.sources)})")
        if any(is_gradient(path) for path in self._paths):  # otherwise, do not define a handler: a call at each step costs time
            vars(self)["on_step_begin"] = self._copy_gradients
        self._others = OtherOptimizers()
        self._clear()

    def _clear(self) -> None:
        """Release all state that belongs to a run."""
        self._others.remove()
        self._holds_last = self._is_checked = self._has_warned = False
        self._model: dict[str, Any] = {}
        self._copied: list[str] = []
        self._gradients: dict[str, Any] = {}
        self._last: dict[str, Any] | None = None

    def on_setup(self, run: Run) -> None:
        known = _model_tensors(run.model)
        for path in self._paths:
            if path.partition("/")[0] in ITERATION_FIELDS or path in known:
                continue
            if path.endswith(GRADIENT):
                self._check_gradient(run, path, known)
            elif (meant := near_miss(path, known)) is not None:
                raise BadLoop(f"{self.owner} reads '{path}', which the model does not have.", write=f"'{meant}'")

    def on_run_begin(self, run: Run) -> None:
        self._clear()
        if "on_step_begin" in vars(self):
            self._others.observe(run, self, self._copy_gradients)
        self._model = _model_tensors(run.model)
        self._copied = [path for path in self._paths if is_gradient(path) and path not in self._model]
        self._holds_last = self._reads_iteration and self._is_triggered_after_epochs(run)

    def on_train_iter_end(self, run: Run) -> None:
        if not self._is_checked:
            self._is_checked = True
            self._check_first(run)
        if self._holds_last:
            progress = run.progress
            if progress is None or progress.total is None or progress.done >= progress.total:
                names = [name for name, source in self.sources.items() if _is_of_iteration(source)]
                self._last = {name: _copy(self._value(run, name)) for name in names}

    def on_run_end(self) -> None:
        self._clear()

    def read(self, run: Run) -> dict[str, Any] | None:
        """Return the values by name, or None if there is nothing to read.

        There is nothing to read if gradients are requested before the first step of their optimizer, or if the epoch has
        completed no training iteration.
        """
        if len(self._gradients) < len(set(self._copied)):
            return None
        last: dict[str, Any] | None = {}
        if run.mode != "train" and self._reads_iteration:
            last, self._last = self._last, None
        if last is None:
            if not self._has_warned:
                self._has_warned = True
                why = "this epoch completed no training iteration since the run started or resumed"
                logger.warning("%s has nothing to read: %s", self.owner, why)
            return None
        return {name: last[name] if name in last else self._value(run, name) for name in self.sources}

    def _is_triggered_after_epochs(self, run: Run) -> bool:
        for entry in run.hooks.entries:
            if entry.subject is self and any(handler.point == "on_trigger" for handler in entry.handlers):
                return entry.schedule is None or "epoch" in entry.schedule.moments()
        return False

    def _copy_gradients(self, run: Run, index: int = 0) -> None:
        """Copy the gradients that the next step of an optimizer uses."""
        parameters = {path: self._model[path.removesuffix(GRADIENT)] for path in self._copied}
        used = dict(stepped_parameters(run, parameters.items(), index))
        copies = {path: gradient.detach().clone() for path, gradient in step_gradients(run, used.items(), index)}
        self._gradients |= {**dict.fromkeys(used), **copies}

    def _check_first(self, run: Run) -> None:
        """After the first iteration, raise for fields that it did not set and for misspelled names of metrics."""
        for name, source in self.sources.items():
            is_path = isinstance(source, str) and source not in self._copied
            if is_path and (_is_of_iteration(source) or near_miss(str(source), run.metrics) is not None):
                self._value(run, name)

    def _value(self, run: Run, name: str) -> Any:
        source = self.sources[name]
        value = self._look_up(run, source) if isinstance(source, str) else source(run)
        if hasattr(value, "detach"):
            return value.detach()
        if hasattr(value, "__array__") or isinstance(value, int | float | complex):
            return value
        if hasattr(value, "__float__"):  # the mean of a metric
            return float(value)
        inside = [f"'{source}/{key}'" for key in _fields(value)] if isinstance(source, str) else []
        kind = "None" if value is None else f"a {type(value).__name__}"
        cures = {"write": " or ".join(inside[:MAX_LISTED])} if inside else {"give": "one tensor, array or number"}
        raise BadValue(f"{self.owner}: '{name}' is {kind}, not a tensor.", **cures)

    def _look_up(self, run: Run, path: str) -> Any:
        head, _, rest = path.partition("/")
        if head in ITERATION_FIELDS and (value := getattr(run, head)) is not None:
            value = value_at(value, rest) if rest else value
            if value is not MISSING:
                return value
        if path in self._model:
            return self._model[path]
        if path in self._gradients:
            if self._gradients[path] is None:
                raise BadLoop(
                    f"{self.owner}: '{path}' is None at step {run.step}.",
                    leave="it out, or check that the parameter requires grad and contributes to the loss",
                )
            return self._gradients[path]
        value = run.metrics.as_logged(path, MISSING)  # run.metrics[path] could wait for the device
        if value is MISSING:
            self._raise_unknown(run, path)
        return value

    def _check_gradient(self, run: Run, path: str, known: Mapping[str, Any]) -> None:
        parameter = path.removesuffix(GRADIENT)
        if parameter not in known:
            close = get_close_matches(parameter, known, 3, MIN_SIMILARITY) or list(known)[:MAX_LISTED]
            cures = {"write": " or ".join(f"'{name}{GRADIENT}'" for name in close)} if close else {"give": "model=..."}
            raise BadLoop(f"{self.owner} reads '{path}', but the model has no '{parameter}'.", **cures)
        require_step_hooks(run, self.owner, f"read '{path}'")

    def _raise_unknown(self, run: Run, path: str) -> None:
        head = path.partition("/")[0]
        if head in ITERATION_FIELDS and getattr(run, head) is None:
            logs = " or run.log(loss=...)" if path == "loss" else ""
            raise BadLoop(f"{self.owner} reads '{path}', but run.{head} is not set.", set=f"run.{head} = ...{logs}")
        known = list(dict.fromkeys([*_iteration_names(run), *run.metrics]))
        close = get_close_matches(path, [*known, *self._model], 3, MIN_SIMILARITY)
        known += list(self._model)[:MAX_LISTED]
        if len(self._model) > MAX_LISTED:
            known.append(f"and {len(self._model) - MAX_LISTED} more in the model")
        meant = {"write": " or ".join(map(repr, close))} if close else {}
        raise BadLoop(f"{self.owner} reads '{path}', which does not exist.", **meant, known=", ".join(known) or "none")


def sources_of(owner: str, names: Names) -> dict[str, Source]:
    """Return the source of each name, or raise if a name is invalid."""
    listed = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names]
    sources = dict(names) if isinstance(names, Mapping) else {name: name for name in listed}
    for name, source in sources.items():
        has_name, has_source = isinstance(name, str) and name, callable(source) or (isinstance(source, str) and source)
        if not (has_name and has_source):
            raise BadArgument(
                f"{owner}: {(source if has_name else name)!r} is not the name of a tensor.",
                give="names, as in ['loss', 'outputs/logits', 'fc.weight.grad']",
                write="{'mine': lambda run: ...} for a function of the run",
            )
    if not sources:
        raise BadArgument(f"{owner}: names is empty.", give="names, as in ['loss', 'outputs/logits', 'fc.weight.grad']")
    if len(sources) < len(listed):
        raise BadArgument(f"{owner}: names contains a duplicate: {', '.join(listed)}.")
    return sources


def _is_of_iteration(source: Source) -> bool:
    return not isinstance(source, str) or source.partition("/")[0] in ITERATION_FIELDS


def is_gradient(path: str) -> bool:
    return path.endswith(GRADIENT) and not _is_of_iteration(path)


def _model_tensors(model: Any) -> dict[str, Any]:
    return {**dict(named_parameters(model)), **dict(named_buffers(model))}


def _iteration_names(run: Run) -> Iterator[str]:
    for field in ITERATION_FIELDS if run.mode == "train" else ():
        value = getattr(run, field)
        if value is not None:
            yield from [f"{field}/{key}" for key in _fields(value)] or [field]


def value_at(value: Any, path: str) -> Any:
    """Return the value at a path, or MISSING. Keys in the path may contain slashes."""
    fields = _fields(value)
    if path in fields:
        return fields[path]
    for cut in [index for index, character in enumerate(path) if character == "/"]:
        if path[:cut] in fields and (inner := value_at(fields[path[:cut]], path[cut + 1 :])) is not MISSING:
            return inner
    return MISSING


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a value, by key, field name or index."""
    items = dict(enumerate(value)) if isinstance(value, tuple | list) else {}
    return {str(key): item for key, item in (*items.items(), *named_fields(value).items())}


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value.copy() if hasattr(value, "copy") else value
