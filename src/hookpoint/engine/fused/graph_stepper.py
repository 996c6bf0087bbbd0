"""GraphStepper: the training step as a CUDA graph, captured once per input signature and replayed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch

from hookpoint.core.errors import BadLoop, HookpointError
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.run.run import Run, now_of
from hookpoint.engine.data.as_loader import map_tensors
from hookpoint.engine.fused.copy_stream import CopyStream
from hookpoint.engine.fused.hook_watch import HookWatch
from hookpoint.engine.fused.learning_rates import LearningRates, Settings
from hookpoint.engine.fused.leaving_calls import LeavingCalls
from hookpoint.engine.fused.logged_values import LoggedValues
from hookpoint.engine.fused.static_batch import Signature, StaticBatch, signature_of
from hookpoint.engine.fused.step_graph import StepGraph
from hookpoint.engine.step.forward import Forward
from hookpoint.engine.step.modules import modules_of
from hookpoint.engine.step.torch_stepper import TorchStepper, clear_gradients

logger = logging.getLogger("hookpoint")

WARM_UP_STEPS = 3
MAX_SIGNATURES = 4
MAX_RATE_CAPTURES = 3
Key = tuple[bool, bool]  # whether the batch begins an accumulation window, and whether a step follows


@cache
def stream_of(device: torch.device) -> Any:
    """Return the stream for captured steps. All runs share it: torch keeps a cuBLAS workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(slots=True, eq=False)
class Captured:
    """What the batches of one signature share: the input buffers, and a graph per place in the accumulation window."""

    inputs: StaticBatch
    staging: Any  # the batch that the copy stream fills
    steps: int = 0
    graphs: dict[Key, StepGraph] = field(default_factory=dict)


class GraphStepper(TorchStepper):
    """Replay forward, loss, backward, clipping and optimizer step as one CUDA graph.

    The first three steps of a signature run outside the graph, as does a step that a callback, a hook or a skip must see from
    inside. The weights are those of the same steps without a graph, bit for bit: a capture executes nothing, and a replay runs
    the same kernels. All steps run on one stream of their own, as a capture requires.
    """

    def __init__(
        self,
        forward: Forward,
        hooks: Hooks,
        device: torch.device,
        *,
        policy: Literal[True, "auto"],
        copies: CopyStream,
        **options: Any,
    ) -> None:
        super().__init__(forward, hooks, device, **options)
        self._policy, self._copies = policy, copies
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._is_off = self._is_stale = False
        self._captured: dict[Signature, Captured] = {}
        self._begin_graph: StepGraph | None = None  # the first: its gradient buffers serve all graphs that add to gradients
        self._epoch: int | None = None
        self._rate_captures = 0
        self._settings = Settings([], [])
        self._storages: list[Any] = []
        self._said: set[str] = set()

    def begin_run(self, run: Run) -> None:
        super().begin_run(run)
        self._model, self._optimizer = run.model, run.optimizer
        self._rates = LearningRates(run.optimizer, self._device)
        self._leaving = LeavingCalls(run.hooks)
        self._logged = LoggedValues(machine_of(run).logbook, run.monitors)

    @contextmanager
    def training(self, run: Run) -> Iterator[None]:
        """Train on a stream of the run's own, and free the graphs afterwards."""
        modules = modules_of(self._model)
        self._watch = HookWatch(modules, self._optimizer)
        handles: list[Any] = [module.register_load_state_dict_post_hook(self._mark_stale) for module in modules]  # type: ignore[no-untyped-call]
        handles.append(self._optimizer.register_load_state_dict_post_hook(self._mark_stale))
        outer = torch.cuda.current_stream(self._device)
        stream = stream_of(self._device)
        stream.wait_stream(outer)
        self._leaving.warn()
        self._logged.begin()
        self._copies.begin(run)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            self._logged.end()
            self._copies.end()
            for handle in handles:
                handle.remove()
            outer.wait_stream(stream)
            self._discard()
            self._captured = {}
            torch.cuda.empty_cache()

    def recapture(self) -> None:
        self._is_stale = True

    def _mark_stale(self, *args: Any) -> None:
        self._is_stale = True

    def train_step(self, run: Run) -> None:
        now = now_of(run)
        captured = None if self._is_off else self._captured_for(run, now)
        if captured is None:
            super().train_step(run)
            return
        captured.inputs.copy(now.batch)
        self._copies.note_consumed()
        now.batch = captured.inputs.batch
        key = (self.begins_window(), self._in_window % self._accumulate + 1 >= self._accumulate or self.is_last(run))
        graph = self._graph_for(run, now, captured, key)
        if graph is None:
            super().train_step(run)
            captured.steps += 1
        else:
            self._replay(run, now, graph, key)

    def _captured_for(self, run: Run, now: Iteration) -> Captured | None:
        """Return what was captured for batches like this one; None if this one runs without static buffers."""
        if self._epoch != run.epoch or self._is_stale:
            self._check_storages(run)
        for captured in self._captured.values():
            if now.batch is captured.staging:
                return captured
        try:
            signature = signature_of(now.batch)
        except HookpointError as error:
            self._give_up(error)
            return None
        known = self._captured.get(signature)
        if known is None:
            if self._captured and self.is_last(run):  # a smaller last batch
                return None
            if len(self._captured) == MAX_SIGNATURES:
                self._say(f"batches have more than {MAX_SIGNATURES} different shapes: the others run outside the CUDA graphs")
                return None
            known = self._captured[signature] = Captured(StaticBatch(now.batch), self._copies.stage(signature, now.batch))
        return known

    def _graph_for(self, run: Run, now: Iteration, captured: Captured, key: Key) -> StepGraph | None:
        """Return the graph for this step, capturing it if it is time to; None if the step runs outside."""
        if self._watch.is_hooked():
            self._say(f"{self._watch.owner} has hooks: steps run outside the CUDA graph while it has them")
            return None
        begins, steps = key
        if self._leaving.are_due(run, steps=steps) or now.has_requests:
            return None
        settings = self._rates.settings()
        if self._begin_graph is not None and settings != self._settings:
            self._settings_changed(settings)
        graph = captured.graphs.get(key)
        is_rare = self._accumulate > 1 and begins and steps  # a window of one batch, at the end of an epoch
        if graph is None and captured.steps >= WARM_UP_STEPS and not is_rare and (begins or self._begin_graph is not None):
            try:
                graph = self._capture(run, now, key)
            except HookpointError as error:
                self._give_up(error)
            else:
                captured.graphs[key], self._settings = graph, settings
                self._storages = self._current_storages()
        return graph

    def _capture(self, run: Run, now: Iteration, key: Key) -> StepGraph:
        begins, steps = key
        if begins:
            clear_gradients(run.optimizer)
        if self._begin_graph is None:
            self._pool = torch.cuda.graph_pool_handle()
        elif not begins:
            self._begin_graph.bind_gradients(adds=True)
        sync_mode = torch.cuda.get_sync_debug_mode()  # what strict_sync=True sets: freeing memory waits, once
        if sync_mode:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.empty_cache()  # what the steps so far have cached, the graph needs for itself
        owned = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        parameters = {id(p): p for module in modules_of(self._model) for p in module.parameters()}
        parameters |= {id(p): p for group in self._optimizer.param_groups for p in group["params"]}
        adds = [not begins or id(parameter) not in owned for parameter in parameters.values()]

        def work() -> Any:
            self._compute_step(run, now, steps=steps)
            # Autograd nodes that stay alive would tie later steps to this capture.
            return map_tensors([now.outputs, now.targets, now.loss], torch.Tensor.detach), recorded

        try:
            with self._logged.recording() as recorded, self._rates.as_tensors():
                graph = StepGraph(work, list(parameters.values()), adds, self._device, self._pool)
        finally:
            now.outputs = now.targets = now.loss = None
            if sync_mode:
                torch.cuda.set_sync_debug_mode(sync_mode)
        if begins and self._begin_graph is None:
            self._begin_graph = graph
        return graph

    def _compute_step(self, run: Run, now: Iteration, *, steps: bool) -> None:
        """Do the arithmetic of an iteration, without points."""
        self._train_forward(run)
        if now.loss is None:
            raise BadLoop("the forward set no loss.", set="run.loss in on_iter_forward")
        (now.loss if self._divide_by == 1 else now.loss / self._divide_by).backward()
        if steps:
            if self._clip is not None:
                self._clip_gradients(run.optimizer, self._clip)
            run.optimizer.step()

    def _replay(self, run: Run, now: Iteration, graph: StepGraph, key: Key) -> None:
        try:
            self._rates.update()
            graph.replay()
            (now.outputs, now.targets, now.loss), logged = graph.results
            for name, tensor in logged.items():
                self._logbook.log(name, tensor, now.samples)
            self._logbook.log("loss", now.loss, now.samples)
            begins, steps = key
            self._in_window = 0 if steps else 1 if begins else self._in_window + 1
            self._was_computed = True
            if steps:
                self._clocks.count_step()
                if self._step_end is not None:
                    self._step_end(run)
                if self._after_step is not None:
                    self._after_step(run)
        except Exception as error:
            if not self.recovers(run, now, error):
                raise

    # When graphs are discarded

    def _check_storages(self, run: Run) -> None:
        """At the start of an epoch and after a load, discard graphs that are bound to storages no longer in use."""
        self._epoch = run.epoch
        if self._begin_graph is not None and (self._is_stale or self._storages != self._current_storages()):
            self._discard()
        self._is_stale = False

    def _current_storages(self) -> list[Any]:
        """Return what graphs are bound to: the addresses of weights, buffers and optimizer state, and the flags of modules."""
        found: list[Any] = []
        for module in (module for root in modules_of(self._model) for module in root.modules()):
            found.append(module.training)
            found += [(p.data_ptr(), p.requires_grad) for p in module.parameters(recurse=False)]
            found += [buffer.data_ptr() for buffer in module.buffers(recurse=False)]
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter, {})
                found += [(parameter.data_ptr(), *(v.data_ptr() for v in state.values() if isinstance(v, torch.Tensor)))]
        return found

    def _settings_changed(self, settings: Settings) -> None:
        is_rate = settings.others == self._settings.others
        self._discard(warm_up=not is_rate)  # another setting may need another state, which a real step creates
        self._rate_captures += is_rate
        if self._rate_captures == MAX_RATE_CAPTURES:
            kind = type(self._optimizer).__name__
            self._say(f"each change of the learning rate captures the step of {kind} again; with fused=True it would not")

    def _discard(self, *, warm_up: bool = True) -> None:
        for captured in self._captured.values():
            for graph in captured.graphs.values():
                graph.release()
            captured.graphs = {}
            captured.steps = 0 if warm_up else captured.steps
        self._begin_graph = None

    def _give_up(self, error: HookpointError) -> None:
        """Raise, or with "auto" train on without graphs."""
        if self._policy is True:
            raise error
        self._is_off = True
        self._discard()
        logger.warning("training without CUDA graphs: %s", str(error).splitlines()[0])

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            logger.warning("%s", line)
