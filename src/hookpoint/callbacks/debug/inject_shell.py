"""InjectShell: open a shell inside a run."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Unpack

from hookpoint.callbacks._shared.arguments import choice, file_name
from hookpoint.callbacks._shared.workdir import require_workdir
from hookpoint.callbacks.debug import _shells
from hookpoint.callbacks.debug._trigger_file import TriggerFile
from hookpoint.callbacks.progress.progress_bar import ProgressBar
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")


class InjectShell(Callback):
    """Open a shell in the run's terminal when a file appears in its workdir: `touch runs/mine/INJECT_SHELL.tmp`.

    The run waits until the shell is left, by exit(), `q` or Ctrl-D. The variable `run` can be read and changed. `shell` is
    "ipython" (`pip install 'hookpoint[shell]'`; without it, Python's prompt), "pdb" or "python". The file is removed when the
    shell opens. It must be a regular file of the user who trains, not a link: whoever can create it can run code. Without a
    terminal, a warning is logged and the run continues. Ctrl-C in the shell interrupts the typed command. The progress bar is
    hidden meanwhile. Other ranks wait at their next collective, until their timeouts expire. The time counts in `run.elapsed`.

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise.

    >>> InjectShell(shell="python").when(Every(steps=100)).file
    'INJECT_SHELL.tmp'
    """

    ranks = "chief"
    keeps = ""
    step_cost = "nothing; a trigger checks for the file"

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
        if self._file.is_there():
            if _shells.is_at_terminal():
                self._file.remove()
                self._open(run)
            else:
                self._file.warn("requests a shell, but there is no terminal; the run continues")

    def _open(self, run: Run) -> None:
        shell = self.shell
        if not _shells.is_installed(shell):
            logger.warning("IPython is not installed: pip install 'hookpoint[shell]'; using Python's shell")
            shell = "python"
        with ExitStack() as stack:
            for entry in run.hooks.entries:
                if isinstance(entry.subject, ProgressBar):
                    stack.enter_context(entry.subject.out_of_the_way(run))
            stack.enter_context(_shells.interruptible())
            try:
                _shells.SHELLS[shell](run)
            except (Exception, KeyboardInterrupt) as error:  # an error in the shell must not end the run
                logger.warning("the shell failed with %s: %s; the run continues", type(error).__name__, error)
