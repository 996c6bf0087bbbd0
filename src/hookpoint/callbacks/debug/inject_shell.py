"""InjectShell: open a shell inside a run."""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Unpack

from hookpoint.callbacks._shared.arguments import choice, file_name
from hookpoint.callbacks._shared.workdir import file_problem, require_workdir
from hookpoint.callbacks.debug import _shells
from hookpoint.callbacks.progress.progress_bar import ProgressBar
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run


class InjectShell(Callback):
    """Open a shell in the run's terminal when a file appears in the run's workdir: `touch runs/mine/INJECT_SHELL.tmp`.

    The run waits until you leave the shell with exit(), `q` or Ctrl-D. In the shell, you can read and change `run`. `shell` is
    "ipython", "pdb" or "python". IPython needs `pip install 'hookpoint[shell]'`; if it is missing, Python's prompt opens
    instead. The file is removed when the shell opens. The file must be a regular file, not a link, and it must belong to the
    user who started the run, because anyone who can create it can run code. Without a terminal, a warning is logged and the run
    continues. Ctrl-C in the shell interrupts the typed command. The progress bar is hidden while the shell is open. Other ranks
    wait at their next collective call, and fail if the call times out. The time in the shell is included in `run.elapsed`.

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise.

    >>> InjectShell(shell="python").when(Every(steps=100)).file
    'INJECT_SHELL.tmp'
    """

    ranks = "chief"
    step_cost = "nothing; each trigger checks whether the file exists"

    def __init__(
        self, file: str = "INJECT_SHELL.tmp", shell: Literal["ipython", "pdb", "python"] = "ipython", **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        self.file = file_name("InjectShell", "file", file)
        self.shell = choice("InjectShell", "shell", shell, tuple(_shells.SHELLS))
        self._file = TriggerFile(Path(file))

    def on_setup(self, run: Run) -> None:
        require_workdir(self.name or "InjectShell", run)

    def on_run_begin(self, run: Run) -> None:
        self._file = TriggerFile(Path(run.workdir) / self.file)

    def on_trigger(self, run: Run) -> None:
        if self._file.exists():
            if _shells.is_at_terminal():
                self._file.remove()
                self._open(run)
            else:
                self._file.warn("requests a shell, but there is no terminal; the run continues")

    def _open(self, run: Run) -> None:
        shell = self.shell
        if shell == "ipython" and find_spec("IPython") is None:
            logger.warning("IPython is not installed: pip install 'hookpoint[shell]'; using Python's shell")
            shell = "python"
        with ExitStack() as stack:
            for entry in run.hooks.entries:
                if isinstance(entry.subject, ProgressBar):
                    stack.enter_context(entry.subject.hidden(run))
            stack.enter_context(_shells.interruptible())
            try:
                _shells.SHELLS[shell](run)
            except (Exception, KeyboardInterrupt) as error:  # an error in the shell must not end the run
                logger.warning("the shell failed with %s: %s; the run continues", type(error).__name__, error)


class TriggerFile:
    """Check for a regular file that is owned by this user and has only one hard link.

    Any other file at that path is ignored, and a warning about that file is logged once while it exists. The methods of this
    class do not raise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._logged = ""

    def exists(self) -> bool:
        """Return whether the file exists and is valid."""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            self._logged = ""
            return False
        except OSError as error:
            self.warn(f"cannot be checked: {error.strerror}")
            return False
        problem = file_problem(status)
        if not problem and status.st_nlink != 1:  # another user may have created a link to this user's file
            problem = "has more than one hard link"
        if problem:
            self.warn(f"{problem}; it is ignored")
        return not problem

    def remove(self) -> None:
        """Remove the file, or log that it still exists."""
        try:
            os.unlink(self.path)
        except OSError as error:
            logger.warning("%s could not be removed: %s", self.path, error.strerror)

    def warn(self, text: str) -> None:
        """Log a warning about the file, but only once while the file exists."""
        if text != self._logged:
            self._logged = text
            logger.warning("%s %s", self.path, text)
