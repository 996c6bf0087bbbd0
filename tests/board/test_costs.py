"""Open pages do not slow a run: it executes the same opcodes and makes the same system calls."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest

PAGES = 10
STEPS = 100
OF_THREADS_AND_MEMORY = {"futex", "madvise", "mmap", "munmap", "brk"}  # these vary between runs
COUNTS = """
    import sys
    from hookpoint import Loop
    from hookpoint import callbacks as cb

    counts, count = [], 0

    def trace(frame, event, argument):
        global count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    with Loop([], workdir=sys.argv[1], extra_callbacks=[], monitors=[cb.JSONWriter()], log_every=5) as run:
        for epoch in run.epochs(1):
            for batch in run.batches([1.0] * 100):
                if run.current_iteration == 1:
                    print("training", flush=True)
                    sys.stdin.readline()
                    sys.settrace(trace)
                counts.append(count)
                run.log(loss=batch)
            sys.settrace(None)
            print("trained", flush=True)
    print(*[after - before for before, after in zip(counts[10:], counts[11:-1])])
"""


def trained(workdir, prefix=(), between=lambda: None):
    """Train in a process; call `between` once it has started. Return its stdout and stderr."""
    command = [*prefix, sys.executable, "-c", textwrap.dedent(COUNTS), str(workdir)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "training\n", process.stderr.read()
        between()
        output, errors = process.communicate("go\n", timeout=250)
        assert process.returncode == 0, errors
    return output, errors


@pytest.mark.slow  # starts two processes; test_application tests that pages only read files
def test_a_step_executes_the_same_opcodes_while_ten_pages_are_open(board, tmp_path):
    alone, _ = trained(tmp_path / "alone")
    with ExitStack() as pages:

        def open_pages():
            client = board(tmp_path / "runs")
            for _ in range(PAGES):
                pages.enter_context(client.stream("watched"))

        (tmp_path / "runs").mkdir()
        watched, _ = trained(tmp_path / "runs" / "watched", between=open_pages)
    assert len(alone.split()) > STEPS - 20
    assert watched == alone


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_run_makes_the_same_system_calls_while_ten_pages_are_open(board, tmp_path):
    def of_steps(log):
        """Return the number of each system call of the training thread between the first and the last step."""
        steps = log.read_text().partition('write(1, "training')[2].partition('write(1, "trained')[0]
        calls = re.findall(r"^(\w+)\(", steps, re.MULTILINE)
        return {name: calls.count(name) for name in set(calls) - OF_THREADS_AND_MEMORY}

    prefix = ("strace", "-o", str(tmp_path / "alone.log"))
    trained(tmp_path / "alone", prefix)
    with ExitStack() as pages:

        def open_pages():
            client = board(tmp_path / "runs")
            for _ in range(PAGES):
                pages.enter_context(client.stream("watched"))

        (tmp_path / "runs").mkdir()
        trained(tmp_path / "runs" / "watched", ("strace", "-o", str(tmp_path / "watched.log")), open_pages)
    assert of_steps(tmp_path / "watched.log") == of_steps(tmp_path / "alone.log")
