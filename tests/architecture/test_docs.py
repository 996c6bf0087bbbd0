"""The docs are correct: generated pages are up to date, links work, and every example runs."""

from __future__ import annotations

import contextlib
import doctest
import functools
import importlib
import inspect
import io
import re
import runpy
import unicodedata
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

import hookpoint
from hookpoint import callbacks, errors
from hookpoint.core import points as point_table

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NEEDS = re.compile(r"<!-- needs: (\w+) -->\n\Z")
OTHER_TRAINERS = {"accelerate", "fastai", "ignite", "keras", "lightning", "transformers"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A Python block of a page, and the blocks right after it: text is its stdout, console its stderr.

    A block without output needs no text block. stderr is checked only if the page shows it. A block after the line
    <!-- needs: keras --> runs only if that package is installed.
    """

    line: int
    source: str
    printed: str = ""
    said: str | None = None
    needs: str | None = None


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
            needs = NEEDS.search(page[: fence.start()])
            yield Block(line, fence[2], outputs.get("text", ""), outputs.get("console"), needs[1] if needs else None)


def run_page(path: Path) -> list[str]:
    """Run a page's blocks in order in one namespace; return the differences between their output and the page."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    wrong = []
    for block in blocks(path.read_text()):
        if block.needs is not None and find_spec(block.needs) is None:
            continue
        printed, said = io.StringIO(), io.StringIO()
        code = compile("\n" * (block.line - 1) + block.source, str(path), "exec")
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said), warnings.catch_warnings():
            if block.needs is not None:  # ignore warnings of the other library
                warnings.simplefilter("ignore")
                warnings.filterwarnings("error", module="hookpoint")
            exec(code, namespace)
        for shown, got in ((block.printed, printed.getvalue()), (block.said, said.getvalue())):
            if shown is not None and not doctest.OutputChecker().check_output(shown, got, doctest.ELLIPSIS):
                wrong.append(f"{path.name}, line {block.line}: said\n{shown or 'nothing'}\nprinted\n{got}")
    return wrong


@pytest.fixture(autouse=True)
def aside(tmp_path, monkeypatch):
    """Isolate the files that examples write and the points that they declare."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(point_table, "_declared", set(point_table._declared))


@pytest.mark.parametrize(
    ("page", "maker", "function"),
    [
        ("points.md", "make_points.py", "page"),
        ("callbacks.md", "make_callbacks.py", "page"),
        ("reference.md", "make_callbacks.py", "reference"),
        ("errors.md", "make_errors.py", "page"),
    ],
)
def test_a_generated_page_is_up_to_date(page, maker, function):
    made = runpy.run_path(str(ROOT / "docs" / maker))[function]()
    assert (ROOT / "docs" / page).read_text() == made, "run `make docs`"


def test_the_reference_has_every_callback_with_its_arguments_and_docstring():
    page = (ROOT / "docs" / "reference.md").read_text()
    sections = {section.partition("\n")[0]: section for section in page.split("\n### ")[1:]}
    assert set(sections) == {"Loop", "Runner", *callbacks.__all__}
    for name, section in sections.items():
        one = getattr(callbacks if name in callbacks.__all__ else hookpoint, name)
        plain = section.replace("\\", "")
        words = re.sub(r"  # doctest: .*|\\", "", inspect.cleandoc(one.__doc__))
        assert [word for word in words.split() if word not in plain] == [], name
        given = [] if getattr(one, "_is_protocol", False) else inspect.signature(one).parameters
        assert [argument for argument in given if not re.search(rf"\b{argument}\b", section.split("```")[1])] == [], name


def test_every_error_is_on_the_errors_page():
    headings = HEADING.findall((ROOT / "docs" / "errors.md").read_text())
    classes = [name for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, Exception)]
    assert len(classes) > 30
    assert [name for name in classes if name not in headings] == []


def test_every_row_of_the_catalogue_has_a_link_or_a_reason():
    rows = [line.split("|") for line in (ROOT / "docs" / "catalogue.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 105
    assert [row[1] for row in rows if "](" not in row[2] and "Decided otherwise" not in row[2]] == []


def test_every_example_is_on_the_examples_page():
    page = (ROOT / "docs" / "examples.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+\.py)` ", page, re.MULTILINE)) == sorted(
        path.name for path in (ROOT / "examples").glob("*.py")
    )


def test_every_layer_is_on_the_design_page():
    page = (ROOT / "docs" / "design.md").read_text()
    layers = {path.parent.name for path in Path(hookpoint.__file__).parent.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == layers


def test_the_architecture_page_lists_every_folder_and_only_existing_files():
    page, source = (ROOT / "docs" / "architecture.md").read_text(), Path(hookpoint.__file__).parent
    listed = [name for row in re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE) for name in re.findall(r"`([\w/]+)/`", row)]
    folders = {path.parent.relative_to(source).as_posix() for path in source.glob("*/**/__init__.py")}
    assert {*listed, "callbacks/_shared"} == folders
    files = re.findall(r"`([\w/]+\.py)`", page)
    assert len(files) > 40
    assert [name for name in files if not (source / name).exists() and not (ROOT / name).exists()] == []


def test_the_site_lists_every_page_exactly_once():
    listed = re.findall(r"^ +- .*?([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == [path.name for path in PAGES[1:]]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_block_of_a_page_runs_and_prints_the_shown_output(path):
    wrong = run_page(path)
    assert not wrong, "\n".join(wrong)
    missing = sorted({block.needs for block in blocks(path.read_text()) if block.needs and find_spec(block.needs) is None})
    if missing:
        pytest.skip(f"the blocks for {', '.join(missing)} did not run; the others did")


def test_only_the_other_trainers_page_has_blocks_that_need_a_trainer():
    needs = {path.name: {block.needs for block in blocks(path.read_text())} - {None} for path in PAGES}
    assert {name for name, packages in needs.items() if packages} == {"other-trainers.md"}
    assert needs["other-trainers.md"] <= OTHER_TRAINERS


def test_pages_have_blocks():
    assert sum(len(list(blocks(path.read_text()))) for path in PAGES) > 30


def test_wrong_output_on_a_page_is_detected(tmp_path):
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


@functools.cache
def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings that are the same on the site and on GitHub."""
    site: list[str] = []
    github: list[str] = []
    for heading in HEADING.findall(FENCE.sub("", page)):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading).lower()
        words = re.sub(r"[^\w\s-]", "", unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode()).strip()
        for found, slug, joint in ((site, re.sub(r"[-\s]+", "-", words), "_"), (github, words.replace(" ", "-"), "-")):
            again = sum(one == slug or re.fullmatch(rf"{re.escape(slug)}{joint}\d+", one) is not None for one in found)
            found.append(f"{slug}{joint}{again}" if again else slug)
    return set(site) & set(github)


def dead_links(path: Path) -> list[str]:
    """Return the links of a page to missing files and missing headings."""
    found = []
    for file, anchor in LINK.findall(FENCE.sub("", path.read_text())):
        target = path.parent / file if file else path
        if not target.exists():
            found.append(file)
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target.read_text())):
            found.append(f"{file}#{anchor}")
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_of_a_page_are_not_dead(path):
    assert dead_links(path) == []


@pytest.mark.parametrize("path", PAGES[1:], ids=lambda path: path.name)
def test_links_of_the_site_stay_within_the_site(path):
    assert [file for file, _ in LINK.findall(FENCE.sub("", path.read_text())) if file.startswith("..")] == []


def test_dead_links_are_detected(tmp_path):
    (tmp_path / "other.md").write_text(
        "# `on_x` & more\n## A [linked](x.md) one, really?\n## Twice\n## Twice\n```\n# No heading\n```\n"
    )
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#a-linked-one-really) [c](#here) [d](other.md#twice) [e](https://example.org/#x)\n"
        "[f](missing.md) [g](other.md#no-heading) [h](#there) [i](other.md#twice-1) [j](other.md#on_x-more)\n"
    )
    assert dead_links(page) == ["missing.md", "other.md#no-heading", "#there", "other.md#twice-1", "other.md#on_x-more"]


def modules() -> list[str]:
    """Return the name of every module, found as a file, without importing it."""
    source = Path(hookpoint.__file__).parent
    return [".".join(["hookpoint", *path.relative_to(source).with_suffix("").parts]) for path in sorted(source.rglob("*.py"))]


@pytest.mark.parametrize("name", modules())
def test_every_docstring_example_runs(name):
    try:
        module = importlib.import_module(name.removesuffix(".__init__"))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("hookpoint"):
            raise
        pytest.skip(f"{error.name} is not installed")
    if ">>> " not in Path(module.__file__).read_text():
        return  # the search for examples is slow
    public = {public: getattr(hookpoint, public) for public in hookpoint.__all__}
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    said = io.StringIO()
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, globs={**vars(module), **public}):
        assert not any(example.options.get(doctest.SKIP) for example in test.examples), f"{test.name} skips an example"
        runner.run(test, out=said.write)
    assert runner.failures == 0, said.getvalue()
