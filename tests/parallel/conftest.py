"""What the tests of several processes share: real processes, started by torchrun, each with a JSON result."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hookpoint

SCRIPTS = Path(__file__).with_name("scripts")
SOURCE = Path(hookpoint.__file__).parents[1]
AROUND = """
import json, os, sys
from pathlib import Path
{source}
if __name__ == "__main__":
    given = json.loads(os.environ["GIVEN"])
    result = {name}(**given)
    Path(os.environ["RESULTS"], "rank" + os.environ["RANK"] + ".json").write_text(json.dumps(result))
"""


class Outcome:
    """How the processes ended: what each returned, by rank (None where one failed), the exit status, and what they printed."""

    def __init__(self, folder: Path, ranks: int, status: int, printed: str) -> None:
        files = [folder / f"rank{rank}.json" for rank in range(ranks)]
        self.results = [json.loads(file.read_text()) if file.exists() else None for file in files]
        self.status, self.printed = status, printed


@pytest.fixture
def launch(tmp_path):
    """Run a function, or a script of scripts/, in several processes under torchrun; return what each has returned.

    `launch(function, ranks=2, timeout=60, **given)`: the function is written into a file of its own, so it imports what it
    needs inside; it gets `given`, which has to be JSON, and returns JSON. `launch("name.py", arguments...)` runs a script,
    which writes its own `$RESULTS/rank<n>.json`. Without `check=False` a failure of the processes fails the test.
    """
    count = 0

    def go(what, *arguments, ranks=2, timeout=60, check=True, torchrun=(), env=None, **given):
        nonlocal count
        count += 1
        folder = tmp_path / f"launch{count}"
        folder.mkdir()
        script = SCRIPTS / what if isinstance(what, str) else folder / "script.py"
        if not isinstance(what, str):
            script.write_text(AROUND.format(source=textwrap.dedent(inspect.getsource(what)), name=what.__name__))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        # stdout is put into a file: a pipe that a child of a killed torchrun holds open would be waited for
        with (folder / "printed").open("w+") as printed:
            process = subprocess.Popen(
                [*command, *torchrun, str(script), *map(str, arguments)],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(SOURCE), str(SCRIPTS)]),
                    "OMP_NUM_THREADS": "1",
                    "RESULTS": str(folder),
                    "GIVEN": json.dumps(given),
                    **(env or {}),
                },
                cwd=folder,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                for group in _groups_below(process.pid):
                    try:
                        os.killpg(group, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                process.wait()
            printed.seek(0)
            said = printed.read()
        if status is None:
            pytest.fail(f"the processes did not end within {timeout} s; they printed\n{said}")
        outcome = Outcome(folder, ranks, status, said)
        if check and status:
            pytest.fail(f"the processes ended with status {status}; they printed\n{said}")
        return outcome

    return go


def _groups_below(pid):
    """Return the process groups of a process and of those it started: torchrun gives each worker a session of its own."""
    found, groups = [pid], {pid}
    while found:
        parent = found.pop()
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            found.append(child)
            try:
                groups.add(os.getpgid(child))
            except ProcessLookupError:
                pass
    return groups
