"""Finite: weights with NaN or infinity in them are never kept as good ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from hookpoint.core.errors import NotFinite, text
from hookpoint.storage.tree import MAPPINGS

MOST_NAMED = 3


def refuse_if_not_finite(model: Any, names: Iterable[str]) -> None:
    """Raise NotFinite if one of these tensors of the model holds NaN or infinity.

    Those of one of several models are called `model.name`. Names that the state has not are passed over.
    """
    tensors = dict(_named(model))
    bad = [name for name in names if name in tensors and not _is_finite(tensors[name])]
    if bad:
        more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        raise NotFinite(
            text(
                f"{', '.join(bad[:MOST_NAMED])}{more} of the model hold{'' if more or bad[1:] else 's'} NaN or infinity.",
                resume="from the last good checkpoint, with a lower learning rate or clipped gradients",
            )
        )


def _named(model: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in model.items() if type(model) in MAPPINGS else ():
        if isinstance(value, torch.Tensor):
            yield f"{prefix}{name}", value
        else:
            yield from _named(value, f"{prefix}{name}.")


def _is_finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.element_size() == 1:  # which can be kept and converted, not computed with
        tensor = tensor.float()
    # A sum is the quickest test. It may overflow where no number does, and is not finite where one is not.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
