"""The built page matches the sources in web/, as far as this can be checked without node. `make test-board` builds it."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB, PAGE = ROOT / "web", ROOT / "src" / "hookpoint" / "board" / "page"
MAX_SCRIPT_BYTES = 150_000


def digest(folder, paths):
    """Return the digest that web/record_build.js computes from the path, size and bytes of each file."""
    found = sha256()
    for path in paths:
        content = (folder / path).read_bytes()
        found.update(f"{path}\n{len(content)}\n".encode() + content)
    return found.hexdigest()


def files_below(folder):
    paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(path.as_posix() for path in paths if "node_modules" not in path.parts)


@pytest.fixture(scope="module")
def build():
    return json.loads((PAGE / "build.json").read_text())


def test_the_page_was_built_from_the_current_sources(build):
    assert digest(WEB, files_below(WEB)) == build["sources"], "the page is not built from web/: run `make page`"


def test_the_built_files_are_unchanged(build):
    names = [name for name in files_below(PAGE) if name != "build.json"]
    assert {name: digest(PAGE, [name]) for name in names} == build["files"], "built files were edited: run `make page`"


def test_the_script_is_small():
    assert len((PAGE / "board.js").read_bytes()) <= MAX_SCRIPT_BYTES


def test_the_sources_never_insert_html():
    ways = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|\beval\(|new Function")
    sources = list(WEB.joinpath("src").rglob("*.ts*"))
    assert sources
    assert [path.name for path in sources if ways.search(path.read_text())] == []


def test_the_sources_contain_no_external_host():
    texts = {path: WEB.joinpath(path).read_text() for path in files_below(WEB)}
    hosts = {
        host for path, text in texts.items() if path != "package-lock.json" for host in re.findall(r"https?://[^\s\"'/]+", text)
    }
    assert hosts == {"http://www.w3.org"}  # the SVG namespace
    assert '"resolved"' not in texts["package-lock.json"]


def test_package_versions_are_pinned():
    package = json.loads((WEB / "package.json").read_text())
    versions = [*package["dependencies"].values(), *package["devDependencies"].values()]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
