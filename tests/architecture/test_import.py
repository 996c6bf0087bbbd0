"""Importing hookpoint loads no other package and has no side effects; each test uses a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import json, os, sys

def state():
    import logging, random, signal
    loggers = {name: one for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    return {
        "environ": dict(os.environ),
        "handlers": [repr(one) for one in logging.root.handlers],
        "level": logging.root.level,
        "touched": [n for n, one in loggers.items() if one.handlers or one.level or not one.propagate or one.filters],
        "signals": {number.name: repr(signal.getsignal(number)) for number in signal.Signals},
        "random": hash(random.getstate()),
        "path": sys.path,
        "hooks": [repr(hook) for hook in (sys.excepthook, sys.displayhook, sys.unraisablehook)],
    }

WITH_TORCH = {"DataParallel", "HookedLoader", "PipelineParallel", "Runner", "SeededSamples", "Sharded"}  # for those who have it
WITH_TORCH |= {"AsyncSGD", "ParameterAveraging", "TensorParallel"}
WATCHED
before = set(sys.modules)
import hookpoint
after_import = sorted(set(sys.modules) - before)
for name in set(hookpoint.__all__) - WITH_TORCH:
    getattr(hookpoint, name)
after_use = sorted(set(sys.modules) - before)
json.dump({"after_import": after_import, "after_use": after_use, "changed": CHANGED}, sys.stdout)
"""
BARE = PROBE.replace("WATCHED", "").replace("CHANGED", "None")
WATCHING = PROBE.replace("WATCHED", "first = state()").replace(
    "CHANGED", "[key for key, value in state().items() if value != first[key]]"
)


def probe(program: str) -> dict[str, list[str]]:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def without_torch(program: str) -> str:
    """Return the output of a program that cannot find torch."""
    hidden = "import sys\nfrom importlib.machinery import PathFinder as Finder\nfind = Finder.find_spec\n"
    hidden += "Finder.find_spec = lambda name, *where: None if name.partition('.')[0] == 'torch' else find(name, *where)\n"
    program = f"{hidden}import hookpoint\n{program}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def third_party(modules: list[str]) -> list[str]:
    return [name for name in modules if name.partition(".")[0] not in {*sys.stdlib_module_names, "hookpoint"}]


def test_import_loads_neither_third_party_modules_nor_the_core():
    loaded = probe(BARE)["after_import"]
    assert third_party(loaded) == []
    assert [name for name in loaded if name.startswith("hookpoint")] == [
        "hookpoint",
        "hookpoint._exports",
        "hookpoint._gc_pause",
        "hookpoint._version",
    ]


def test_using_every_name_without_torch_loads_no_third_party_module():
    loaded = probe(BARE)["after_use"]
    assert third_party(loaded) == []
    assert "hookpoint.core.loop.loop" in loaded


def test_runner_without_torch_says_what_to_install():
    runner = "try:\n    hookpoint.Runner\nexcept ImportError as error:\n    print(error)"
    assert without_torch(runner) == "hookpoint.Runner needs PyTorch: pip install 'hookpoint[torch]'\n"


def test_a_star_import_works_without_torch():
    star = "from hookpoint import *\nfrom hookpoint.callbacks import *\nprint(Loop.__name__, EarlyStopping.__name__)\n"
    left = "print(*sorted(set(dir(hookpoint)) - set(hookpoint.__all__)))"
    assert without_torch(star + left).splitlines() == [
        "Loop EarlyStopping",
        "AsyncSGD DataParallel HookedLoader ParameterAveraging PipelineParallel Runner SeededSamples Sharded TensorParallel",
    ]


def test_loop_and_its_defaults_work_without_torch(tmp_path):
    loop = f"""
with hookpoint.Loop(workdir={str(tmp_path)!r}) as run:
    for epoch in run.epochs(2):
        for batch in run.batches([1.0, 3.0]):
            run.log(loss=batch / epoch)
print(run.metrics["loss"])"""
    assert without_torch(loop) == "1.0\n"
    assert {path.name for path in tmp_path.iterdir()} == {".control", ".lock", "run.json", "scalars.jsonl"}


def test_import_and_use_have_no_side_effects():
    assert probe(WATCHING)["changed"] == []


def test_side_effects_are_detected():
    change = "import logging, os, random\nos.environ['X'] = '1'; logging.basicConfig(); random.random()"
    changed = probe(WATCHING.replace("import hookpoint\n", f"import hookpoint\n{change}\n"))["changed"]
    assert changed == ["environ", "handlers", "random"]


# These tests limit the modules that an import loads; benchmarks/start.py measures its time.
LATER = ("asyncio", "dataclasses", "inspect", "json", "logging", "pathlib", "socket", "subprocess")


def loaded_by(program: str) -> set[str]:
    """Return the modules that a program loads after its first line."""
    first, _, rest = program.partition("\n")
    source = f"import sys\n{first}\nbefore = set(sys.modules)\n{rest}\nprint(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_loop_loads_no_modules_that_only_a_run_needs():
    loaded = loaded_by("\nfrom hookpoint import Loop")
    assert loaded.isdisjoint(LATER)
    assert {name for name in loaded if name.startswith("hookpoint.")} <= {
        "hookpoint._exports",
        "hookpoint._gc_pause",
        "hookpoint._version",
        "hookpoint.core",
        "hookpoint.core.errors",
        "hookpoint.core.loop",
        "hookpoint.core.loop.loop",
        "hookpoint.core.team",
        "hookpoint.core.team.team",
        "hookpoint.presets",
        "hookpoint.presets.loop",
    }


def test_a_loop_without_a_workdir_loads_no_modules_for_a_workdir():
    loaded = loaded_by("from hookpoint import Loop\nwith Loop():\n    pass\nprint()")
    assert "hookpoint.core.loop.machine" in loaded
    assert loaded.isdisjoint(("asyncio", "rich", "socket", "subprocess", "hookpoint.steering.steering"))


def test_importing_runner_loads_no_modules_that_only_a_run_needs():
    pytest.importorskip("torch")
    loaded = loaded_by("import torch\nfrom hookpoint import Runner")
    assert "hookpoint.engine.runner" in loaded
    assert [name for name in loaded if name.partition(".")[0] in ("torch", "rich", "tensorboard", "asyncio")] == []
    assert [name for name in loaded if name.startswith(("hookpoint.steering.", "hookpoint.storage."))] == [
        "hookpoint.steering.steering_option"
    ]


def test_an_import_keeps_the_state_of_the_garbage_collector():
    program = "import gc\n{}import hookpoint\nhookpoint.Callback\nprint(gc.isenabled())"
    for change, expected in (("", "True\n"), ("gc.disable()\n", "False\n")):
        source = program.format(change)
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
        assert done.stdout == expected
