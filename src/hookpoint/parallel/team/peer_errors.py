"""Others: the processes that this one waits for, and what is said when they do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from hookpoint.core.errors import OutOfStep
from hookpoint.core.team.checked_team import unanswered


@contextmanager
def waiting_in(what: str) -> Iterator[None]:
    """Say where this process was waiting in vain, where it is torch.distributed that failed and not what is computed."""
    try:
        yield
    except OutOfStep:
        raise
    except RuntimeError as error:
        if not is_peer_error(error):
            raise
        said = unanswered(dist.get_rank(), dist.get_world_size(), what, error)
        for note in getattr(error, "__notes__", ()):
            said.add_note(note)
        raise said from error


def is_peer_error(error: BaseException) -> bool:
    """Say whether it is torch.distributed that failed: another process is gone, or did not come in time."""
    said = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in said or "nccl" in said or "timed out" in said
