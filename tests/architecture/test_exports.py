"""The public names are listed once, sorted; the list matches the package, the view of type checkers, and the docs."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

import hookpoint
from hookpoint._exports import ADAPTERS, ALSO_CALLBACKS, CALLBACKS, HOOKPOINT, MODULES, MONITORS

ROOT = Path(__file__).parents[2]


# Each package with public names, and the table of their modules.
PACKAGES = {
    "hookpoint": HOOKPOINT,
    "hookpoint.callbacks": CALLBACKS | {name: HOOKPOINT[name] for name in ALSO_CALLBACKS},
    "hookpoint.monitors": MONITORS,
    "hookpoint.adapters": ADAPTERS,
}


def typing_imports(source: str) -> dict[str, str]:
    """Return the names that a package imports under TYPE_CHECKING for type checkers, each with its module."""
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body]
    assert all(isinstance(node, ast.ImportFrom) for node in imports)
    # only `import X as X` makes a name public for type checkers
    return {one.asname: f"{node.module}.{one.name}" for node in imports for one in node.names if one.asname is not None}


def offered(exports: Mapping[str, str]) -> dict[str, str]:
    """Return the names in a table, in the format of `typing_imports`. A name may refer to a module."""
    modules = {name: f"hookpoint.{module}" for name, module in exports.items()}
    return {name: module if name in MODULES else f"{module}.{name}" for name, module in modules.items()}


def documented() -> str:
    """Return the code in README.md and in docs/, in blocks and between backticks."""
    pages = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", pages, re.DOTALL))


def test_public_names_are_sorted_without_duplicates():
    assert hookpoint.__all__ == sorted(set(hookpoint.__all__))


def test_public_names_match_the_table_of_lazy_names():
    assert set(hookpoint.__all__) == set(HOOKPOINT) | {"__version__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_in_the_table(package):
    found = typing_imports(Path(import_module(package).__file__).read_text())
    assert dict(sorted(found.items())) == dict(sorted(offered(PACKAGES[package]).items()))


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_shows_the_names_in_the_table(package):
    listed = set(PACKAGES[package]) - (set(ALSO_CALLBACKS) if package == "hookpoint.callbacks" else set())
    assert dir(import_module(package)) == sorted(listed | ({"__version__"} if package == "hookpoint" else set()))


def test_dir_shows_all_public_names():
    assert dir(hookpoint) == hookpoint.__all__


@pytest.mark.parametrize("name", hookpoint.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(hookpoint, name) is getattr(hookpoint, name)


def test_an_unknown_name_raises():
    with pytest.raises(AttributeError, match="hookpoint has no 'Runner2'"):
        hookpoint.Runner2  # noqa: B018


@pytest.mark.parametrize("name", [name for name in hookpoint.__all__ if name != "__version__"])
def test_every_public_name_is_documented(name):
    assert re.search(rf"(?<!\w){name}(?!\w)", documented()), f"neither README.md nor a page in docs/ shows {name}"


# Tests that the checks above can fail


def test_typing_imports_reads_the_names_from_the_source():
    block = "from hookpoint.monitors.history import History as History\n    from hookpoint.core import points as points"
    found = typing_imports(f"from a import b as b\nif TYPE_CHECKING:\n    {block}\n    from c import private\n")
    assert found == {"History": "hookpoint.monitors.history.History", "points": "hookpoint.core.points"}
    assert offered({"History": "monitors.history", "errors": "core.errors"}) == {
        "History": "hookpoint.monitors.history.History",
        "errors": "hookpoint.core.errors",
    }
