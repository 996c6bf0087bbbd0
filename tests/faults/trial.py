"""Trial: a run of the subject that is interrupted, resumed, and compared with the uninterrupted run."""

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
    """An uninterrupted run: its results, the inputs of each step, its duration, and its number of disk changes."""

    result: dict[str, str]
    steps: dict[int, str]
    seconds: float
    changes: int


@dataclass
class Trial:
    """A run that may be started several times. `folder` is new for each trial; `workdir` may be set to another place."""

    children: Children
    whole: Whole
    variant: Variant
    folder: Path
    started: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workdir, self.trace = self.folder / "run", self.folder / "trace"

    @property
    def checkpoints(self) -> list[str]:
        """The names of all checkpoints, oldest first."""
        return sorted(path.name for path in (self.workdir / "checkpoints").glob("step-*"))

    @property
    def announced(self) -> str | None:
        """The name of the last announced checkpoint, if the processes record it."""
        noted = self.folder / "announced"
        names = noted.read_text().splitlines() if noted.exists() else []
        return names[-1] if names else None

    def start(self, task: str = "harm.train", **more: Any) -> Child:
        """Start or resume the run."""
        given = {"workdir": str(self.workdir), "trace": str(self.trace), "variant": asdict(self.variant)}
        child = self.children.start(task, **{**given, **more})
        self.started.append(child)
        return child

    def wait_until(self, is_so: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait until a condition holds."""
        deadline = monotonic() + seconds
        while not is_so():
            assert monotonic() < deadline, self.started[-1].log
            sleep(0.001)

    def wait_for(self, part: float) -> None:
        """Wait until the first process has done a part of the run: 0.5 is half of its batches."""
        number = int(part * len(self.whole.steps))
        self.wait_until(lambda: self.trace.exists() and self.trace.read_bytes().count(b"\n") > number)

    def is_saving(self) -> bool:
        """Return whether a save is in progress."""
        return any(self.workdir.glob("checkpoints/.staging-step-*"))

    def newest(self) -> Mapping[str, Any] | None:
        """Return the state in the newest good checkpoint."""
        found = newest_good(self.workdir)
        return None if found is None else found.state

    def differences(self, child: Child) -> list[str]:
        """Return the names of the results of a finished child that differ from the uninterrupted run."""
        returned = child.returned
        differ = [name for name, value in self.whole.result.items() if returned[name] != value]
        return differ + [f"step {number}" for number, seen in steps_of(self.trace) if self.whole.steps.get(number) != seen]

    @property
    def is_sound(self) -> bool:
        """Whether all existing checkpoints are good; there may be none."""
        return not (self.workdir / "checkpoints").exists() or verify(self.workdir).ok


def steps_of(trace: Path) -> list[tuple[int, str]]:
    """Return the number and digest of each batch that any process trained on."""
    lines = trace.read_text().splitlines() if trace.exists() else []
    return [(int(number), seen) for number, seen in (line.split() for line in lines)]


def whole_run(children: Children, variant: Variant, folder: Path) -> Whole:
    """Train a run without interruption."""
    trial = Trial(children, Whole({}, {}, 0.0, 0), variant, folder)
    began = monotonic()
    result, changes = trial.start("harm.count").returned
    return Whole(result, dict(steps_of(trial.trace)), monotonic() - began, changes)
