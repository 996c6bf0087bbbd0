"""What is written about hookpoint is true: pages made from the source are up to date, and every example runs."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import hookpoint
from hookpoint.core import points as point_table

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A python block of a page, and the blocks right after it: text is what it prints, console what it says on stderr.

    Nothing printed needs no block. What is said on stderr is looked at only where a page shows it.
    """

    line: int
    source: str
    printed: str = ""
    said: str | None = None


def blocks(page: str) -> Iterator[Block]:
    fences = list(FENCE.finditer(page))
    for number, fence in enumerate(fences):
        if fence[1] == "python":
            outputs, end = {}, fence.end()
            for after in fences[number + 1 :]:
                if after[1] not in ("text", "console") or page[end : after.start()].strip():
                    break
                outputs[after[1]], end = after[2], after.end()
            line = page.count("\n", 0, fence.start()) + 2
            yield Block(line, fence[2], outputs.get("text", ""), outputs.get("console"))


def run_page(path: Path) -> list[str]:
    """Run a page's blocks one after the other in one namespace; return what was printed otherwise than the page says."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    wrong = []
    for block in blocks(path.read_text()):
        printed, said = io.StringIO(), io.StringIO()
        code = compile("\n" * (block.line - 1) + block.source, str(path), "exec")
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            exec(code, namespace)
        for shown, got in ((block.printed, printed.getvalue()), (block.said, said.getvalue())):
            if shown is not None and not doctest.OutputChecker().check_output(shown, got, doctest.ELLIPSIS):
                wrong.append(f"{path.name}, line {block.line}: said\n{shown or 'nothing'}\nprinted\n{got}")
    return wrong


@pytest.fixture(autouse=True)
def aside(tmp_path, monkeypatch):
    """Keep what examples write and declare away from everything else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(point_table, "_declared", set(point_table._declared))


def test_the_page_of_points_is_made_from_the_table():
    page = runpy.run_path(str(ROOT / "docs" / "make_points.py"))["page"]()
    assert (ROOT / "docs" / "points.md").read_text() == page, "run `make docs`"


def test_the_page_of_callbacks_is_made_from_their_docstrings():
    page = runpy.run_path(str(ROOT / "docs" / "make_callbacks.py"))["page"]()
    assert (ROOT / "docs" / "callbacks.md").read_text() == page, "run `make docs`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_block_of_a_page_runs_and_prints_what_it_says(path):
    wrong = run_page(path)
    assert not wrong, "\n".join(wrong)


def test_pages_have_blocks():
    assert sum(len(list(blocks(path.read_text()))) for path in PAGES) > 30


def test_a_wrong_page_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\nprint(x)\n```\n\n```text\n2\n```\n\n```python\nprint(x)\n```\n\nwords\n\n```text\n1\n```\n\n"
        "```python\nimport sys\nprint(x, file=sys.stderr)\n```\n\n```console\n2\n```\n"
    )
    assert [line for text in run_page(page) for line in text.splitlines() if line.startswith("page.md")] == [
        "page.md, line 2: said",
        "page.md, line 11: said",
        "page.md, line 21: said",
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_of_a_page_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", FENCE.sub("", path.read_text()))
    assert [link for link in links if not (path.parent / link).exists()] == []


def modules() -> list[str]:
    """Return the name of every module, found as files, so that nothing is imported here."""
    source = Path(hookpoint.__file__).parent
    return [".".join(["hookpoint", *path.relative_to(source).with_suffix("").parts]) for path in sorted(source.rglob("*.py"))]


@pytest.mark.parametrize("name", modules())
def test_every_docstring_example_runs(name):
    public = {public: getattr(hookpoint, public) for public in hookpoint.__all__}
    try:
        module = importlib.import_module(name.removesuffix(".__init__"))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("hookpoint"):
            raise
        pytest.skip(f"{error.name} is not installed")
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    said = io.StringIO()
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs={**vars(module), **public}):
        assert not any(example.options.get(doctest.SKIP) for example in test.examples), f"{test.name} skips an example"
        runner.run(test, out=said.write)
    assert runner.failures == 0, said.getvalue()
