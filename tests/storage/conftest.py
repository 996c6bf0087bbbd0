"""Fixtures for the storage tests."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from contextlib import contextmanager

import pytest

from hookpoint.core.checkpoint.store import Request
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.disk._fs_calls import intercepted


@pytest.fixture(scope="session")
def same():
    """Compare two trees bit for bit, including types, order of keys, floats, tensors and arrays."""
    return _same


def _same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, complex):
        return _same([one.real, one.imag], [other.real, other.imag])
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(_same, one.items(), other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if hasattr(one, "untyped_storage"):
        if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
            return False
        return bytes(_bytes_of(one)) == bytes(_bytes_of(other))
    if hasattr(one, "tobytes"):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return one == other


def _bytes_of(tensor):
    import torch

    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return flat.view(torch.uint8).numpy()


@pytest.fixture
def opened(tmp_path):
    """Open a store of `tmp_path / "run"`, or of another workdir, and close it after the test."""
    stores = []

    def open_store(resume="auto", identity=None, workdir=tmp_path / "run"):
        store = CheckpointStore(workdir)
        stores.append(store)
        store.resumed = store.open(resume, identity or {})
        return store

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def write():
    """Write a state and return its Saved, or None if it is still being written."""

    def go(store, step, *, elapsed=0.0, in_background=False, state=None, **tags):
        given = {tag.replace("_", "-"): keep for tag, keep in tags.items()} or {"mine": None}
        state = {"clocks": {"step": step}} if state is None else state
        return store.write(state, step=step, elapsed=elapsed, request=Request(given, in_background))

    return go


@pytest.fixture
def names(tmp_path):
    """List the checkpoints folder, including hidden names; the list is empty without a folder."""

    def go(folder=tmp_path / "run" / "checkpoints"):
        return sorted(os.listdir(folder)) if folder.exists() else []

    return go


@pytest.fixture
def failing():
    """Make the n-th operation that `select` matches fail, or all from the n-th on; yield the list of all matches."""

    @contextmanager
    def go(at, error=errno.ENOSPC, select=lambda operation: operation.changes, lasting=False):
        seen = []

        def by(operation, proceed):
            if select(operation):
                seen.append((operation.name, operation.path))
                if len(seen) == at or (lasting and len(seen) > at):
                    raise OSError(error, os.strerror(error), operation.path)
            return proceed()

        with intercepted(by):
            yield seen

    return go


@pytest.fixture
def flip():
    """Change bits of one byte of a file; a negative position counts from the end."""

    def go(path, at, bits=0xFF):
        data = bytearray(path.read_bytes())
        data[at] ^= bits
        path.write_bytes(data)

    return go


@pytest.fixture(scope="session")
def python():
    """Run a program in a separate Python, with warnings as errors; return its output lines. `silent`: fail on stderr output."""

    def run(program, *arguments, silent=False):
        command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not (silent and done.stderr), done.stderr
        return done.stdout.splitlines()

    return run
