"""Peer errors: the error to raise when another rank does not respond."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from hookpoint.core.errors import OutOfStep
from hookpoint.core.team.checked_team import unanswered


@contextmanager
def waiting_in(what: str) -> Iterator[None]:
    """Raise OutOfStep with the name of the operation if torch.distributed fails inside a `with` block.

    Any other error is raised unchanged.
    """
    try:
        yield
    except OutOfStep:
        raise
    except RuntimeError as error:
        if not is_peer_error(error):
            raise
        out_of_step = unanswered(dist.get_rank(), dist.get_world_size(), what, error)
        for note in getattr(error, "__notes__", ()):
            out_of_step.add_note(note)
        raise out_of_step from error


def is_peer_error(error: BaseException) -> bool:
    """Return whether an error means that another rank has exited or did not respond in time."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in text or "nccl" in text or "timed out" in text
