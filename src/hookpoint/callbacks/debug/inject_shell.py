"""InjectShell: look into a run while it waits."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hookpoint.callbacks.debug import _shells
from hookpoint.callbacks.debug._trigger_file import TriggerFile
from hookpoint.callbacks.progress.progress_bar import ProgressBar
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument, BadLoop

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")


class InjectShell(Callback):
    """Open a shell in the terminal of the run when a file appears in its workdir: `touch runs/mine/INJECT_SHELL.tmp`.

    The run waits; `run` is there to look at and to change. Leaving the shell goes on with it, also by exit() or `q`. `shell`
    is "ipython" (`pip install 'hookpoint[shell]'`; without it Python's own), "pdb" or "python". The file is removed when the
    shell opens. It has to be a regular file of the user who trains, and no link: whoever can make it can run code. Without a
    terminal to type into one line is logged, and the run goes on. Ctrl-C in the shell interrupts what was typed, and the
    progress bar is out of the way. Processes that train together with this one wait at their next exchange, for as long as
    their timeouts let them. The time counts as `run.elapsed`.

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise. Keeps nothing in the checkpoint. Runs on
    the chief. A step pays nothing, a trigger for one look at the file.

    >>> InjectShell(shell="python").when(Every(steps=100)).file
    'INJECT_SHELL.tmp'
    """

    ranks = "chief"

    def __init__(
        self,
        file: str = "INJECT_SHELL.tmp",
        shell: Literal["ipython", "pdb", "python"] = "ipython",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if not isinstance(file, str) or file in ("", ".", "..") or any(one in file for one in "/\\\0"):
            raise BadArgument(
                f"InjectShell(file={file!r}) is no plain name; the file is in the workdir.", write='file="INJECT_SHELL.tmp"'
            )
        if shell not in _shells.SHELLS:
            raise BadArgument(f"InjectShell(shell={shell!r}) is no shell.", choose=", ".join(map(repr, _shells.SHELLS)))
        self.file = file
        self.shell = shell
        self._file = TriggerFile(Path(file))

    def on_setup(self, run: Run) -> None:
        if run.workdir is None:
            own = self.name or "InjectShell"
            raise BadLoop(f"{own} looks for {self.file} in the workdir, and there is none.", give='workdir="runs/name"')

    def on_run_begin(self, run: Run) -> None:
        self._file = TriggerFile(Path(run.workdir) / self.file)

    def on_trigger(self, run: Run) -> None:
        if not self._file.is_there():
            return
        if not _shells.is_at_terminal():
            self._file.say("asks for a shell, and there is no terminal to type into; the run goes on")
            return
        self._file.remove()
        self._open(run)

    def _open(self, run: Run) -> None:
        shell = self.shell
        if not _shells.is_installed(shell):
            logger.warning("IPython is not installed: pip install 'hookpoint[shell]'; this is Python's own shell")
            shell = "python"
        with ExitStack() as stack:
            for entry in run.hooks.entries:
                if isinstance(entry.subject, ProgressBar):
                    stack.enter_context(entry.subject.out_of_the_way(run))
            stack.enter_context(_shells.interruptible())
            try:
                _shells.SHELLS[shell](run)
            except (Exception, KeyboardInterrupt) as error:  # whatever goes wrong in a shell, the run is not to suffer
                logger.warning("the shell ended with %s: %s; the run goes on", type(error).__name__, error)
