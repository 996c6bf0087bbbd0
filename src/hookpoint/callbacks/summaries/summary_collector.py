"""SummaryCollector: send loss, learning rate, weights, gradients, inputs and the model graph to monitors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks._shared.async_array import AsyncArray
from hookpoint.callbacks._shared.input_images import images_in
from hookpoint.callbacks._shared.step_gradients import OtherOptimizers, has_step_hooks, step_gradients
from hookpoint.callbacks.summaries._model_graph import ModelGraph, as_positional
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.checkpoint.stateful import named_parameters
from hookpoint.core.errors import BadArgument, BadLoop, UnknownSetting, listed
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run

FIRST = 5  # number of parameters that are collected by default
SWITCHES = ("collect_metric", "collect_graph", "collect_input_data")
EXPRESSIONS = {"histogram_regular": "weights", "gradient_regular": "gradients"}
UNSUPPORTED = ("collect_train_lineage", "collect_eval_lineage", "collect_dataset_graph", "collect_landscape")

# The parameters to collect: a regular expression for their names, a number n for the first n parameters, or None.
Selection = str | int | None


class SummaryCollector(Callback):
    """Send loss, learning rate, and histograms of weights and gradients to the monitors every `collect_freq` steps.

    The first step is always collected, with up to 16 images from the first batch and the model graph. TensorBoard shows all of
    this data; other monitors show what they support. The graph is also sent as text. Scalars are the values at each collected
    step, not means, and are named `loss/auto` and `learning_rate/auto`. Histograms are named `weights/<name>` and
    `gradients/<name>`, and images are named `input`. Monitors write files to the workdir, so `summary_dir` is not supported.

    `collect_specified_data` selects the data. "collect_metric", "collect_graph" and "collect_input_data" are True or False.
    "histogram_regular" and "gradient_regular" are regular expressions for the names of parameters; None selects the first five.
    Data that `collect_specified_data` does not name is also collected, unless `keep_default_action` is False. Gradients are
    collected right before the optimizer step, after clipping. To collect gradients in your own loop, pass `optimizer=` to
    `Loop`. The graph is traced in eval mode, with the inputs of the first training batch. If the model cannot be traced, a
    warning is logged. If parameters are sharded, only the chief's shards are collected.

    Listens to on_setup, on_train_epoch_begin, on_train_iter_end, on_run_end and, for gradients, on_step_begin.

    >>> SummaryCollector(collect_freq=100, collect_specified_data={"histogram_regular": "^conv1"}).collect_freq
    100
    """

    ranks = "chief"
    keeps = "the step that was collected last"
    step_cost = "one or two comparisons; a collected step queues copies to the host, without waiting for a GPU"

    def __init__(
        self,
        summary_dir: str | PathLike[str] | None = None,
        collect_freq: int = 10,
        collect_specified_data: Mapping[str, Any] | None = None,
        keep_default_action: bool = True,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if summary_dir is not None:
            raise BadArgument(
                f"SummaryCollector: summary_dir={summary_dir!r} is not supported; monitors write to the run's workdir.",
                leave=f"summary_dir out, and give the Runner or Loop workdir={str(summary_dir)!r}",
            )
        self.collect_freq = integer("SummaryCollector", "collect_freq", collect_freq, least=1)
        self.data = CollectedData.of(collect_specified_data, keep_default_action)
        self._collected: int | None = None
        self._selected: dict[str, list[str]] = {"weights": [], "gradients": []}
        self._gradients: dict[str, AsyncArray] = {}
        self._others = OtherOptimizers()
        self._hook: Any = None
        self._inputs: tuple[Any, ...] | None = None
        if self.data.gradients is not None:  # define the handler only if needed, because each call takes time
            vars(self)["on_step_begin"] = self._copy_gradients

    def on_setup(self, run: Run) -> None:
        owner = self.name or "SummaryCollector"
        names = [name for name, _ in named_parameters(run.model)]
        for kind, selection in (("weights", self.data.weights), ("gradients", self.data.gradients)):
            self._selected[kind] = selected(selection, names)
            if isinstance(selection, str) and not self._selected[kind]:
                known = ", ".join(names[:8]) or "none; give model=..."
                raise BadLoop(f"{owner}: {selection!r} matches no parameter, so no {kind} are collected.", known=known)
        if self._selected["gradients"] and not has_step_hooks(run):
            logger.warning("%s collects no gradients: it needs optimizer=...", owner)

    def on_run_begin(self, run: Run) -> None:
        self.on_run_end()
        if self.data.gradients is not None:
            self._others.observe(run, self, self._copy_others)
        self._collected = None

    def on_train_epoch_begin(self, run: Run) -> None:
        if self._collected is None and self.data.graph and hasattr(run.model, "register_forward_pre_hook"):
            self._unhook()
            self._hook = run.model.register_forward_pre_hook(self._keep_inputs, with_kwargs=True)

    def on_train_iter_end(self, run: Run) -> None:
        step = run.step
        if self._collected is None:
            self._collected = 0
            self._collect_first(run)
        if (step == 1 or step % self.collect_freq == 0) and step > self._collected:
            self._collected = step
            self._collect(run)

    def on_run_end(self) -> None:
        self._unhook()
        self._others.remove()
        self._inputs, self._gradients = None, {}

    def _keep_inputs(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._unhook()
        try:
            self._inputs = as_positional(model, args, kwargs)
        except Exception as error:
            self._warn_no_graph(error)

    def leaves_graph(self, run: Run) -> bool:
        """Return whether the next step must run outside the CUDA graph so that its gradients can be read."""
        step = run.step + 1
        return step == 1 or step % self.collect_freq == 0

    def _copy_gradients(self, run: Run) -> None:
        if self.leaves_graph(run):
            self._copy_of(run, 0)

    def _copy_others(self, run: Run, index: int) -> None:
        """Copy another optimizer's gradients if this iteration is collected. The first optimizer may have stepped already."""
        is_due = run.step == 1 or run.step % self.collect_freq == 0
        if self.leaves_graph(run) or (is_due and run.step > (self._collected or 0)):
            self._copy_of(run, index)

    def _copy_of(self, run: Run, index: int) -> None:
        wanted = (pair for pair in named_parameters(run.model) if pair[0] in self._selected["gradients"])
        self._gradients.update((name, AsyncArray(gradient)) for name, gradient in step_gradients(run, wanted, index))

    def _collect_first(self, run: Run) -> None:
        self._unhook()
        inputs, self._inputs = self._inputs, None
        if inputs is not None:
            try:
                run.put_text("graph", ModelGraph.of(run.model, inputs))
            except Exception as error:
                self._warn_no_graph(error)
        images = images_in(run.batch) if self.data.input_data else None
        if images is not None:
            run.put_image("input", AsyncArray(images) if hasattr(images, "detach") else images)

    def _collect(self, run: Run) -> None:
        if self.data.metric:
            scalars = {"loss/auto": _first_loss(run), "learning_rate/auto": _learning_rate(run)}
            sent = {name: _async(value) for name, value in scalars.items() if value is not None}
            if sent:
                run.monitors.put("scalars", sent, at="step", mode="train")
        for name, parameter in named_parameters(run.model):
            if name in self._selected["weights"]:
                run.put_histogram(f"weights/{name}", AsyncArray(parameter))
        gradients, self._gradients = self._gradients, {}
        for name, gradient in gradients.items():
            run.put_histogram(f"gradients/{name}", gradient)

    def _warn_no_graph(self, error: Exception) -> None:
        why = (str(error) or type(error).__name__).strip().splitlines()[0]
        logger.warning("%s: the model cannot be traced, so there is no graph: %s", self.name or "SummaryCollector", why)

    def _unhook(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        return {"collected": self._collected}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._collected = state["collected"]


def _first_loss(run: Run) -> Any:
    loss = run.loss if run.loss is not None else run.metrics.as_logged("loss")  # reading the metric would wait for the device
    while isinstance(loss, Mapping | tuple | list) and loss:
        loss = next(iter(loss.values() if isinstance(loss, Mapping) else loss))
    return loss


def _learning_rate(run: Run) -> Any:
    """Return the learning rate as the optimizer stores it, without waiting for a device, or None if there is none."""
    try:
        return run.hyper.stored("learning_rate")
    except UnknownSetting:
        return None


def _async(value: Any) -> Any:
    return AsyncArray(value.detach().float().mean()) if hasattr(value, "detach") else value


@dataclass(frozen=True)
class CollectedData:
    """The kinds of data that a SummaryCollector collects."""

    metric: bool = True
    graph: bool = True
    input_data: bool = True
    weights: Selection = FIRST
    gradients: Selection = FIRST

    @classmethod
    def of(cls, specified: Mapping[str, Any] | None, keep_default_action: bool) -> CollectedData:
        """Convert MindSpore's arguments. Data that the arguments do not name is collected only with `keep_default_action`."""
        if specified is not None and not isinstance(specified, Mapping):
            raise BadArgument(f"SummaryCollector: collect_specified_data must be a dict, got {specified!r}.")
        data = dict(specified or {})
        _check(data)
        default = FIRST if keep_default_action else None
        fields: dict[str, Any] = {key.removeprefix("collect_"): data.get(key, keep_default_action) for key in SWITCHES}
        for key, field in EXPRESSIONS.items():
            fields[field] = default if data.get(key) is None else data[key]
        return cls(**fields)


def selected(selection: Selection, names: Iterable[str]) -> list[str]:
    """Return the names of the selected parameters."""
    if isinstance(selection, str):
        return [name for name in names if re.search(selection, name)]
    return list(names)[: selection or 0]


def _check(data: Mapping[str, Any]) -> None:
    for key, value in data.items():
        argument = f"SummaryCollector: collect_specified_data={{{key!r}: {value!r}}}"
        if key in UNSUPPORTED:
            if value:
                cures = {"add": "the callback LossLandscape"} if key == "collect_landscape" else {"leave": "it out"}
                raise BadArgument(f"{argument} is not supported.", **cures)
        elif key not in (*SWITCHES, *EXPRESSIONS):
            raise BadArgument(f"{argument} is unknown.", choose=listed((*SWITCHES, *EXPRESSIONS)))
        elif key in SWITCHES and not isinstance(value, bool):
            raise BadArgument(f"{argument} must be True or False.")
        elif key in EXPRESSIONS and value is not None:
            try:
                re.compile(value)
            except (re.error, TypeError) as error:
                raise BadArgument(f"{argument} is not a regular expression: {error}.") from None
