"""HumanHyperParamSetter: a setting that a person changes through a file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import file_name as checked_file_name
from hookpoint.callbacks._shared.workdir import require_workdir
from hookpoint.callbacks.hyper_params._hyper_file import HyperFile, Problem, Reading
from hookpoint.callbacks.hyper_params._hyper_param_setter import HyperParamSetter
from hookpoint.core.callback.callback import Options
from hookpoint.core.logger import logger
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run

MAX_REPORTED = 5


class HumanHyperParamSetter(HyperParamSetter):
    """Set a hyper-parameter from a `name:value` line in a file in the workdir, without interrupting training.

        # hyper.txt
        learning_rate: 0.001

    The line applies while it is in the file, and overrides other callbacks. When the line is deleted, the value stays. Blank
    lines and comments after `#` are ignored. An invalid line is reported once, with its line number; the other lines still
    apply. NaN, infinity and values that the setting rejects are invalid. If the file is being written, it is read again later.
    Symbolic links, files owned by other users and files larger than 64 KiB are not read.

    Multiple HumanHyperParamSetters may share a file, with one line each. `param` is a name in `run.hyper`, or a HyperParam. The
    callback reads the file at on_epoch_begin and when it is triggered, after callbacks such as LearningRateScheduler have run.
    Sends the events "setting" and "setting_refused".

    >>> HumanHyperParamSetter("learning_rate").file_name
    'hyper.txt'
    """

    step_cost: ClassVar[str] = "nothing; the file is read twice per epoch"
    after = (
        "HyperParamSetterWithFunc",
        "LearningRateScheduler",
        "ReduceLROnPlateau",
        "ScheduledHyperParamSetter",
        "StatMonitorParamSetter",
    )

    def __init__(self, param: str | HyperParam, file_name: str = "hyper.txt", **options: Unpack[Options]) -> None:
        super().__init__(param, **options)
        self.file_name = checked_file_name("HumanHyperParamSetter", "file_name", file_name)
        self._file = HyperFile(file_name)
        self._known_problems: set[str] = set()

    def on_setup(self, run: Run) -> None:
        require_workdir(str(self.name), run)

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._file = HyperFile(Path(run.workdir) / self.file_name)
        self._known_problems = set()

    def on_epoch_begin(self, run: Run) -> None:
        if not run.resuming:
            self.on_trigger(run)

    def on_trigger(self, run: Run) -> None:
        reading = self._file.read()
        problems = self._file_problems(run, reading)
        for line in reversed(reading.lines):
            if self.setting.is_called(line.name):
                try:
                    self.setting.set(run, line.value)
                    break
                except Exception as error:  # a setting may reject a value with any exception, which must not end the run
                    reason = str(error).partition("\n")[0]
                    content = f"{line.name} refused {line.value!r}"
                    problems.append(Problem(line.number, f"was rejected: {reason} The value is {line.value!r}", content))
        self._report(run, problems)

    def _file_problems(self, run: Run, reading: Reading) -> list[Problem]:
        """Return the problems that concern all callbacks sharing the file. Only the first of these callbacks reports them."""
        setters = [entry.subject for entry in run.hooks.entries if isinstance(entry.subject, HumanHyperParamSetter)]
        settings = [setter.setting for setter in setters if setter.file_name == self.file_name]
        if settings[:1] != [self.setting]:
            return []
        known = ", ".join(setting.name for setting in settings)
        return reading.problems + [
            Problem(
                line.number, f"sets {line.name[:40]!a}, which no callback reads; known names: {known}", f"{line.name} unknown"
            )
            for line in reading.lines
            if not any(setting.is_called(line.name) for setting in settings)
        ]

    def _report(self, run: Run, problems: list[Problem]) -> None:
        """Report the problems that are new since the last read."""
        new = [problem for problem in problems if problem.key not in self._known_problems]
        self._known_problems = {problem.key for problem in problems}
        for problem in new[:MAX_REPORTED]:
            place = f"{self.file_name}, line {problem.line}," if problem.line else self.file_name
            logger.warning("%s %s", place, problem.reason)
            run.put_event("setting_refused", file=self.file_name, line=problem.line, reason=problem.reason)
        if new[MAX_REPORTED:]:
            logger.warning("%s: %d more problems are not shown", self.file_name, len(new) - MAX_REPORTED)
