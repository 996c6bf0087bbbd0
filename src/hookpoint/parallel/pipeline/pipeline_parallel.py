"""PipelineParallel: place the layers of a model on different ranks, and split batches into microbatches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from hookpoint.core.checkpoint.plain_names import plain_name
from hookpoint.core.checkpoint.stateful import state_of
from hookpoint.core.errors import BadStrategy
from hookpoint.core.team.team import Team
from hookpoint.parallel.pipeline._microbatches import MicrobatchLoss, check_batch
from hookpoint.parallel.pipeline._stage_split import Split, check_splittable, keep_only, owned_by, stages_of
from hookpoint.parallel.shared.model_setup import modules_in, optimizers_in, send_weights
from hookpoint.parallel.strategy.strategy import StrategyDefaults
from hookpoint.parallel.team.init_process import join_team
from hookpoint.parallel.team.torch_team import SECONDS
from hookpoint.parallel.team.world import world_size

Schedule = Literal["1F1B", "GPipe"]


class PipelineParallel(StrategyDefaults):
    """Place the layers of a model on different ranks, with torch's pipeline stages. Start as many ranks as there are stages.

        split: Names or indices of the modules that begin a new stage, in call order. `(2,)` splits an nn.Sequential in two.
            "blocks.3" splits a nested Sequential named `blocks`. For other models, pass a function that returns the stages in
            call order: `lambda model: [model.encoder, model.decoder]`.
        microbatches: Maximum number of equal microbatches per batch. Stages work on different microbatches at the same time. A
            batch that cannot be split evenly is split into fewer microbatches.
        schedule: "1F1B" needs the least memory. "GPipe" runs all forward passes first. Both compute the same results.
        outputs: If False, training outputs stay on the last rank, and run.outputs is None on all other ranks. The loss, and the
            outputs in validation and prediction, are always sent to all ranks.

    `run.forward()` runs both the forward and backward passes of all microbatches. The gradients are added to the parameters'
    gradients after on_backward_begin, or discarded if the backward pass is skipped.

    `run.model` stays the module you passed, but the parameters and buffers of other stages become None. On each rank,
    the optimizer keeps only the parameters of that rank's stage. Call the model through run.forward(), not directly. In a
    single process, PipelineParallel does nothing.

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
            raise BadStrategy(f"PipelineParallel: split={split!r} is empty.", give="names of modules that begin a new stage")
        if not isinstance(microbatches, int) or isinstance(microbatches, bool) or microbatches < 1:
            raise BadStrategy(f"PipelineParallel: microbatches must be an integer >= 1, got {microbatches!r}.")
        if schedule not in ("1F1B", "GPipe"):
            raise BadStrategy(f"PipelineParallel: schedule must be '1F1B' or 'GPipe', got {schedule!r}.")
        self.split, self.microbatches, self.schedule, self.sends_outputs = split, microbatches, schedule, outputs
        self._model: nn.Module | None = None
        self._losses: dict[int, MicrobatchLoss] = {}

    def team(self) -> Team:
        return join_team(model_size=world_size(), has_stages=True)

    def setup(self, model: Any, optimizer: Any, device: torch.device) -> Any:
        if self._model is not None:
            if model is not self._model:
                raise BadStrategy("this PipelineParallel has already split another model.", make="one for each model")
            return model
        # This import takes seconds, because it also imports torch's compiler. A single process does not need it.
        from hookpoint.parallel.pipeline._pipeline_runtime import PipelineRuntime, ShapeInference

        modules_in(model)
        module = check_splittable(model)
        stages = stages_of(module, self.split)
        self._check_stage_count(len(stages))
        send_weights([module])
        self._stage = dist.get_rank()
        self._inference = ShapeInference(module, stages, device)
        stage = stages[self._stage].to(device)
        own = owned_by(stage)
        keep_only(module, own)
        for each in optimizers_in(optimizer):
            _train_only(each, own)
        module.register_forward_pre_hook(_reject_call)
        module.register_load_state_dict_pre_hook(self._keep_own_stage)  # type: ignore[no-untyped-call]
        self._parameters = [parameter for parameter in stage.parameters() if parameter.requires_grad]
        self._group = dist.new_group(timeout=timedelta(seconds=SECONDS))
        options: dict[str, Any] = {"microbatches": self.microbatches, "schedule": self.schedule}
        self._runtime = PipelineRuntime(stage, self._inference, device, self._group, **options)
        self._model = module
        return model

    def forward_backward(self, arguments: tuple[Any, ...], targets: Any, criterion: Any) -> tuple[Any, torch.Tensor]:
        check_batch((*arguments, targets))
        loss = self._losses.get(id(criterion))
        if loss is None:
            loss = self._losses[id(criterion)] = MicrobatchLoss(criterion)
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        # All ranks draw the same seed, so their generators stay in the same state, and callbacks draw the same numbers on all
        # ranks. Inside fork_rng, each stage adds its number to the seed, so that stages draw different numbers.
        seed = int(torch.randint(2**62, (1,)))
        device = self._runtime.device
        with torch.random.fork_rng(devices=[device] if device.type != "cpu" else []):
            torch.manual_seed(seed + self._stage)
            outputs, value = self._runtime.train(arguments, targets, loss, sends=self.sends_outputs)
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter, gradient in zip(self._parameters, before, strict=True):
            parameter.grad = gradient
        anchor = torch.zeros((), requires_grad=True)
        return outputs, _ComputedLoss.apply(value, anchor, self._parameters, gradients)  # type: ignore[no-untyped-call]

    def outputs(self, arguments: tuple[Any, ...]) -> Any:
        check_batch(arguments)
        with torch.no_grad():
            return self._runtime.outputs(arguments)

    def clip_grad_norm(self, parameters: Iterable[nn.Parameter], max_norm: float) -> None:
        own = list(parameters)
        device = own[0].device if own else self._runtime.device
        norm = nn.utils.get_total_norm([parameter.grad for parameter in own if parameter.grad is not None]).to(device)
        norms = [torch.zeros_like(norm) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, norm, group=self._group)
        nn.utils.clip_grads_with_norm_(own, max_norm, torch.linalg.vector_norm(torch.stack(norms)))

    # Checkpoints

    def layout(self, model: Any) -> str:
        """Return a string that lists the first tensor of each stage. When a run resumes, this string must be the same."""
        stages = self._inference.stages if self._model is not None else stages_of(model, self.split)
        names = {id(tensor): plain_name(name) for name, tensor in self.full_model(model).state_dict(keep_vars=True).items()}
        return " | ".join(next((names[key] for key in owned_by(stage) if key in names), "-") for stage in stages)

    def full_model(self, model: Any) -> Any:
        """Return the whole model. After the split, return a copy of it whose tensors have names and shapes but no data."""
        return model if self._model is None else self._inference.model

    def rank_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: parts[name] for name in ("model", "optimizer") if name in parts}

    def full_state(self, parts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entries to write to the checkpoint. On the chief, they contain the weights of all stages.

        Each of the other ranks sends its weights to the chief.
        """
        own = parts["model"]
        if self._stage:
            for tensor in own.values():
                dist.send(_bytes(tensor.detach().cpu().contiguous()), 0, group=self._group)
            return parts
        full = state_of(self._inference.model)
        owners = {plain_name(name): stage for name, stage in self._owners().items()}
        for stage in range(1, dist.get_world_size()):
            for name in (name for name in full if owners[name] == stage):
                received = torch.empty(full[name].shape, dtype=full[name].dtype)
                dist.recv(_bytes(received), stage, group=self._group)
                full[name] = received
        full.update(own)
        return {**parts, "model": full}

    def _owners(self) -> dict[str, int]:
        """Return the stage of each tensor in the model's state dict, by name."""
        owners = {key: number for number, stage in enumerate(self._inference.stages) for key in owned_by(stage)}
        state = self._inference.model.state_dict(keep_vars=True)
        return {name: owners[id(tensor)] for name, tensor in state.items()}

    def _keep_own_stage(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Remove the weights of other stages from a state dict before it is loaded."""
        for name, stage in self._owners().items():
            if stage != self._stage:
                state.pop(prefix + name, None)

    def _check_stage_count(self, stages: int) -> None:
        ranks = dist.get_world_size()
        if stages != ranks:
            raise BadStrategy(
                f"PipelineParallel: the model has {stages} stage{'s' * (stages != 1)}, but there are {ranks} ranks.",
                start=f"{stages} ranks: torchrun --nproc-per-node {stages}",
                split=f"the model into {ranks} stages: list the first module of every stage except the first",
            )
        if self.schedule == "1F1B" and self.microbatches < stages:
            what = f"PipelineParallel: microbatches={self.microbatches} is less than the number of stages, {stages}."
            raise BadStrategy(what, give=f"at least {stages}, or schedule='GPipe'")


class _ComputedLoss(torch.autograd.Function):
    """A loss with precomputed gradients. Its backward pass adds these gradients to the parameters' gradients."""

    @staticmethod
    def forward(
        ctx: Any, loss: torch.Tensor, anchor: torch.Tensor, parameters: list[nn.Parameter], gradients: list[Any]
    ) -> torch.Tensor:
        ctx.computed = list(zip(parameters, gradients, strict=True))
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *scales: torch.Tensor) -> tuple[None, None, None, None]:
        # Add the gradients without autograd, because parameter hooks have already seen each microbatch's gradients.
        computed, ctx.computed = ctx.computed, []
        for parameter, gradient in computed:
            if gradient is not None:
                scaled = gradient * scales[0].to(gradient.dtype)
                parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled
        return None, None, None, None


def _train_only(optimizer: Any, own: Mapping[int, torch.Tensor]) -> None:
    """Remove all parameters from an optimizer except those in `own`. The parameter groups remain, even if they become empty."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in own:
                optimizer.state.pop(parameter, None)
        group["params"][:] = [parameter for parameter in group["params"] if id(parameter) in own]


def _reject_call(*_: Any) -> NoReturn:
    what = "PipelineParallel: the model is split into stages and cannot be called directly."
    raise BadStrategy(what, call="run.forward() in a MainCallback, or runner.predict(data)")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
