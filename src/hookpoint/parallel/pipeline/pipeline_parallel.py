"""PipelineParallel: the layers of a model on different processes, with batches that go through them in parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from hookpoint.core.checkpoint.plain_names import plain_name
from hookpoint.core.checkpoint.stateful import state_of
from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Team
from hookpoint.parallel.pipeline._microbatches import MicrobatchLoss, samples_in
from hookpoint.parallel.pipeline.stage_split import Split, keep_only, owned_by, refuse_what_cannot_be_cut, stages_of
from hookpoint.parallel.shared.parts_by_name import modules_in, optimizers_in, send_weights
from hookpoint.parallel.team.init_process import joined
from hookpoint.parallel.team.torch_team import SECONDS
from hookpoint.parallel.team.world import world_size

if TYPE_CHECKING:
    from hookpoint.parallel.pipeline._pipeline_runtime import PipelineRuntime

Schedule = Literal["1F1B", "GPipe"]


class PipelineParallel:
    """Train with torch's pipeline stages: each process has some of the layers, and all of them work on one batch at a time.

    `split` says which modules begin a new stage, in the order they are called, by name or number: `(2,)` cuts an nn.Sequential
    in two, and "blocks.3" cuts the Sequential in it that is called blocks. Of another model it is a function that returns its
    stages, modules that are called one after the other: `lambda model: [model.encoder, model.decoder]`. There are as many
    processes as stages.

    A batch goes through in up to `microbatches` equal parts, so that stages work at the same time; one that cannot be divided
    so goes through in fewer. Forward and backward of all parts are one walk, by torch's `schedule`: "1F1B" keeps the least in
    memory, "GPipe" does all forwards first; numbers are the same. The walk is done where the forward is: gradients wait there,
    and are in the parameters after on_backward_begin, or never, if the backward is skipped. Loss and outputs are sent to every
    process; with `outputs=False` those of training are not, and run.outputs is None on all but the last stage.

    `run.model` stays the module that was given, but has None for all parameters and buffers of other processes, as the
    optimizer has its own ones only. It is not called directly, but by run.forward(). In one process it does nothing.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    >>> strategy = PipelineParallel(split=(2,), microbatches=2)
    >>> runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), strategy=strategy)
    >>> runner.fit((torch.ones(8, 2), torch.ones(8, 1)), epochs=1, batch_size=4).step
    2
    """

    def __init__(self, split: Split, *, microbatches: int = 4, schedule: Schedule = "1F1B", outputs: bool = True) -> None:
        if isinstance(split, str | int):
            split = (split,)
        if not callable(split) and not split:
            raise BadStrategy(f"PipelineParallel(split={split!r}).", give="names of modules that begin a new stage")
        if not isinstance(microbatches, int) or isinstance(microbatches, bool) or microbatches < 1:
            raise BadStrategy(f"PipelineParallel(microbatches={microbatches!r}).", give="an integer, 1 or more")
        if schedule not in ("1F1B", "GPipe"):
            raise BadStrategy(f"PipelineParallel(schedule={schedule!r}).", choose="'1F1B' or 'GPipe'")
        self.split, self.microbatches, self.schedule, self.sends_outputs = split, microbatches, schedule, outputs
        self._model: nn.Module | None = None
        self._losses: dict[int, MicrobatchLoss] = {}

    def team(self) -> Team:
        return joined(model_size=world_size(), has_stages=True)

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        if self._model is not None:
            if model is not self._model:
                raise BadStrategy("this PipelineParallel has cut another model already.", make="one for each model")
            return model
        from hookpoint.parallel.pipeline._pipeline_runtime import (
            PipelineRuntime,  # seconds, in which torch's compiler is imported; one process needs none
        )
        from hookpoint.parallel.pipeline._shape_inference import ShapeInference

        modules_in(model)
        module = refuse_what_cannot_be_cut(model)
        stages = stages_of(module, self.split)
        self._refuse_other_numbers(len(stages))
        send_weights([module])
        self._stage = dist.get_rank()
        self._skeleton = ShapeInference(module, stages, device)
        own = stages[self._stage].to(device)
        self._own = owned_by(own)
        keep_only(module, self._own)
        for one in optimizers_in(optimizer):
            _train_only(one, self._own)
        module.register_forward_pre_hook(_refuse_call)
        module.register_load_state_dict_pre_hook(self._take_own)  # type: ignore[no-untyped-call]
        self._parameters = [one for one in own.parameters() if one.requires_grad]
        self._group = dist.new_group(timeout=timedelta(seconds=SECONDS))
        self._pipes = PipelineRuntime(
            own, self._skeleton, device, self._group, microbatches=self.microbatches, schedule=self.schedule
        )
        self._model = module
        return model

    # Batches

    def walk(self, arguments: tuple[Any, ...], targets: Any, criterion: Any) -> tuple[Any, torch.Tensor]:
        samples_in((*arguments, targets))
        loss = self._losses.get(id(criterion))
        if loss is None:
            loss = self._losses[id(criterion)] = MicrobatchLoss(criterion)
        before = [one.grad for one in self._parameters]
        for one in self._parameters:
            one.grad = None
        seed = int(torch.randint(2**62, (1,)))  # the same on all: what callbacks draw has to stay so, and stages draw apart
        with torch.random.fork_rng(devices=_devices(self._pipes)):
            torch.manual_seed(seed + self._stage)
            outputs, value = self._pipes.train(arguments, targets, loss, sends=self.sends_outputs)
        gradients = [one.grad for one in self._parameters]
        for one, gradient in zip(self._parameters, before, strict=True):
            one.grad = gradient
        return outputs, _Waiting.apply(  # type: ignore[no-untyped-call]
            value, torch.zeros((), requires_grad=True), self._parameters, gradients
        )

    def outputs(self, arguments: tuple[Any, ...]) -> Any:
        samples_in(arguments)
        with torch.no_grad():
            return self._pipes.outputs(arguments)

    # The step

    def accumulating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def merge_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        pass  # each process has all there is of its own

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> None:
        own = list(parameters)
        device = own[0].device if own else self._pipes.device
        norm = nn.utils.get_total_norm([one.grad for one in own if one.grad is not None]).to(device)
        norms = [torch.zeros_like(norm) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, norm, group=self._group)
        nn.utils.clip_grads_with_norm_(own, max_norm, torch.linalg.vector_norm(torch.stack(norms)))

    def evaluating(self, *, is_even: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass

    # Checkpoints

    def layout(self, model: Any) -> str:
        """Return what must be the same when a run goes on: where the model is cut."""
        stages = self._skeleton.stages if self._model is not None else stages_of(model, self.split)
        names = {id(one): plain_name(name) for name, one in self.whole_model(model).state_dict(keep_vars=True).items()}
        return " | ".join(next((names[key] for key in owned_by(stage) if key in names), "-") for stage in stages)

    def whole_model(self, model: Any) -> Any:
        """Return a model with the names and shapes of all stages."""
        return model if self._model is None else self._skeleton.model

    def rank_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: parts[name] for name in ("model", "optimizer") if name in parts}

    def full_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parts with the weights of all stages, on the chief, to which each process sends its own."""
        own = parts["model"]
        if self._stage:
            for tensor in own.values():
                dist.send(_bytes(tensor.detach().cpu().contiguous()), 0, group=self._group)
            return parts
        whole = state_of(self._skeleton.model)
        owners = {plain_name(name): stage for name, stage in self._owners().items()}
        for stage in range(1, dist.get_world_size()):
            for name in (name for name in whole if owners[name] == stage):
                found = torch.empty(whole[name].shape, dtype=whole[name].dtype)
                dist.recv(_bytes(found), stage, group=self._group)
                whole[name] = found
        whole.update(own)
        return {**parts, "model": whole}

    def _owners(self) -> dict[str, int]:
        """Return which stage has what, by the names in the model's state."""
        owners = {key: number for number, stage in enumerate(self._skeleton.stages) for key in owned_by(stage)}
        state = self._skeleton.model.state_dict(keep_vars=True)
        return {name: owners[id(tensor)] for name, tensor in state.items()}

    def _take_own(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Let the weights of a whole model be loaded into the part of it that is here."""
        for name, stage in self._owners().items():
            if stage != self._stage:
                state.pop(prefix + name, None)

    def _refuse_other_numbers(self, stages: int) -> None:
        processes = dist.get_world_size()
        if stages != processes:
            raise BadStrategy(
                f"the model is cut into {stages} stage{'s' * (stages != 1)}, and there are {processes} processes.",
                start=f"{stages} processes: torchrun --nproc-per-node {stages}",
                cut=f"or into {processes}: split has the modules that begin each stage but the first",
            )
        if self.schedule == "1F1B" and self.microbatches < stages:
            raise BadStrategy(
                f"PipelineParallel(microbatches={self.microbatches}) keeps {stages} stages from working at once.",
                give=f"at least {stages}, or schedule='GPipe'",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.split, self.microbatches, self.schedule, self.sends_outputs)


def _again(split: Split, microbatches: int, schedule: Schedule, outputs: bool) -> PipelineParallel:
    return PipelineParallel(split, microbatches=microbatches, schedule=schedule, outputs=outputs)


class _Waiting(torch.autograd.Function):
    """A loss whose gradients are computed already: its backward adds them to those of the parameters."""

    @staticmethod
    def forward(
        ctx: Any, loss: torch.Tensor, anchor: torch.Tensor, parameters: list[nn.Parameter], gradients: list[Any]
    ) -> torch.Tensor:
        ctx.waiting = list(zip(parameters, gradients, strict=True))
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *scales: torch.Tensor) -> tuple[None, None, None, None]:
        # By hand: hooks of the parameters have seen each microbatch's gradients, and are not to see them twice.
        waiting, ctx.waiting = ctx.waiting, []
        for parameter, gradient in waiting:
            if gradient is not None:
                scaled = gradient * scales[0].to(gradient.dtype)
                parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled
        return None, None, None, None


def _train_only(optimizer: Any, own: Mapping[int, torch.Tensor]) -> None:
    """Let an optimizer go on with some of its parameters; its groups stay, also those that have none any more."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in own:
                optimizer.state.pop(parameter, None)
        group["params"][:] = [parameter for parameter in group["params"] if id(parameter) in own]


def _refuse_call(*_: Any) -> NoReturn:
    raise BadStrategy(
        "the model is cut into stages, and no process has all of it to call.",
        call="run.forward() in a MainCallback, or runner.predict(data)",
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _devices(pipes: PipelineRuntime) -> list[torch.device]:
    return [pipes.device] if pipes.device.type != "cpu" else []
