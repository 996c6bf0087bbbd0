"""Warm Python: a process that has imported everything, and forks itself for each script that the tests run.

All of pytest's workers share it, because the imports take as long as twenty tests. It listens on a Unix socket. A connection
starts with a request, one line of JSON, and is stdin and stdout of the script from then on. It ends when the tests do.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, TextIO

# Modules that a run imports sooner or later; otherwise each fork would import them.
IMPORTED = (
    "hookpoint.presets.loop",
    "hookpoint.presets.runner",
    "networkx",
    "numpy.random",
    "safetensors.torch",
    "sklearn.datasets",
    "torch._dynamo.backends.common",  # a first optimizer imports torch._dynamo
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.run",
    "torch.distributed.tensor.parallel",
    "torch.utils.tensorboard",
)
PACKAGES = ("callbacks", "engine", "monitors", "parallel", "presets", "storage")
SOURCE = Path(__file__).parents[1] / "src"
PATIENCE_SECONDS = 100.0
WATCH_SECONDS = 1.0


def start_warm(script: Path, folder: Path, tests: int) -> TextIO:
    """Run a script in a fork of the warm process, with this environment. Return a file for its stdin and stdout.

    All workers share the `folder`: the first call starts the warm process there. It ends with the process `tests`.
    """
    address = folder / "warm-python"
    server = None
    with suppress(FileExistsError), (folder / "warm-python.starting").open("x"):
        command = [sys.executable, __file__, str(address), str(tests)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(2)]
        server = os.posix_spawn(sys.executable, command, environment, file_actions=nothing)  # it may outlive this process
    until = time.monotonic() + PATIENCE_SECONDS
    while not address.exists():
        assert time.monotonic() < until, "the process that imports everything is not ready"
        assert server is None or os.waitpid(server, os.WNOHANG) == (0, 0), "the process that imports everything has failed"
        time.sleep(0.02)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address))
    stream = connection.makefile("rw")
    connection.close()  # the stream keeps it open
    stream.write(json.dumps({"script": str(script), "environment": dict(os.environ)}) + "\n")
    stream.flush()
    return stream


def main(address: str, tests: int) -> None:
    for name in IMPORTED:
        with suppress(ImportError):  # an extra that is not installed
            import_module(name)
    for name in PACKAGES:
        package = import_module(f"hookpoint.{name}")
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    gc.freeze()  # a garbage collection would touch, and thus copy, all imports
    assert threading.active_count() == 1, "a fork of threads is none of a process"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{address}.new")
        listening.listen()
        os.rename(f"{address}.new", address)
        while _is_alive(tests):
            if select.select([listening], [], [], WATCH_SECONDS)[0]:
                connection, _ = listening.accept()
                if os.fork() == 0:
                    listening.close()
                    become(connection)
                connection.close()


def become(connection: socket.socket) -> None:
    """Become the script that the connection requests."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = _first_line(connection)
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()
    os.environ.clear()
    os.environ.update({**request["environment"], "OMP_NUM_THREADS": "1"})
    sys.stdin, sys.stdout = os.fdopen(0, "r"), os.fdopen(1, "w")
    sys.argv = [request["script"]]
    sys.path[0] = os.path.dirname(request["script"])  # as the interpreter does for a script
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def _first_line(connection: socket.socket) -> Any:
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)  # not more: the rest is for the script
        if not byte:
            os._exit(1)  # the client is gone
        line += byte
    return json.loads(line)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
