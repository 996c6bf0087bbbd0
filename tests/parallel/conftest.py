"""Fixtures for tests with multiple ranks: real processes, each with a JSON result.

Most ranks are forks of one process that has imported everything, because importing takes longer than the tests themselves. Each
has its own rank, session and exit status, as under torchrun. torchrun itself starts the ranks of tests that pass options for
it, and all ranks with HOOKPOINT_FAULTS=all.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import hookpoint

SCRIPTS = Path(__file__).with_name("scripts")
SOURCE = Path(hookpoint.__file__).parents[1]
ALL_BY_TORCHRUN = os.environ.get("HOOKPOINT_FAULTS") == "all"
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
    """How the ranks ended: the result of each (None if it failed), the exit status, and what they printed."""

    def __init__(self, folder: Path, ranks: int, status: int, printed: str) -> None:
        files = [folder / f"rank{rank}.json" for rank in range(ranks)]
        self.results = [json.loads(file.read_text()) if file.exists() else None for file in files]
        self.status, self.printed = status, printed


@pytest.fixture
def scripts(monkeypatch):
    """Let the test import the scripts that ranks run."""
    monkeypatch.syspath_prepend(SCRIPTS)


@pytest.fixture(scope="session")
def fork_server(warm_python):
    """Return a function that starts ranks as forks of one process; the first call starts that process."""
    started = []

    def ask(order, timeout):
        if not started:
            started.append(warm_python(SCRIPTS / "fork_server.py"))
        (stream,) = started
        stream.write(json.dumps(order) + "\n")
        stream.flush()
        pids = json.loads(stream.readline())
        ended = threading.Timer(timeout, _end, [pids])
        ended.start()
        statuses = json.loads(stream.readline())
        is_late = not ended.is_alive()
        ended.cancel()
        _end(pids)  # and whatever they have started
        return None if is_late else next((status for status in statuses if status), 0)

    yield ask
    for stream in started:
        stream.close()


@pytest.fixture
def launch(tmp_path, fork_server):
    """Run a function, or a script of scripts/, on multiple ranks; return the result of each.

    `launch(function, ranks=2, **given)`: the function is written to its own file, so it must import what it needs. It gets
    `given`, which must be JSON, and returns JSON. `launch("name.py", arguments...)` runs a script, which writes its own
    `$RESULTS/rank<n>.json`. `env` sets environment variables. A rank that fails fails the test, except with `check=False`.
    With `torchrun=[...]`, torchrun starts the ranks, with these options.
    """
    count = 0

    def go(what, *arguments, ranks=2, timeout=250, check=True, torchrun=None, env=None, **given):
        nonlocal count
        count += 1
        folder = tmp_path / f"launch{count}"
        folder.mkdir()
        script = SCRIPTS / what if isinstance(what, str | Path) else folder / "script.py"
        if not isinstance(what, str | Path):
            script.write_text(AROUND.format(source=textwrap.dedent(inspect.getsource(what)), name=what.__name__))
        environment = {"RESULTS": str(folder), "GIVEN": json.dumps(given), **(env or {})}
        words = [str(script), *map(str, arguments)]
        if torchrun is not None or ALL_BY_TORCHRUN:
            status = _by_torchrun(words, torchrun or (), ranks, environment, folder, timeout)
        else:
            status = _as_forks(fork_server, words, ranks, environment, folder, timeout)
        said = (folder / "printed").read_text()
        if status is None:
            pytest.fail(f"the processes did not end within {timeout} s; they printed\n{said}")
        outcome = Outcome(folder, ranks, status, said)
        if check and status:
            pytest.fail(f"the processes ended with status {status}; they printed\n{said}")
        return outcome

    return go


def _as_forks(fork_server, words, ranks, environment, folder, timeout):
    from torch.distributed import TCPStore

    # They meet as under torchrun: in a store that belongs to none of them, at a port chosen by the system.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    order = {"words": words, "ranks": ranks, "env": {**meeting, **environment}, "folder": str(folder)}
    return fork_server(order, timeout)


def _by_torchrun(words, options, ranks, environment, folder, timeout):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    paths = {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(SCRIPTS)]), "OMP_NUM_THREADS": "1"}
    # stdout goes to a file: reading a pipe would wait for children of a killed torchrun that hold it open
    with (folder / "printed").open("w") as printed:
        process = subprocess.Popen(
            [*command, *options, *words],
            env={**os.environ, **paths, **environment},
            cwd=folder,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(_groups_below(process.pid))
            process.wait()


def _end(groups):
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _groups_below(pid):
    """Return the process groups of a process and of its descendants: torchrun gives each worker its own session."""
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
