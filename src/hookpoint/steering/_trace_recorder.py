"""TraceRecorder: a profiler trace of the next steps, on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from hookpoint.core.run.run import Run


class Profile(Protocol):
    """A profiler recording, such as ProfilerTrace makes."""

    def record(self) -> None: ...

    def stop(self) -> None: ...

    def write(self, path: Path) -> None: ...


class TraceRecorder:
    """Record steps with a profiler and write `profile/trace-step-….json` in the workdir. One recording at a time.

    Only the chief records and writes; the other ranks only track that a recording is in progress.
    """

    def __init__(self, run: Run, new_profile: Callable[[], Any] | None, *, writes: bool = True) -> None:
        self._run, self._new_profile, self._writes = run, new_profile, writes
        self._profile: Profile | None = None
        self._first = self._last = 0
        self.is_recording = False

    @property
    def is_supported(self) -> bool:
        return self._new_profile is not None

    @property
    def is_due(self) -> bool:
        """Whether the last step of the recording is done."""
        return self.is_recording and self._run.step >= self._last

    @property
    def steps(self) -> int:
        """How many steps have been recorded so far."""
        return self._run.step - self._first

    def start(self, steps: int) -> str:
        """Start recording on the chief. Return why this is not possible, or an empty string."""
        if self._writes:
            profile = None if self._new_profile is None else self._new_profile()
            if profile is None:
                return "torch's profiler is in use"
            profile.record()
            self._profile = profile
        self._first, self._last, self.is_recording = self._run.step, self._run.step + steps, True
        return ""

    def finish(self) -> Path | None:
        """Stop, and write the trace; return its path, or None on other ranks."""
        profile, self._profile, self.is_recording = self._profile, None, False
        if profile is None:
            return None
        profile.stop()
        path = Path(self._run.workdir) / "profile" / f"trace-step-{self._first:08d}.json"
        number = 1
        while path.exists():
            number += 1
            path = path.with_name(f"trace-step-{self._first:08d}-{number}.json")
        profile.write(path)
        return path
