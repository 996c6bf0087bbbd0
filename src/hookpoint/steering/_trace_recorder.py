"""TraceRecorder: record a profiler trace of the next steps, on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from hookpoint.core.run.run import Run


class Profile(Protocol):
    """The methods that TraceRecorder needs from a profiler."""

    def record(self) -> None: ...

    def stop(self) -> None: ...

    def write(self, path: Path) -> None: ...


class TraceRecorder:
    """Record steps with a profiler and write `profile/trace-step-….json` to the workdir. Only one recording runs at a time.

    Only the chief records and writes. The other ranks only track whether a recording is in progress.
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
        """The number of steps recorded so far."""
        return self._run.step - self._first

    def start(self, steps: int) -> str:
        """Start recording on the chief. Return an empty string or, if recording is not possible, the reason."""
        if self._writes:
            profile = None if self._new_profile is None else self._new_profile()
            if profile is None:
                return "torch's profiler is in use"
            self._profile = profile  # set first, so that `cancel` can stop the profiler if `record` raises an error
            profile.record()
        self._first, self._last, self.is_recording = self._run.step, self._run.step + steps, True
        return ""

    def cancel(self) -> None:
        """Stop recording without writing a trace."""
        profile, self._profile, self.is_recording = self._profile, None, False
        if profile is not None:
            profile.stop()

    def finish(self) -> Path | None:
        """Stop recording and write the trace. Return its path on the chief, and None on other ranks."""
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
