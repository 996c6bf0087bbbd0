"""Trial: one run of the subject that is interrupted, gone on with, and compared with the run that never was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from children import Child, Children
from subject import Variant

from hookpoint.storage.verify import verify
from hookpoint.storage.workdir.find_checkpoint import newest_good


@dataclass(frozen=True)
class Whole:
    """A run that nothing happened to: what came out, what each step was made of, how long it took, how often it wrote."""

    result: dict[str, str]
    steps: dict[int, str]
    seconds: float
    changes: int


@dataclass
class Trial:
    """A run that is started as often as it takes. `folder` is new for each; `workdir` may be set to a place elsewhere."""

    children: Children
    whole: Whole
    variant: Variant
    folder: Path
    started: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workdir, self.trace = self.folder / "run", self.folder / "trace"

    @property
    def checkpoints(self) -> list[str]:
        """The names of all checkpoints, the oldest first."""
        return sorted(path.name for path in (self.workdir / "checkpoints").glob("step-*"))

    @property
    def announced(self) -> str | None:
        """The name of the last checkpoint that was announced, if its processes note that."""
        noted = self.folder / "announced"
        names = noted.read_text().splitlines() if noted.exists() else []
        return names[-1] if names else None

    def start(self, task: str = "harm.train", **more: Any) -> Child:
        """Start the run, or go on with it."""
        given = {"workdir": str(self.workdir), "trace": str(self.trace), "variant": asdict(self.variant)}
        child = self.children.start(task, **{**given, **more})
        self.started.append(child)
        return child

    def wait_until(self, is_so: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait until something can be seen from outside."""
        deadline = monotonic() + seconds
        while not is_so():
            assert monotonic() < deadline, self.started[-1].log
            sleep(0.001)

    def wait_for(self, part: float) -> None:
        """Wait until so much of the run is behind its first process: 0.5 is half of its batches."""
        number = int(part * len(self.whole.steps))
        self.wait_until(lambda: self.trace.exists() and self.trace.read_bytes().count(b"\n") > number)

    def is_saving(self) -> bool:
        """Say whether a checkpoint is being made at this moment."""
        return any(self.workdir.glob("checkpoints/.staging-step-*"))

    def newest(self) -> Mapping[str, Any] | None:
        """Return what is in the newest good checkpoint."""
        found = newest_good(self.workdir)
        return None if found is None else found.state

    def differences(self, child: Child) -> list[str]:
        """Return what did not come out as in the whole run, from a child that went to the end."""
        returned = child.returned
        differ = [name for name, value in self.whole.result.items() if returned[name] != value]
        return differ + [f"step {number}" for number, seen in steps_of(self.trace) if self.whole.steps.get(number) != seen]

    @property
    def is_sound(self) -> bool:
        """Whether every checkpoint that is there is good; there may be none."""
        return not (self.workdir / "checkpoints").exists() or verify(self.workdir).ok


def steps_of(trace: Path) -> list[tuple[int, str]]:
    """Return the number and the digest of each batch that any process has trained on."""
    lines = trace.read_text().splitlines() if trace.exists() else []
    return [(int(number), seen) for number, seen in (line.split() for line in lines)]


def whole_run(children: Children, variant: Variant, folder: Path) -> Whole:
    """Do a run that nothing happens to."""
    trial = Trial(children, Whole({}, {}, 0.0, 0), variant, folder)
    began = monotonic()
    result, changes = trial.start("harm.count").returned
    return Whole(result, dict(steps_of(trial.trace)), monotonic() - began, changes)
