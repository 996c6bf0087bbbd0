"""The public names are listed once, sorted; the list is what there is, what type checkers see, and what is documented."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import hookpoint
from hookpoint._exports import HOOKPOINT

ROOT = Path(__file__).parents[2]


def typing_imports() -> set[str]:
    """Return what type checkers see: the names that __init__ imports under TYPE_CHECKING."""
    tree = ast.parse(Path(hookpoint.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {name.asname or name.name for block in blocks for node in block.body for name in node.names}


def documented() -> str:
    """Return what README.md and the pages in docs/ show as code, in blocks and between backticks."""
    pages = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", pages, re.DOTALL))


def test_the_list_is_sorted_and_has_no_doubles():
    assert hookpoint.__all__ == sorted(set(hookpoint.__all__))


def test_the_list_is_what_the_lazy_table_offers():
    assert set(hookpoint.__all__) == set(HOOKPOINT) | {"__version__"}


def test_the_list_is_what_type_checkers_see():
    assert set(hookpoint.__all__) == typing_imports() | {"__version__"}


def test_the_list_is_what_dir_shows():
    assert dir(hookpoint) == hookpoint.__all__


@pytest.mark.parametrize("name", hookpoint.__all__)
def test_every_name_is_there(name):
    assert getattr(hookpoint, name) is getattr(hookpoint, name)


def test_another_name_is_not_there():
    with pytest.raises(AttributeError, match="hookpoint has no 'Runner2'"):
        hookpoint.Runner2  # noqa: B018


@pytest.mark.parametrize("name", [name for name in hookpoint.__all__ if name != "__version__"])
def test_every_name_is_documented(name):
    assert re.search(rf"(?<!\w){name}(?!\w)", documented()), f"neither README.md nor a page in docs/ shows {name}"
