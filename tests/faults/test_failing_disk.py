"""When any disk operation fails, once or permanently, no saved checkpoint is lost and the failure is reported.

The run is small and in this process, so that each of its operations can fail in turn.
"""

from __future__ import annotations

import errno
import os
import random
import shutil

import pytest
import torch
from scale import chosen, times

from hookpoint import Every, Loop
from hookpoint import callbacks as cb
from hookpoint.core.errors import CannotResume, CannotSave
from hookpoint.storage.disk._fs_calls import CHANGES, intercepted
from hookpoint.storage.json_rows import read_scalars
from hookpoint.storage.verify import verify
from hookpoint.storage.workdir.find_checkpoint import newest_good

FAILING = {  # the operations that can fail with each error
    "ENOSPC": CHANGES - {"unlink", "rmdir"},
    "EIO": CHANGES | {"open", "read", "list", "stat"},
    "EACCES": CHANGES - {"write", "fsync"} | {"open", "list", "stat"},
}
EPOCHS, BATCHES = 2, 3
CHUNKS = 8


class Fails:
    """Fail the n-th operation that can raise the error, and with `for_good` all later ones; n=0 only counts."""

    def __init__(self, name, number, for_good):
        self.number, self.for_good, self.count = number, for_good, 0
        self.hit = None
        self._errno, self._names = getattr(errno, name), FAILING[name]

    def __call__(self, operation, proceed):
        if operation.name in self._names:
            self.count += 1
            if self.number and (self.count == self.number or (self.for_good and self.count > self.number)):
                self.hit = self.hit or operation
                raise OSError(self._errno, os.strerror(self._errno), operation.path)
        return proceed()


class Shuffled:
    def __len__(self):
        return BATCHES

    def __iter__(self):
        for number in random.sample(range(BATCHES), BATCHES):
            yield torch.full((2,), number + random.random())


def train(workdir, in_background):
    """Train and return all results."""
    random.seed(3)
    model = torch.nn.Linear(2, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    saver = cb.ModelSaver(2, None, async_save=in_background).when(Every(steps=1))
    callbacks = [saver, cb.MinSaver("loss")]
    loop = Loop(callbacks, extra_callbacks=[], monitors=[cb.JSONWriter()], model=model, workdir=workdir, log_every=3)
    with loop as run:
        for _ in run.epochs(EPOCHS):
            for batch in run.batches(Shuffled()):
                with torch.no_grad():
                    model.weight.mul_(0.8).add_(batch * random.random())
                run.log(loss=model.weight.sum())
    return model.weight.tolist(), random.random(), untimed(read_scalars(workdir / "scalars.jsonl"))


def untimed(rows):
    return [{name: value for name, value in row.items() if name != "time"} for row in rows]


def is_harmless(operation):
    """Return whether no report is needed: the link `last`, and manifests read only to decide what to delete."""
    is_link = operation.path.endswith("/last") or "/.staging-last-" in operation.path
    return is_link or (operation.name in ("open", "read") and operation.path.endswith("/manifest.json"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", in_background=False)


def number_of_operations(name, in_background, place):
    counts = Fails(name, 0, False)
    with intercepted(counts):
        train(place / "counted", in_background)
    shutil.rmtree(place / "counted")
    return counts.count


@pytest.mark.thin(4)
@pytest.mark.parametrize("chunk", range(times(full=CHUNKS, sample=1)))
@pytest.mark.parametrize("in_background", [False, True], ids=["waits", "background"])
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("name", FAILING)
def test_a_failed_disk_operation_costs_at_most_one_checkpoint(
    name, for_good, in_background, chunk, expected, place, events, tally, caplog
):
    numbers = chosen(range(1, number_of_operations(name, in_background, place) + 1), 6)
    went_on = stopped = 0
    for number in numbers[chunk :: times(full=CHUNKS, sample=1)]:
        workdir = place / f"{number}"
        fails, problem = Fails(name, number, for_good), None
        caplog.clear()
        try:
            with intercepted(fails):
                came_out = train(workdir, in_background)
        except (CannotSave, CannotResume) as error:
            problem = str(error)
        if problem is not None:
            stopped += 1
            assert len(problem.splitlines()) > 1, "it says what to do"
            saved = [event["tags"] for event in events(workdir, "save")]
            assert ["end"] not in saved, "nothing is wrong where the last checkpoint is there"
        else:
            went_on += 1
            assert came_out == expected
            assert is_harmless(fails.hit) or caplog.records, f"{fails.hit} failed, and nobody was told"
            if ".staging-step-" in fails.hit.path:
                assert events(workdir, "save_failed")
            assert newest_good(workdir).state["clocks"]["step"] == EPOCHS * BATCHES
        assert fails.hit is not None
        if workdir.exists() and (workdir / "checkpoints").exists():
            assert [row for row in verify(workdir).rows if not row.ok] == []
        assert train(workdir, in_background) == expected, f"{fails.hit} failed"
        shutil.rmtree(workdir)
    tally(f"{name} {'for good' if for_good else 'once'}", faults=went_on + stopped, went_on=went_on, stopped=stopped, lost=0)
