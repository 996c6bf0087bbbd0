"""Tracked: a run as a tracking service knows it, and what is kept of it on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hookpoint.core.text.secrets import masked

if TYPE_CHECKING:
    from hookpoint.core.log.records import Record

Status = Literal["finished", "failed", "killed"]


@dataclass(frozen=True)
class Facts:
    """What is known of a run when it begins: names and settings, all of them plain, secrets masked."""

    name: str
    workdir: Path | None
    settings: Mapping[str, Any]
    resumed_at: int | None  # the step that a resumed run goes on from


@dataclass(frozen=True)
class Kept:
    """What a small file in the workdir says of the run at the service: which one, where, and whether it is over.

    `step` is one up to which the service has everything, where the service cannot be asked for that. `is_saved` says that there
    is a checkpoint: a run that starts afresh all the same is another one.
    """

    run_id: str
    where: str
    is_over: bool = False
    step: int = -1
    is_saved: bool = False

    def write(self, path: Path) -> None:
        """Put it in the place of the file there is, so that a kill leaves the one or the other."""
        os.makedirs(path.parent, mode=0o700, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(json.dumps(asdict(self)) + "\n")
        os.replace(new, path)

    @classmethod
    def read(cls, path: Path) -> Kept | None:
        """Return what a file says, or None where there is none, or it is damaged."""
        try:
            found = json.loads(path.read_text())
            plain = bool(found["is_over"]), int(found["step"]), bool(found["is_saved"])
            return cls(str(found["run_id"]), str(found["where"]), *plain)
        except (OSError, ValueError, KeyError, TypeError):
            return None


@dataclass
class Ending:
    """How a run ended: finished, also when a callback stopped it, failed by an exception, or killed by a signal."""

    status: Status = "finished"
    words: str = ""


class Tracked(Protocol):
    """A run that is open at a service. Its methods may take long, and are called off the training thread, one at a time."""

    run_id: str

    @property
    def safe_step(self) -> int:
        """The step up to which the service has everything, for a service that cannot be asked later, or else -1."""

    def send(self, records: list[Record]) -> None:
        """Hand over what was logged, or raise an error."""

    def finish(self, ending: Ending) -> None:
        """Say how the run ended, and let go of everything."""


@dataclass
class Surroundings:
    """Variables of the environment that a client reads, set for as long as the run lasts, unless their owner has set them."""

    variables: Mapping[str, str]
    _set: list[str] = field(default_factory=list)

    def set(self) -> None:
        for name, value in self.variables.items():
            if name not in os.environ:
                os.environ[name] = value
                self._set.append(name)

    def restore(self) -> None:
        while self._set:
            os.environ.pop(self._set.pop(), None)


def told(fields: Mapping[str, Any], step: int) -> str:
    """Return what happened, as a line: `step 8, reason=loss is low`."""
    return masked(", ".join([f"step {step}", *(f"{name}={value}" for name, value in fields.items() if value is not None)]))


def array(values: Any) -> Any:
    """Return numbers, also those of a tensor, as a numpy array."""
    import numpy

    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # which numpy does not know
            values = values.float()
    return numpy.asarray(values)


def pictures(name: str, image: Any) -> list[Any]:
    """Return an image, or each of a batch of them, as pixels from 0 to 255, height x width or height x width x channels."""
    pixels = array(image)
    if pixels.ndim not in (2, 3, 4):
        raise ValueError(f"image '{name}' has shape {pixels.shape}; height x width x channels, or a batch of such, is shown")
    if pixels.dtype.kind == "f" and pixels.max(initial=0) <= 1:
        pixels = pixels * 255
    pixels = pixels.clip(0, 255).astype("uint8") if pixels.dtype != bool else pixels.astype("uint8") * 255
    several = list(pixels) if pixels.ndim == 4 else [pixels]
    return [one[:, :, 0] if one.ndim == 3 and one.shape[2] == 1 else one for one in several]
