"""Fork server: the tests' ranks are forks of this process, which is a fork of warm Python and has imported everything.

Each line it reads is a request. It answers with the process ids, and with the exit statuses when all have
ended. If one fails, it terminates the others, as torchrun does.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any

PATIENCE_SECONDS = 60.0


def main() -> None:
    assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1, "a fork of threads is none of a process"
    for line in sys.stdin:
        order = json.loads(line)
        pids = []
        for rank in range(order["ranks"]):
            pids.append(os.fork())
            if pids[-1] == 0:
                become(order, rank)
                leave(status_of(order["words"][0]))
        print(json.dumps(pids), flush=True)
        print(json.dumps(statuses(pids)), flush=True)


def status_of(script: str) -> int:
    """Run a script, and return the exit status that an interpreter would have."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def leave(status: int) -> None:
    """Exit as an interpreter does, but without unloading all imports, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def become(order: dict[str, Any], rank: int) -> None:
    """Become one of the ranks."""
    os.setsid()
    os.chdir(order["folder"])
    printed = os.open("printed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, target)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": order["ranks"], "LOCAL_WORLD_SIZE": order["ranks"]}
    os.environ.update({**order["env"], **{name: str(value) for name, value in place.items()}})
    sys.argv = order["words"]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as the interpreter does for a script


def statuses(pids: list[int]) -> list[int]:
    """Wait for these processes; return their exit statuses, in order."""
    ended: dict[int, int] = {}
    until = None
    while len(ended) < len(pids):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            ended[pid] = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.005)
        if until is None and any(ended.values()):
            until = time.monotonic() + PATIENCE_SECONDS
            tell(signal.SIGTERM, pids, ended)
        if until is not None and time.monotonic() > until:
            tell(signal.SIGKILL, pids, ended)
    return [ended[pid] for pid in pids]


def tell(what: signal.Signals, pids: list[int], ended: dict[int, int]) -> None:
    for pid in pids:
        if pid not in ended:
            with suppress(ProcessLookupError):
                os.kill(pid, what)


if __name__ == "__main__":
    main()
