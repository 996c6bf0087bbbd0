"""Fixtures shared by the tests of the core."""

from __future__ import annotations

import pickle

import pytest

from hookpoint import Callback
from hookpoint.core.checkpoint.store import Checkpoint, Saved
from hookpoint.core.loop.loop import Loop


@pytest.fixture
def train():
    """Run a small loop over these callbacks and return its run; `body` is what each training iteration does."""

    def go(callbacks, *, epochs=1, batches=(1,), val=None, body=lambda run: None, **given):
        with Loop(callbacks, **given) as run:
            for _ in run.epochs(epochs):
                for _ in run.batches(batches):
                    body(run)
                if val is not None:
                    for _ in run.batches(val, mode="val"):
                        pass
        return run

    return go


@pytest.fixture
def time(monkeypatch):
    """A clock that advances only by hand: time[0] += 5."""
    now = [100.0]
    monkeypatch.setattr("hookpoint.core.schedule.clocks.perf_counter", lambda: now[0])
    return now


class Monitor(Callback):
    """Keep the records that arrive, and read their values on arrival, in the monitor's thread."""

    def __init__(self):
        self.records = []

    def on_records(self, records):
        for record in records:
            if record.kind == "scalars":
                record.scalars()
        self.records += records

    def scalars(self, at=None):
        """Return the step and the values of each record of scalars, or only of those `at` a moment."""
        found = [record for record in self.records if record.kind == "scalars"]
        return [(record.step, record.scalars()) for record in found if at in (None, record.at)]

    def events(self, name):
        """Return the value of each event with this name."""
        return [record.values[name] for record in self.records if record.kind == "event" and name in record.values]


@pytest.fixture
def new_monitor():
    """Make a monitor that keeps its records."""
    return Monitor


@pytest.fixture
def monitor():
    """A monitor that keeps its records."""
    return Monitor()


class Disk:
    """A store that outlives a process: checkpoints and rows of a monitor. `fails` lists the errors of the next writes."""

    def __init__(self):
        self.checkpoints, self.rows, self.fails = [], [], []

    @property
    def state(self):
        """The newest state."""
        return pickle.loads(self.checkpoints[-1][0])

    def change(self, change):
        """Apply a function to the newest state."""
        state, (_, *rest) = self.state, self.checkpoints[-1]
        change(state)
        self.checkpoints[-1] = (pickle.dumps(state), *rest)

    def open(self, resume, identity):
        return Checkpoint("disk", self.state) if self.checkpoints else None

    def check(self, state):
        pass

    def write(self, state, *, step, elapsed, request):
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        self.checkpoints.append((pickle.dumps(state), step, list(request.tags)))
        return Saved(f"disk/{len(self.checkpoints)}", step, list(request.tags))

    def save(self, state, *, step, tags):
        raise AssertionError("a store that can do more is asked for more")

    def collect(self, *, wait=False):
        return []

    def close(self):
        pass


@pytest.fixture
def new_disk():
    """Make a store in memory."""
    return Disk


@pytest.fixture
def disk():
    """A store in memory."""
    return Disk()
