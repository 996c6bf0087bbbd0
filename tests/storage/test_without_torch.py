from __future__ import annotations

import pytest

HIDDEN = """
import sys
from importlib.machinery import PathFinder as Finder
find = Finder.find_spec
Finder.find_spec = lambda name, *where: None if name.partition(".")[0] in {names!r} else find(name, *where)
"""


@pytest.fixture
def without(python):
    """Run a program without these packages, and return what it prints."""

    def go(names, program):
        return python(HIDDEN.format(names=set(names)) + program)

    return go


SAVE = """
import os, random, sys
from hookpoint.core.checkpoint.store import Request
from hookpoint.storage.checkpoint_store import CheckpointStore

state = {{"clocks": {{"step": 1}}, "parts": {{"mine": {{0: (0.1, float("inf"), b"", None)}}}}, "rng": random.getstate()}}
store = CheckpointStore({workdir!r})
assert store.open("auto", {{}}) is None
store.check(state)
store.write(state, step=1, elapsed=0.0, request=Request({{"mine": None}}, in_background={in_background}))
store.collect(wait=True)
store.close()
print(store.open("must", {{}}).state == state)
store.close()
print(sorted(os.listdir(os.path.join({workdir!r}, "checkpoints", "step-00000001"))))
print([name for name in ("numpy", "safetensors", "torch") if name in sys.modules])
"""


@pytest.mark.parametrize("in_background", [False, True], ids=["at-once", "background"])
def test_a_plain_state_is_saved_without_any_other_package(in_background, without, tmp_path):
    program = SAVE.format(workdir=str(tmp_path), in_background=in_background)
    assert without(["torch", "numpy", "safetensors"], program) == ["True", "['manifest.json', 'state.json']", "[]"]


def test_arrays_are_saved_without_torch(without, tmp_path):
    program = f"""
import numpy
from hookpoint.storage.checkpoint_store import CheckpointStore

store = CheckpointStore({str(tmp_path)!r})
store.open("auto", {{}})
store.save({{"w": numpy.arange(6.0).reshape(2, 3), "n": numpy.float32(0.5)}}, step=1, tags=["mine"])
store.close()
found = store.open("must", {{}}).state
print(found["w"].tolist(), found["w"].dtype, found["n"])
store.close()"""
    assert without(["torch"], program) == ["[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] float64 0.5"]


def test_weights_are_saved_by_torch_without_safetensors(without, tmp_path):
    program = f"""
import os, torch
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.load_weights import load_weights

store = CheckpointStore({str(tmp_path)!r})
store.open("auto", {{}})
path = store.save({{"parts": {{"model": torch.nn.Linear(1, 1).state_dict()}}}}, step=1, tags=["mine"])
store.close()
print(sorted(os.listdir(path)), sorted(load_weights(path)))"""
    assert without(["safetensors"], program) == ["['manifest.json', 'state.pt'] ['bias', 'weight']"]


@pytest.mark.parametrize("resume", ["auto", "must", "path"])
def test_a_checkpoint_with_tensors_raises_without_torch_and_is_kept(resume, without, opened, write, tmp_path, names):
    import torch

    store = opened()
    path = write(store, 1, state={"a": torch.ones(1)}).path
    store.close()
    program = f"""
from hookpoint.core.errors import CannotResume
from hookpoint.storage.checkpoint_store import CheckpointStore
try:
    CheckpointStore({str(tmp_path / "run")!r}).open({str(path) if resume == "path" else resume!r}, {{}})
except CannotResume as error:
    print(error)"""
    assert without(["torch"], program) == [
        f"{path} contains tensors, but torch is not installed.",
        "  install   pip install 'hookpoint[torch]'",
    ]
    assert names() == ["last", "step-00000001"]


BEFORE_AND_AFTER = """
import os, random, sys
from hookpoint import Loop, callbacks as cb

def train(seed, stops_at=None, **options):
    seen = []
    random.seed(seed)
    with Loop(extra_callbacks=[], monitors=[], **options) as run:
        for epoch in run.epochs(2):
            for batch in run.batches(random.sample(range(5), 5)):
                seen.append((epoch, batch, random.random()))
                if len(seen) == stops_at:
                    run.stop()
    return seen

def saved(stops_at):
    return {"callbacks": [cb.ModelSaver()], "workdir": os.path.join(sys.argv[1], str(stops_at))}

begun = {stops_at: train(3, stops_at, **saved(stops_at)) for stops_at in (2, 5)}
import torch
whole = train(3)
for stops_at, seen in begun.items():
    print(stops_at, seen + train(4, **saved(stops_at)) == whole, len(whole))
"""


@pytest.fixture(scope="module")
def before_and_after(python, tmp_path_factory):
    """Stop two runs, import torch, and resume them in the same process; return what it printed."""
    return python(BEFORE_AND_AFTER, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("stops_at", [2, 5], ids=["in-an-epoch", "between-epochs"])
def test_a_run_saved_before_torch_was_imported_resumes_with_torch(stops_at, before_and_after):
    assert f"{stops_at} True 10" in before_and_after
