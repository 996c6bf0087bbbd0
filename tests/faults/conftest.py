"""Fixtures of the fault tests: child processes, folders, the run without faults, and a tally of the faults."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
MEMORY = Path("/dev/shm")

from children import Children  # noqa: E402
from subject import Variant  # noqa: E402
from trial import Trial, whole_run  # noqa: E402


@pytest.fixture(scope="session")
def children(tmp_path_factory, warm_python):
    with Children(tmp_path_factory.mktemp("children"), warm_python) as started:
        yield started


@contextmanager
def folder_in_memory(otherwise):
    """A folder in memory if possible: only processes are killed, so the system keeps what they wrote."""
    with_memory = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    folder = Path(tempfile.mkdtemp(prefix="hookpoint-faults-", dir=MEMORY if with_memory else otherwise))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def place(tmp_path):
    with folder_in_memory(tmp_path) as folder:
        yield folder


@pytest.fixture(scope="session")
def whole(children, tmp_path_factory):
    """Return the uninterrupted run of a variant; it is computed once and shared by all pytest-xdist workers."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def of(variant):
        kept = shared / f"whole-{variant}.pickle"
        if not kept.exists():
            with folder_in_memory(own) as folder:
                done = pickle.dumps(whole_run(children, variant, folder))
            (own / kept.name).write_bytes(done)
            os.replace(own / kept.name, kept)
        return pickle.loads(kept.read_bytes())

    return of


@pytest.fixture
def trial(children, whole, place):
    """Return a factory for runs to interrupt."""

    def make(variant=Variant(), number=1):  # noqa: B008 - it is frozen
        folder = place / f"trial-{number}"
        folder.mkdir()
        return Trial(children, whole(variant), variant, folder)

    return make


@pytest.fixture
def tally(request):
    """Count faults under a heading; the sums are printed after all tests."""

    def count(heading, **counts):
        request.node.user_properties.append(("faults", [heading, {name: int(number) for name, number in counts.items()}]))

    return count


@pytest.fixture
def goes_on(tally):
    """Resume a run after its last process, check that it ends like the uninterrupted run, and count it."""

    def check(run, child, heading, **counts):
        assert run.is_sound, child.log
        last = run.start()
        is_lost = last.wait() != 0
        differences = ["lost"] if is_lost else run.differences(last)
        tally(heading, **counts, runs=1, lost=is_lost, bitwise_equal=not differences)
        assert not differences, child.log + last.log

    return check


@pytest.fixture(scope="session")
def events():
    """Return a function that reads the events with a given name from a run."""

    def read(workdir, name):
        path = workdir / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    return read
