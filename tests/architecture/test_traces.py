"""A real run enters every file that docs/architecture.md lists for a training step, a save and a resume."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import hookpoint
from hookpoint import Runner
from hookpoint import callbacks as cb

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
SOURCE = Path(hookpoint.__file__).parent
# The files of each section that only a run on several ranks enters.
SEVERAL_RANKS = {
    "A training step": {"core/loop/_agreement.py"},
    "A save": {"core/checkpoint/rank_state.py", "parallel/checkpoint/team_store.py", "storage/checkpoint/shard_files.py"},
    "A resume": {"parallel/checkpoint/team_store.py"},
}


def files_of(page: str, title: str) -> list[str]:
    """Return the files that a section of the page names."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/architecture.md has no section '{title}'"
    return sorted(set(re.findall(r"`([\w/]+\.py)`", found[1])))


@contextmanager
def entered(source: Path) -> Iterator[set[str]]:
    """Collect the files below a folder in which a function is called, on any thread. An import alone does not count."""
    seen, found = set(), set()

    def look(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED:  # modules and class bodies lack this flag
            seen.add(code.co_filename)

    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
        found |= {Path(name).relative_to(source).as_posix() for name in seen if Path(name).is_relative_to(source)}


def fit(workdir: Path | None, *, epochs: int, stop: int | None = None) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    inputs = torch.arange(8.0).view(8, 1) / 8
    data = torch.utils.data.TensorDataset(inputs, 2 * inputs - 1)
    train = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    val = torch.utils.data.DataLoader(data, batch_size=4)
    savers = [] if workdir is None else [cb.ModelSaver(max_to_keep=1), cb.MinSaver("val_loss"), cb.EarlyStopping("val_loss")]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Runner(model, optimizer, torch.nn.MSELoss(), callbacks=savers, workdir=workdir, log_every=2).fit(
        train, val, epochs=epochs, max_steps=stop
    )


def step(folder: Path) -> None:
    fit(None, epochs=2, stop=6)  # the stop is a request


def save(folder: Path) -> None:
    fit(folder / "run", epochs=2)


def prepare_resume(folder: Path) -> None:
    fit(folder / "run", epochs=2, stop=6)  # in the middle of the second epoch
    (folder / "run" / "checkpoints" / "notes.txt").write_text("not hookpoint's: the resume moves it to previous/")


def resume(folder: Path) -> None:
    fit(folder / "run", epochs=3)


TRACES: dict[str, tuple[Callable[[Path], None] | None, Callable[[Path], None]]] = {
    "A training step": (None, step),
    "A save": (None, save),
    "A resume": (prepare_resume, resume),
}


@pytest.mark.filterwarnings("ignore::hookpoint.HookpointWarning")
@pytest.mark.parametrize("title", TRACES)
def test_a_run_enters_every_file_of_a_section(title, tmp_path):
    prepare, train = TRACES[title]
    if prepare is not None:
        prepare(tmp_path)
    with entered(SOURCE) as found:
        train(tmp_path)
    listed = files_of(PAGE.read_text(), title)
    assert len(listed) > 5
    assert [name for name in listed if name not in found] == [name for name in listed if name in SEVERAL_RANKS[title]]


# Tests that the check above can fail


def test_an_imported_file_without_a_call_is_not_entered(tmp_path, monkeypatch):
    for name in ("called", "imported", "in_thread"):
        (tmp_path / f"{name}_here.py").write_text("class Text:\n    kind = str\n\ndef call():\n    return Text.kind(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with entered(tmp_path) as found:
        import called_here
        import imported_here  # noqa: F401
        import in_thread_here

        called_here.call()
        thread = threading.Thread(target=in_thread_here.call)
        thread.start()
        thread.join()
    assert found == {"called_here.py", "in_thread_here.py"}
    assert sys.getprofile() is None


def test_files_of_returns_the_files_of_one_section():
    page = "## A save\n\n1. `a/b.py`, `c.py`: save.\n\nThen `d.py` runs.\n\n## A resume\n\n1. `e.py`\n"
    assert files_of(page, "A save") == ["a/b.py", "c.py", "d.py"]
    assert files_of(page, "A resume") == ["e.py"]
    with pytest.raises(AssertionError, match="no section 'A step'"):
        files_of(page, "A step")
