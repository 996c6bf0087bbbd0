"""Run `hookpoint launch` in a fork of a warm Python: read arguments and folder, and write the exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback

from hookpoint.parallel.launch.launcher import main


def launch(arguments: list[str], folder: str, printed: str) -> None:
    code = 1
    try:
        os.chdir(folder)
        file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(file, number)
        sys.argv = ["launcher", *arguments]
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    order = json.loads(sys.stdin.readline())
    pid = os.fork()
    if pid == 0:
        launch(**order)
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), flush=True)
