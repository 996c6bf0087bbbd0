"""CheckReplicas: find ranks whose weights have diverged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal, Unpack

from hookpoint.callbacks._shared.sharded_tensors import is_replicated
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.checkpoint.stateful import named_parameters
from hookpoint.core.errors import BadArgument, BadLoop, ReplicasDiffer
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run

SHOWN = 5  # number of parameters named in a message


class CheckReplicas(Callback):
    """Compare the weights of all ranks periodically, and raise ReplicasDiffer if they are not identical.

        repair: With "chief", log a warning instead of raising, and copy the chief's parameters to all ranks. The optimizer's
            state is left unchanged.

    The error names the parameters and ranks that differ from the chief. The comparison is bitwise, so a difference in the last
    digit counts. By default, the callback runs at the end of each epoch. Each rank sends one digest of all its parameters. If
    these digests differ, each rank also sends one digest per parameter. Buffers are not compared, because batch norm statistics
    may differ between ranks. Raises if parameters are sharded, or if `repair` is set and the model is split across ranks. Does
    nothing in a run with a single process.

    >>> check = CheckReplicas(repair="chief").when(Every(steps=1000))
    """

    collective = True
    step_cost = "nothing; a check copies the parameters to the host, one at a time"

    def __init__(self, repair: Literal["chief"] | None = None, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if repair not in (None, "chief"):
            raise BadArgument(f"CheckReplicas: repair must be None or 'chief', got {repair!r}.")
        self.repair = repair

    def on_run_begin(self, run: Run) -> None:
        owner = self.name or "CheckReplicas"
        sharded = [name for name, parameter in named_parameters(run.model) if not is_replicated(parameter)]
        if any(run.gather(bool(sharded))):
            where = f" ({sharded[0]})" if sharded else ""
            raise BadLoop(f"{owner}: the parameters are sharded{where}, so ranks have no replicas.")
        if self.repair is not None and max(run.gather(run.model_rank)) > 0:
            raise BadLoop(f"{owner}: repair={self.repair!r} needs the whole model on each rank.", give="repair=None")

    def on_trigger(self, run: Run) -> None:
        if run.world_size == 1:
            return
        digests = dict(_digests(run))
        whole = hashlib.sha256("".join(digests.values()).encode()).hexdigest()
        if len(set(map(tuple, run.gather([run.model_rank, whole])))) == len(set(run.gather(run.model_rank))):
            return
        differing = _differing(run.gather([run.model_rank, digests]))
        text = "; ".join(f"{name} (rank {', '.join(map(str, ranks))})" for name, ranks in list(differing.items())[:SHOWN])
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        message = f"{self.name or 'CheckReplicas'}: weights differ from the chief's at step {run.step}: {text}{more}."
        if self.repair is None:
            copies = 'the chief\'s weights to all ranks with CheckReplicas(repair="chief")'
            raise ReplicasDiffer(message, check="for code that changes weights on some ranks only", copy=copies)
        if run.is_chief:
            logger.warning("%s Copying the chief's weights to all ranks", message)
        run.put_event("replicas_repaired", parameters=list(differing), step=run.step)
        _copy_from_chief(run)


def _digests(run: Run) -> Iterator[tuple[str, str]]:
    import torch

    for name, parameter in named_parameters(run.model):
        data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield name, hashlib.sha256(data.numpy()).hexdigest()


def _differing(gathered: list[Any]) -> dict[str, list[int]]:
    """Return the ranks on which each parameter differs, by parameter name. Parameters that are identical are left out.

    Each rank is compared with the first rank that has the same part of the model.
    """
    first: dict[int, dict[str, str]] = {}
    differing: dict[str, list[int]] = {}
    for rank, (model_rank, digests) in enumerate(gathered):
        expected = first.setdefault(model_rank, digests)
        for name in expected.keys() | digests.keys():
            if expected.get(name) != digests.get(name):
                differing.setdefault(name, []).append(rank)
    return {name: differing[name] for _, digests in gathered for name in digests if name in differing}


def _copy_from_chief(run: Run) -> None:
    import torch.distributed as dist

    for _, parameter in named_parameters(run.model):
        dist.broadcast(parameter.detach(), src=0)
