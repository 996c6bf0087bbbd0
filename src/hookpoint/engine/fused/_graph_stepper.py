"""GraphStepper: capture the training step as a CUDA graph, once per input signature, and replay it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch

from hookpoint.core.checkpoint.randomness import PlainRandomness
from hookpoint.core.errors import BadLoop, HookpointError
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.iteration import Iteration
from hookpoint.core.run.run import Run, now_of
from hookpoint.core.run_view import Dispatch
from hookpoint.engine.data.as_loader import map_tensors
from hookpoint.engine.fused._copy_stream import CopyStream
from hookpoint.engine.fused._graph_options import check_graph_optimizer
from hookpoint.engine.fused._hook_watch import HookWatch
from hookpoint.engine.fused._learning_rates import LearningRates, Settings
from hookpoint.engine.fused._leaving_calls import LeavingCalls
from hookpoint.engine.fused._load_watch import LoadWatch
from hookpoint.engine.fused._logged_values import LoggedValues
from hookpoint.engine.fused._static_batch import Signature, StaticBatch, signature_of
from hookpoint.engine.fused._step_graph import StepGraph
from hookpoint.engine.step.forward import Forward
from hookpoint.engine.step.modules import modules_of
from hookpoint.engine.step.optimizer_values import clear_gradients
from hookpoint.engine.step.torch_stepper import TorchStepper

logger = logging.getLogger("hookpoint")

WARM_UP_STEPS = 3
MAX_SIGNATURES = 4
MAX_CHANGES = 3
Key = tuple[bool, bool]  # whether the batch begins an accumulation window, and whether an optimizer step follows it


@cache
def stream_of(device: torch.device) -> Any:
    """Return the stream for captured steps. All runs share it, because torch keeps a cuBLAS workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(slots=True, eq=False)
class Captured:
    """The input buffers and graphs for all batches with the same signature.

    There is one graph for each combination of two conditions: whether the batch begins an accumulation window, and whether an
    optimizer step follows the batch.
    """

    inputs: StaticBatch
    staging: Any  # the device buffers to which the copy stream copies each batch
    batches: int = 0  # number of batches computed outside the graph since graphs were last discarded
    graphs: dict[Key, StepGraph] = field(default_factory=dict)
    not_captured: set[Key] = field(default_factory=set)


class GraphStepper(TorchStepper):
    """Replay forward, loss, backward, clipping and optimizer step as one CUDA graph.

    The first three steps with a new signature run outside the graph. A step also runs outside the graph if a callback, a
    hook or a skip request must interrupt it. The weights are bit for bit the same as without a graph, because capturing does
    not execute the step and a replay runs the same kernels. All steps run on a separate stream, because CUDA cannot capture
    the default stream.
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
        self._steps = 0  # steps outside the graph since graphs were last discarded; they create the optimizer's state
        self._captured: dict[Signature, Captured] = {}
        self._begin_graph: StepGraph | None = None  # the first graph; graphs that accumulate gradients share its buffers
        self._epoch: int | None = None
        self._changes = 0
        self._settings = Settings([], [])
        self._storages: list[Any] = []
        self._said: set[str] = set()

    def begin_run(self, run: Run) -> None:
        super().begin_run(run)
        self._modules = [*modules_of(run.model), *modules_of(run.criterion)]
        self._optimizer = run.optimizer
        self._rates = LearningRates(run.optimizer, self._device)
        self._leaving = LeavingCalls(run.hooks)
        self._logged = LoggedValues(machine_of(run).logbook, run.monitors)

    @contextmanager
    def training(self, run: Run) -> Iterator[None]:
        """Train on a separate stream inside a `with` block, and free the graphs afterwards."""
        try:
            check_graph_optimizer(self._optimizer)  # a resume may have changed the optimizer's options
        except HookpointError as error:
            self._give_up(error)
        self._watch = HookWatch(self._modules, self._optimizer)
        self._loads = LoadWatch()
        outer, stream = torch.cuda.current_stream(self._device), stream_of(self._device)
        stream.wait_stream(outer)
        self._leaving.begin(self._watch)
        self._loads.begin(*self._modules, self._optimizer)
        of_monitors = torch.cuda.default_stream(self._device)  # the stream that monitor threads use
        self._logged.begin(lambda: of_monitors.wait_stream(stream))
        self._copies.begin(run)
        run.hyper.recapture = self.recapture
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            run.hyper.recapture = None
            self._copies.end()
            self._logged.end()
            self._loads.end()
            outer.wait_stream(stream)
            self._discard()
            self._captured = {}
            torch.cuda.empty_cache()

    def recapture(self) -> None:
        self._is_stale = True

    def training_step(self, run: Run) -> Dispatch:
        return self.train_step

    def train_step(self, run: Run) -> None:
        now = now_of(run)
        captured = None if self._is_off else self._captured_for(run, now)
        if captured is None:
            self._train_outside(run)
            return
        captured.inputs.copy(now.batch)
        self._copies.note_consumed()
        now.batch = captured.inputs.batch
        key = (self.begins_window(), self._in_window % self._accumulate + 1 >= self._accumulate or self.is_last(run))
        graph = self._graph_for(run, now, captured, key)
        if graph is None:
            self._train_outside(run)
            captured.batches += self._was_computed
        else:
            self._replay(run, now, graph, key)

    def _train_outside(self, run: Run) -> None:
        step, self._was_computed = run.step, False
        super().train_step(run)
        self._steps += run.step - step

    def _captured_for(self, run: Run, now: Iteration) -> Captured | None:
        """Return the buffers and graphs for this batch's signature, or None if this batch runs without static buffers."""
        if self._epoch != run.epoch or self._is_stale or self._loads.has_loaded:
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
            if self._captured and self.is_last(run):  # probably a smaller last batch
                return None
            if len(self._captured) == MAX_SIGNATURES:
                what = f"batches have more than {MAX_SIGNATURES} different shapes or non-tensor values"
                self._say(f"{what}: the other batches run outside the CUDA graphs")
                return None
            inputs = StaticBatch(now.batch)
            try:
                inputs.check_device(self._device)
            except HookpointError as error:
                self._give_up(error)
                return None
            known = self._captured[signature] = Captured(inputs, self._copies.stage(signature, now.batch))
        return known

    def _graph_for(self, run: Run, now: Iteration, captured: Captured, key: Key) -> StepGraph | None:
        """Return the graph for this step, capturing it first if necessary, or None if the step runs outside the graph."""
        if self._watch.is_hooked():
            self._say(f"{self._watch.owner} has hooks: steps run outside the CUDA graph until they are removed")
            return None
        if self._leaving.are_due(run, steps=key[1]) or now.has_requests:
            return None
        settings = self._rates.settings()
        if self._begin_graph is not None and settings != self._settings:
            self._settings_changed(settings)
        graph = captured.graphs.get(key)
        if graph is None and self._is_ready(captured, key):
            if self._begin_graph is not None and self._storages != self._current_storages():
                self._discard()
                return None
            try:
                graph = self._capture(run, now, captured, key)
            except HookpointError as error:
                self._give_up(error)
            self._settings = settings
        return graph

    def _is_ready(self, captured: Captured, key: Key) -> bool:
        """Return whether a step can be captured now."""
        begins, steps = key
        is_rare = self._accumulate > 1 and begins and steps  # a window of a single batch occurs only at the end of an epoch
        is_warm = captured.batches >= WARM_UP_STEPS and self._steps > 0
        return is_warm and not is_rare and key not in captured.not_captured and (begins or self._begin_graph is not None)

    def _capture(self, run: Run, now: Iteration, captured: Captured, key: Key) -> StepGraph | None:
        begins, steps = key
        if begins:
            clear_gradients(run.optimizer)
        if self._begin_graph is None:
            self._pool = torch.cuda.graph_pool_handle()
        elif not begins:
            self._begin_graph.bind_gradients(adds=True)
        sync_mode = torch.cuda.get_sync_debug_mode()  # strict_sync=True forbids synchronization, but freeing memory needs it
        if sync_mode:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.empty_cache()  # the graph needs the memory that earlier steps have cached
        owned = {id(parameter): parameter for group in self._optimizer.param_groups for parameter in group["params"]}
        parameters = list({**owned, **{id(p): p for module in self._modules for p in module.parameters()}}.values())
        before = [parameter.grad for parameter in parameters]
        adds = [not begins or id(parameter) not in owned for parameter in parameters]

        host = PlainRandomness()
        drawn, drawn_by_torch = host.state_dict(), torch.get_rng_state()

        def work() -> Any:
            self._compute_step(run, now, steps=steps)
            if host.state_dict() != drawn or not torch.equal(torch.get_rng_state(), drawn_by_torch):
                what = (
                    "the forward pass draws random numbers on the CPU: a CUDA graph would repeat the numbers from its capture."
                )
                raise BadLoop(what, draw="them on the GPU: torch.rand(..., device=x.device)")
            # Detach the results: autograd nodes that stay alive would link later steps to this capture.
            return map_tensors([now.outputs, now.targets, now.loss], torch.Tensor.detach), recorded

        try:
            with self._logged.recording() as recorded, self._rates.as_tensors():
                graph = StepGraph(work, parameters, adds, self._device, self._pool)
        finally:
            now.outputs = now.targets = now.loss = None
            host.load_state_dict(drawn)
            torch.set_rng_state(drawn_by_torch)
            if sync_mode:
                torch.cuda.set_sync_debug_mode(sync_mode)
        if not begins and any(old is None and new is not None for old, new in zip(before, graph.gradients, strict=True)):
            # This step uses parameters that no earlier batch in the window has used. A replay would overwrite their gradients
            # instead of adding to them.
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
            graph.release()
            captured.not_captured.add(key)
            return None
        if self._begin_graph is None:
            self._begin_graph, self._storages = graph, self._current_storages()
        captured.graphs[key] = graph
        return graph

    def _compute_step(self, run: Run, now: Iteration, *, steps: bool) -> None:
        """Compute an iteration's step without firing points."""
        self._train_forward(run)
        if now.loss is None:
            raise BadLoop("the forward pass did not set a loss.", set="run.loss in on_iter_forward")
        if now.has_requests:
            raise BadLoop("a request to skip or retry in the forward pass cannot be captured.", request="it at on_iter_begin")
        (now.loss if self._divide_by == 1 else now.loss / self._divide_by).backward()
        if steps:
            if self._clip is not None:
                self._clip_gradients(run.optimizer, self._clip)
            run.optimizer.step()

    def _replay(self, run: Run, now: Iteration, graph: StepGraph, key: Key) -> None:
        try:
            begins, steps = key
            self._leaving.settle(run, steps=steps)
            self._rates.update()
            graph.replay()
            (now.outputs, now.targets, loss), logged = graph.results
            for name, tensor in logged:
                self._logbook.log(name, tensor, now.samples)
            now.loss = loss.clone()  # a callback may keep the loss for several steps
            self._logged.log_copy("loss", now.loss, now.samples)
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

    # Discarding graphs

    def _check_storages(self, run: Run) -> None:
        """Discard graphs if a tensor that they use has new storage. Called at the start of an epoch and after a load."""
        self._epoch = run.epoch
        is_stale = self._is_stale or self._loads.has_loaded
        if is_stale or (self._begin_graph is not None and self._storages != self._current_storages()):
            self._discard()
        self._is_stale = self._loads.has_loaded = False

    def _current_storages(self) -> list[Any]:
        """Return what must not change after a capture: addresses of weights, buffers and optimizer state, and module flags."""
        found: list[Any] = []
        for module in (module for root in self._modules for module in root.modules()):
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
        # If a setting other than the learning rate has changed, the optimizer may need new state. Steps outside the graph
        # create this state.
        self._discard(warm_up=not is_rate)
        self._changes += 1
        if self._changes == MAX_CHANGES:
            kind = type(self._optimizer).__name__
            cure = "fused=True avoids this" if is_rate else "cycle_momentum=False keeps a OneCycleLR from changing it"
            what = "the learning rate" if is_rate else "a setting other than the learning rate"
            self._say(f"each change to {what} of {kind} requires a new capture of the step; {cure}")

    def _discard(self, *, warm_up: bool = True) -> None:
        for captured in self._captured.values():
            for graph in captured.graphs.values():
                graph.release()
            captured.graphs, captured.not_captured = {}, set()
            captured.batches = 0 if warm_up else captured.batches
        self._steps = 0 if warm_up else self._steps
        self._begin_graph = None

    def _give_up(self, error: HookpointError) -> None:
        """Raise the error or, with cuda_graph="auto", continue training without graphs."""
        if self._policy is True:
            raise error
        self._is_off = True
        self._discard()
        self._captured = {}
        self._copies.forget()
        logger.warning("training without CUDA graphs: %s", str(error).splitlines()[0])

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            logger.warning("%s", line)
