"""Files are short, folders are small, and file names are unique, so that a class is easy to find."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import hookpoint
from hookpoint._exports import CALLBACKS, MONITORS

SOURCE = Path(hookpoint.__file__).parent
MODULES = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.stem not in ("__init__", "__main__")]
MOST_LINES = 400
MOST_MODULES = 25
# The files that share a name, leading underscores aside, each pair with its reason.
SAME_NAME = {
    ("core/loop/loop.py", "presets/loop.py"): "the presets add the defaults to the core's Loop",
    ("engine/runner.py", "presets/runner.py"): "the presets add the defaults to the engine's Runner",
    ("cli/explain.py", "core/hooks/_explain.py"): "the command prints what Hooks.explain returns",
    ("cli/plot.py", "presets/plot.py"): "the command draws what the function plot draws",
    ("cli/points.py", "core/points.py"): "the command prints the table of points",
    ("cli/prove.py", "presets/prove.py"): "the command runs the function prove",
    ("cli/verify.py", "storage/verify.py"): "the command runs the function verify",
}


def test_no_source_file_is_too_long():
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert len(lengths) > len(MODULES)
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_no_folder_has_too_many_modules():
    sizes = Counter(path.parent for path in MODULES)
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def same_name(modules: list[Path]) -> set[tuple[str, ...]]:
    """Return the paths of the modules that share a name. A leading underscore makes no difference."""
    by_name: dict[str, list[str]] = {}
    for path in modules:
        by_name.setdefault(path.stem.lstrip("_"), []).append(path.as_posix())
    return {tuple(sorted(paths)) for paths in by_name.values() if len(paths) > 1}


def test_no_file_name_is_used_twice():
    assert same_name(MODULES) == set(SAME_NAME)


def test_files_that_share_a_name_are_detected():
    modules = [Path(name) for name in ("core/loop.py", "engine/_loop.py", "cli/loop.py", "cli/show.py")]
    assert same_name(modules) == {("cli/loop.py", "core/loop.py", "engine/_loop.py")}
    assert same_name(modules[2:]) == set()


def test_every_module_in_callbacks_has_a_public_callback_or_is_private():
    public = {*CALLBACKS.values(), *MONITORS.values()}
    modules = {".".join(path.with_suffix("").parts): path for path in MODULES if path.parts[0] == "callbacks"}
    assert {name for name, path in modules.items() if not any(part.startswith("_") for part in path.parts)} - public == set()
