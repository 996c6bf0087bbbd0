"""A newcomer finds a class by its name: short files, small folders, one file of each name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import hookpoint
from hookpoint._exports import CALLBACKS, MONITORS

SOURCE = Path(hookpoint.__file__).parent
MODULES = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.stem not in ("__init__", "__main__")]
MOST_LINES = 400
MOST_MODULES = 25
# What the core and the engine begin, the presets complete; commands are named after what they show.
TWICE = {"loop", "runner", "explain", "plot", "points", "prove", "verify"}


def test_no_source_file_is_too_long():
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert len(lengths) > len(MODULES)
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_no_folder_has_too_many_modules():
    sizes = Counter(path.parent for path in MODULES)
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_no_file_name_is_used_twice():
    names = Counter(path.stem.lstrip("_") for path in MODULES)
    assert {name for name, number in names.items() if number > 1} == TWICE


def test_every_module_of_the_callbacks_holds_a_public_one_or_is_private():
    public = {*CALLBACKS.values(), *MONITORS.values()}
    modules = {".".join(path.with_suffix("").parts): path for path in MODULES if path.parts[0] == "callbacks"}
    assert {name for name, path in modules.items() if not any(part.startswith("_") for part in path.parts)} - public == set()
