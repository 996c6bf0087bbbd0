"""HumanHyperParamSetter: a setting that a person changes through a file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Unpack

from hookpoint.callbacks.hyper_params._hyper_file import HyperFile, Line, Problem, Reading
from hookpoint.callbacks.hyper_params._hyper_param_setter import HyperParamSetter
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

MOST_REPORTED = 5


class HumanHyperParamSetter(HyperParamSetter):
    """Set a setting to what a line `name:value` of a file in the workdir says, without interrupting the training.

        # hyper.txt
        learning_rate: 0.001

    The line holds while it stands there, also against other callbacks; when it is gone the value stays. Blank lines, and what
    follows a `#`, do not count. A line that makes no sense is reported once, with its number, and the others count: NaN,
    infinity, and what the setting would not take are refused. A file that is being written is read again later. One that is a
    symbolic link, of another user, no regular file or larger than 64 KiB is not read. Several of these callbacks may share
    one file, each with a line of its own. `param` is a name in `run.hyper`, or a HyperParam.

    Reads the file at on_epoch_begin, and when triggered: at the end of each complete epoch, unless `.when(...)` says
    otherwise. Comes after the callbacks that compute settings. Sends the events "setting" and "setting_refused". Keeps the
    value, where no optimizer does, in the checkpoint. Runs on all ranks. A step pays nothing, an epoch for reading the file
    twice.

    >>> HumanHyperParamSetter("learning_rate").file_name
    'hyper.txt'
    """

    after = (
        "HyperParamSetterWithFunc",
        "LearningRateScheduler",
        "ReduceLROnPlateau",
        "ScheduledHyperParamSetter",
        "StatMonitorParamSetter",
    )

    def __init__(self, param: str | HyperParam, file_name: str = "hyper.txt", **options: Unpack[Options]) -> None:
        super().__init__(param, **options)
        if not isinstance(file_name, str) or file_name in ("", ".", "..") or any(one in file_name for one in "/\\\0"):
            raise BadArgument(
                f"HumanHyperParamSetter(file_name={file_name!r}) is no plain name; the file is in the workdir.",
                write='file_name="hyper.txt"',
            )
        self.file_name = file_name
        self._file = HyperFile(file_name)
        self._standing: set[str] = set()

    def on_setup(self, run: Run) -> None:
        if run.workdir is None:
            raise BadLoop(f"{self.name} reads {self.file_name} in the workdir, and there is none.", give='workdir="runs/name"')

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._file = HyperFile(Path(run.workdir) / self.file_name)
        self._standing = set()

    def on_epoch_begin(self, run: Run) -> None:
        if not run.resuming:
            self._look(run)

    def on_trigger(self, run: Run) -> None:
        self._look(run)

    def _look(self, run: Run) -> None:
        reading = self._file.read()
        problems = self._of_all(run, reading)
        for line in reversed(reading.lines):
            if self.setting.is_called(line.name):
                refused = self._apply(run, line)
                if refused is None:
                    break
                problems.append(refused)
        self._report(run, problems)

    def _apply(self, run: Run, line: Line) -> Problem | None:
        """Set what a line says; return what is wrong with it, if anything."""
        try:
            self.setting.set(run, line.value)
        except Exception as error:  # of a HyperParam of any kind: what it refuses is a line's fault, and ends no run
            reason = str(error).partition("\n")[0]
            return Problem(line.number, f"is refused: {reason} It says {line.value!r}", f"{line.name} refused {line.value!r}")
        return None

    def _of_all(self, run: Run, reading: Reading) -> list[Problem]:
        """Return what is wrong with the file as such; of several callbacks that share it the first one says so."""
        sharing = [one for one in (entry.subject for entry in run.hooks.entries) if isinstance(one, HumanHyperParamSetter)]
        sharing = [one for one in sharing if one.file_name == self.file_name]
        if sharing[:1] != [self]:
            return []
        settings = [one.setting for one in sharing]
        known = ", ".join(setting.name for setting in settings)
        nobodys = [line for line in reading.lines if not any(setting.is_called(line.name) for setting in settings)]
        return reading.problems + [
            Problem(line.number, f"sets {line.name[:40]!a}, which nobody reads here; known: {known}", f"{line.name} unknown")
            for line in nobodys
        ]

    def _report(self, run: Run, problems: list[Problem]) -> None:
        """Say what is wrong that was not wrong the last time."""
        new = [problem for problem in problems if problem.key not in self._standing]
        self._standing = {problem.key for problem in problems}
        for problem in new[:MOST_REPORTED]:
            where = f"{self.file_name}, line {problem.line}," if problem.line else self.file_name
            logger.warning("%s %s", where, problem.reason)
            run.put_event("setting_refused", file=self.file_name, line=problem.line, reason=problem.reason)
        if new[MOST_REPORTED:]:
            logger.warning("%s has %d more lines that are skipped", self.file_name, len(new) - MOST_REPORTED)
