"""Import an object by module:name. The current folder is searched first."""

from __future__ import annotations

import importlib
import os
import sys
from difflib import get_close_matches
from typing import Any

from hookpoint.run_folder.command_error import REFUSED, USAGE, CommandError
from hookpoint.run_folder.formatting import shown


def named_object(name: str, example: str) -> Any:
    """Return the object that module:name refers to. This runs the module's code. `example` is a name for error messages."""
    module_name, _, path = name.partition(":")
    if module_name.endswith(".py"):
        module_name = module_name.removesuffix(".py").replace(os.sep, ".")
    if not path or not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        file = module_name if module_name.isidentifier() else "train"
        raise CommandError(f"{shown(name)} is not of the form module:name; for {file}.py, type {file}:{example}", USAGE)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    target: Any = _module(module_name)
    for part in path.split("."):
        if not hasattr(target, part):
            names = [name for name in getattr(target, "__dict__", ()) if not name.startswith("_")]
            near = get_close_matches(part, names, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(names)[:8]) or 'nothing'}"
            raise CommandError(f"{shown(module_name)} has no {shown(part)}; {hint}", USAGE)
        target = getattr(target, part)
    return target


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            message = f"there is no module {shown(name)} here; change to the folder of {shown(name)}.py"
            raise CommandError(message, USAGE) from error
        raise CommandError(f"{shown(name)} needs {shown(error.name)}, which is not installed", REFUSED) from error
    except Exception as error:
        raise failed(name, error) from error
    except SystemExit as error:
        raise CommandError(f"{shown(name)} exits on import; put its code under if __name__ == '__main__'") from error


def failed(name: str, error: Exception) -> CommandError:
    """Return the CommandError for an error in the user's code."""
    return CommandError(f"{shown(name)} raised {type(error).__name__}: {shown(error)} (--debug shows where)", REFUSED)
