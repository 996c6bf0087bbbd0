"""Imports go one way: between layers, between folders of a layer, and between modules. The core imports no packages."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import hookpoint
from hookpoint._exports import ADAPTERS, FOR_THE_CORE, HOOKPOINT
from hookpoint.cli.main import COMMANDS

SOURCE = Path(hookpoint.__file__).parent

LAYERS = (
    "core",
    "callbacks",
    "monitors",
    "storage",
    "parallel",
    "engine",
    "plots",
    "run_folder",
    "steering",
    "board",
    "adapters",
    "cli",
    "presets",
)
ROOT = ""  # the package itself: `import hookpoint`
MAY_IMPORT = {
    "core": {"core"},
    "callbacks": {"callbacks", "core", "monitors", "storage"},  # users find monitors among the callbacks
    "monitors": {"monitors", "core", "storage"},
    "storage": {"storage", "core"},
    "parallel": {"parallel", "core"},
    "plots": {"plots", "core"},
    "run_folder": {"run_folder", "core", "storage", "plots"},
    "steering": {"steering", "core", "storage"},
    "board": {"board", "core", "storage", "plots", "run_folder", "steering"},
    "engine": {"engine", "core", "storage", "parallel"},
    "adapters": {"adapters", "core", "callbacks", "storage", "steering", "parallel", "engine"},
    "cli": {ROOT, "cli", "core", "storage", "plots", "run_folder", "steering", "board", "presets"},
    "presets": {
        "presets",
        "core",
        "callbacks",
        "monitors",
        "storage",
        "parallel",
        "engine",
        "plots",
        "run_folder",
        "steering",
    },
    "__init__": {"core", "callbacks", "storage", "parallel", "engine", "steering", "adapters", "presets"},
    "__main__": {"cli"},
    "_exports": set(),
    "_gc_pause": set(),
    "_version": set(),
}
# The folders of a layer; each imports only the folders before it. "." stands for the modules directly in the layer.
FOLDERS = {
    "core": ". text schedule callback hooks team log data checkpoint run guard background hang control loop",
    "callbacks": "_shared saving stopping hyper_params inference weights model_hooks tensors progress system profiling"
    " summaries notify debug .",
    "adapters": "foreign_callbacks .",
    "storage": "disk checkpoint workdir remote .",
    "parallel": "team shared strategy data averaging async_sgd tensor pipeline checkpoint launch .",
    "engine": "data step fused .",
    "run_folder": ". media remote",
}
FOR_EVERYONE = {"_exports", "_gc_pause", "_version"}
STANDARD_LIBRARY_ONLY = {"core"}
# Names that the core loads from higher layers through the table in _exports, only if a list of callbacks needs them.
ASKED_FOR = {
    "StepFetches": "the callback that fetches the values for tensorpack's _before_run and _after_run",
    "adopt": "the wrapper for a callback that was written for another library",
}
# Modules that only their own folder imports, but whose names have no underscore.
OPENED_BY_NAME = {
    "hookpoint.core.loop.epochs": "docs/architecture.md tells readers to open it",
    "hookpoint.core.loop.machine": "docs/architecture.md tells readers to open it",
    "hookpoint.parallel.launch.launcher": "python -m runs it",
}
LOADERS = {"__import__", "import_module", "load", "resolve_name"}  # functions that import a module by its name
IMPORTS_LATE = "hookpoint.core.loop.loop"  # its import has a time budget: the rest is imported when a loop is created


@dataclass(frozen=True)
class Import:
    """One import: importer, imported module, and whether it is for type checkers only or inside a function.

    A call such as `import_module("hookpoint.core.run")` counts as an import.
    """

    importer: str
    imported: str
    line: int
    typing_only: bool
    in_function: bool

    @property
    def layer(self) -> str:
        """The layer that is imported: "core" of hookpoint.core.run; empty for other packages."""
        package, _, rest = self.imported.partition(".")
        return rest.partition(".")[0] if package == "hookpoint" else ""

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def modules(source: Path) -> dict[str, Path]:
    """Return every module of the package by its name."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = ["hookpoint", *path.relative_to(source).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def layer_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports_of(source: Path) -> list[Import]:
    known = modules(source)
    return [one for module, path in known.items() for one in _imports(module, path, known)]


def _imports(module: str, path: Path, known: dict[str, Path]) -> Iterator[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def walk(nodes: list[ast.stmt], typing_only: bool, in_function: bool) -> Iterator[Import]:
        for node in nodes:
            if isinstance(node, ast.Import):
                for name in node.names:
                    yield Import(module, name.name, node.lineno, typing_only, in_function)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [base])])
                for name in node.names:
                    inner = f"{base}.{name.name}"
                    yield Import(module, inner if inner in known else base, node.lineno, typing_only, in_function)
            else:
                checks_types = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
                function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                for field in ("body", "handlers", "finalbody", "cases"):
                    yield from walk(getattr(node, field, []), typing_only or checks_types, function)
                yield from walk(getattr(node, "orelse", []), typing_only, function)

    tree = ast.parse(path.read_text())
    yield from walk(tree.body, typing_only=False, in_function=False)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        for imported in _loaded_by(node):
            yield Import(module, imported, node.lineno, typing_only=False, in_function=id(node) in inside)


def _loaded_by(node: ast.AST) -> Iterator[str]:
    """Yield the hookpoint module or package that a call imports by name: "hookpoint.cli" for f"hookpoint.cli.{name}"."""
    if not isinstance(node, ast.Call):
        return
    called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
    if called not in LOADERS:
        return
    for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
        is_whole = not isinstance(argument, ast.JoinedStr)
        start = argument if is_whole else argument.values[0]
        if isinstance(start, ast.Constant) and isinstance(start.value, str) and start.value.startswith("hookpoint."):
            name = start.value if is_whole else start.value.rpartition(".")[0]
            if "." in name:
                yield name.partition(":")[0]


def folder_of(module: str, source: Path) -> str:
    """Return the folder of a module within its layer, such as "loop"; "." for a module directly in the layer."""
    parts = module.split(".")[2:]
    folder = source.joinpath(*module.split(".")[1:3])
    return parts[0] if len(parts) > 1 or (parts and folder.is_dir()) else "."


def upward(imports: list[Import], source: Path) -> list[str]:
    """Return the imports of a later folder of the same layer, including imports for type checkers."""
    order = {layer: {name: place for place, name in enumerate(names.split())} for layer, names in FOLDERS.items()}
    found = []
    for one in imports:
        layer = layer_of(one.importer)
        if layer == one.layer and layer in order:
            importer, imported = (order[layer][folder_of(name, source)] for name in (one.importer, one.imported))
            if imported > importer:
                found.append(str(one))
    return found


def unused(imports: list[Import]) -> list[str]:
    """Return the allowed imports that no module uses."""
    used = {(layer_of(one.importer), one.layer) for one in imports if one.imported.partition(".")[0] == "hookpoint"}
    pairs = [(layer, other) for layer, allowed in MAY_IMPORT.items() for other in allowed if other != layer]
    found = [f"{layer} imports {other or 'hookpoint'}" for layer, other in pairs if (layer, other) not in used]
    return found + [f"a layer imports {other}" for other in FOR_EVERYONE if other not in {layer for _, layer in used}]


def folders_in(layer: Path) -> set[str]:
    """Return the names of the folders with modules in a layer."""
    return {path.name for path in layer.iterdir() if path.is_dir() and any(path.rglob("*.py"))} if layer.is_dir() else set()


def private_by_use(imports: list[Import], source: Path) -> set[str]:
    """Return the modules without an underscore in their names that only their own folder imports.

    Modules in callbacks/ and monitors/ are left out: test_sizes.py compares them with the public names. The commands of the
    command line are left out, because it finds each command's module by the command's name.
    """
    exported = {f"hookpoint.{module}" for table in (HOOKPOINT, ADAPTERS, FOR_THE_CORE) for module in table.values()}
    from_outside = {one.imported for one in imports if not one.importer.startswith(f"{one.imported.rpartition('.')[0]}.")}
    commands = {f"hookpoint.cli.{name}" for name in COMMANDS}
    return {
        module
        for module, path in modules(source).items()
        if path.name != "__init__.py"
        and not any(part.startswith("_") for part in module.split("."))
        and layer_of(module) not in ("callbacks", "monitors")
    } - (exported | from_outside | commands)


def trespasses(imports: list[Import]) -> list[str]:
    """Return the imports of private modules, and of modules in private folders, from outside their folder."""
    found = []
    for one in imports:
        parts = one.imported.split(".")
        for place, part in enumerate(parts if parts[0] == "hookpoint" else ()):
            if part.startswith("_") and place > 1 and one.importer.split(".")[:place] != parts[:place]:
                found.append(str(one))
    return found


def largest_cycle(imports: list[Import]) -> set[str]:
    """Return the modules of the largest import cycle, including imports for type checkers."""
    graph: dict[str, set[str]] = {}
    for one in imports:
        if one.imported.startswith("hookpoint") and not one.in_function:
            graph.setdefault(one.importer, set()).add(one.imported)
    reached = {module: _reached(module, graph) for module in graph}
    cycles = [{other for other in reached[module] if module in reached.get(other, ())} for module in graph]
    return max(cycles, key=len, default=set())


def _reached(module: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [module]
    while left:
        new = graph.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def breaches(imports: list[Import]) -> list[str]:
    """Return the imports that the table does not allow."""
    found = []
    for one in imports:
        layer, package = layer_of(one.importer), one.imported.partition(".")[0]
        if package == "hookpoint":
            allowed = MAY_IMPORT[layer] | FOR_EVERYONE
            is_fine = one.layer in allowed
        else:
            is_fine = layer not in STANDARD_LIBRARY_ONLY or package in sys.stdlib_module_names
        if not is_fine:
            found.append(str(one))
    return found


def circle(imports: list[Import]) -> list[str]:
    """Return the modules of a cycle of imports at load time, or an empty list."""
    graph = TopologicalSorter()
    for one in imports:
        if not one.typing_only and not one.in_function and one.imported.startswith("hookpoint"):
            graph.add(one.importer, one.imported)
    try:
        graph.prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return imports_of(SOURCE)


def test_imports_in_the_source_are_found(imports):
    assert any(one.importer == "hookpoint.core.loop.loop" and one.imported == "hookpoint.core.run.run" for one in imports)
    assert {layer_of(module) for module in modules(SOURCE)} <= set(MAY_IMPORT)


def test_layers_import_only_allowed_layers(imports):
    assert breaches(imports) == []


def test_every_allowed_import_is_used(imports):
    assert unused(imports) == []


def test_every_folder_of_a_layer_has_a_place_in_the_order():
    assert {layer: set(names.split()) for layer, names in FOLDERS.items()} == {
        layer: {*folders, "."} for layer in LAYERS if (folders := folders_in(SOURCE / layer))
    }


def test_folders_of_a_layer_import_only_earlier_folders(imports):
    assert upward(imports, SOURCE) == []


def test_private_modules_are_imported_only_in_their_folder(imports):
    assert trespasses(imports) == []


def test_modules_used_only_in_their_folder_are_private(imports):
    assert private_by_use(imports, SOURCE) == set(OPENED_BY_NAME)


def test_there_are_no_cycles_including_type_checking_imports(imports):
    assert largest_cycle(imports) == set()


def test_there_are_no_cycles_at_load_time(imports):
    assert circle(imports) == []


def test_only_the_loop_module_of_the_core_imports_inside_functions(imports):
    late = [one for one in imports if layer_of(one.importer) == "core" and one.in_function]
    assert {one.importer for one in late} == {IMPORTS_LATE}


def test_the_core_loads_only_the_listed_names_from_higher_layers(imports):
    found = set()
    for path in (SOURCE / "core").rglob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        found |= {name.name for node in nodes if node.module == "hookpoint._exports" for name in node.names}
    assert found == {"FOR_THE_CORE", "load"}
    assert set(FOR_THE_CORE) == set(ASKED_FOR)


# Tests that the checks above can fail


@pytest.fixture
def tree(tmp_path):
    def write(**files: str) -> list[Import]:
        for name, text in {"__init__": "", "core/__init__": "", **files}.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return imports_of(tmp_path)

    return write


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/run", "import torch"),
        ("core/run", "from hookpoint.engine.step import Step"),
        ("core/run", "import hookpoint"),
        ("core/run", "from hookpoint import Callback"),
        ("core/run", "def f():\n    from rich import print"),
        ("core/run", "if TYPE_CHECKING:\n    from torch import Tensor"),
        ("core/run", "try:\n    import os\nexcept ImportError:\n    import numpy"),
        ("core/run", "from ..engine import step"),
        ("callbacks/saver", "from hookpoint.engine import step"),
        ("storage/write", "from hookpoint.callbacks.saver import Saver"),
        ("engine/step", "from hookpoint.callbacks.saver import Saver"),
        ("presets/loop", "import hookpoint"),
        ("core/run", 'def f():\n    import_module("hookpoint.engine.step").Step()'),
        ("core/run", 'importlib.import_module(name="hookpoint.engine.step")'),
        ("core/run", 'step = __import__("hookpoint.engine.step")'),
        ("core/run", 'def f(name):\n    return import_module(f"hookpoint.engine.{name}")'),
        ("core/run", 'adopt = lambda one: load("hookpoint.adapters", ADAPTERS, "adopt")(one)'),
    ],
)
def test_forbidden_imports_are_detected(tree, file, text):
    assert len(breaches(tree(**{file: text}))) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "core/run",
            "import os\nfrom collections import abc\nfrom hookpoint.core.loop import Loop\nfrom .loop import Loop",
        ),
        ("core/run", "from hookpoint._version import __version__"),
        ("callbacks/saver", "from hookpoint.storage.write import write\nimport torch"),
        ("presets", "from hookpoint.engine.step import Step\nfrom hookpoint.monitors import json"),
        ("cli/demo", 'import hookpoint\nimport_module(f"hookpoint.{name}")'),
        ("core/run", 'import_module("numpy")\nimport_module("hookpoint.core.log")\nfind("hookpoint.engine.step")'),
    ],
)
def test_allowed_imports_are_not_reported(tree, file, text):
    assert breaches(tree(**{file: text})) == []


def test_a_cycle_at_load_time_is_detected(tree):
    a, b = "from hookpoint.core import b", "from hookpoint.core.a import A"
    assert set(circle(tree(**{"core/a": a, "core/b": b}))) == {"hookpoint.core.a", "hookpoint.core.b"}
    assert circle(tree(**{"core/a": a, "core/b": f"if TYPE_CHECKING:\n    {b}"})) == []
    assert circle(tree(**{"core/a": a, "core/b": f"def f():\n    {b}"})) == []


def test_an_import_of_a_later_folder_is_detected(tree, tmp_path):
    upwards = "from hookpoint.core.loop.loop import Loop"
    files = {"core/loop/__init__": "", "core/loop/loop": "", "core/log/__init__": ""}
    assert len(upward(tree(**files, **{"core/log/metrics": upwards}), tmp_path)) == 1
    assert len(upward(tree(**{"core/log/metrics": f"if TYPE_CHECKING:\n    {upwards}"}), tmp_path)) == 1
    assert upward(tree(**{"core/log/metrics": "", "core/loop/loop": "from hookpoint.core.log import metrics"}), tmp_path) == []


@pytest.mark.parametrize(
    ("importer", "number"),
    [("core/log/metrics", 0), ("core/run/run", 1), ("core/errors", 1), ("storage/write", 1)],
)
def test_imports_of_a_private_module_from_outside_are_detected(tree, importer, number):
    files = {"core/log/__init__": "", "core/log/_queue": "", "core/run/__init__": ""}
    assert len(trespasses(tree(**files, **{importer: "from hookpoint.core.log._queue import Queue"}))) == number
    assert len(trespasses(tree(**files, **{importer: "from hookpoint.core.log import _queue"}))) == number


def test_the_largest_cycle_includes_type_checking_imports(tree):
    a, b = "from hookpoint.core import b", "if TYPE_CHECKING:\n    from hookpoint.core.a import A"
    assert largest_cycle(tree(**{"core/a": a, "core/b": b, "core/c": a})) == {"hookpoint.core.a", "hookpoint.core.b"}


def test_imports_by_name_record_whether_they_are_in_a_function(tree):
    text = 'import_module("hookpoint.core.a")\ndef f():\n    import_module("hookpoint.core.b")'
    assert [(one.imported, one.in_function) for one in tree(**{"core/run": text})] == [
        ("hookpoint.core.a", False),
        ("hookpoint.core.b", True),
    ]


def test_an_unused_allowed_import_is_reported(tree):
    found = unused(tree(**{"plots/curve": "from hookpoint.core import log", "cli/demo": "import hookpoint"}))
    assert "monitors imports core" in found
    assert "cli imports core" in found
    assert "a layer imports _version" in found
    assert not {"plots imports core", "cli imports hookpoint"} & set(found)


def test_new_folders_of_a_layer_are_found(tree, tmp_path):
    tree(**{"plots/lines/__init__": "", "plots/figure": "", "board/page/main": ""})
    assert folders_in(tmp_path / "plots") == {"lines"}
    assert folders_in(tmp_path / "board") == {"page"}
    assert folders_in(tmp_path / "cli") == set()


def test_a_module_used_only_in_its_folder_is_detected(tree, tmp_path):
    files = {"core/log/__init__": "", "core/log/queue": "", "core/log/mean": "from hookpoint.core.log.queue import Queue"}
    user = {"core/run/__init__": "", "core/run/_values": "from hookpoint.core.log.mean import Mean"}
    assert private_by_use(tree(**files, **user), tmp_path) == {"hookpoint.core.log.queue"}
    user = {"core/run/_values": "from hookpoint.core.log import mean, queue", "cli/runs": "", "cli/helper": ""}
    assert private_by_use(tree(**user), tmp_path) == {"hookpoint.cli.helper"}
