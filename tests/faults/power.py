"""Power: the possible contents of a disk after a loss of power, derived from the operations up to that point.

The model assumes only what POSIX guarantees, which is less than any real file system provides:

- Data written to a file is safe once that file was fsynced. Before that, any of it may be missing: all of it, the end of it,
  or holes that read as zeros.
- A name in a folder (made by mkdir, create, link, symlink or rename, removed by unlink, rmdir or rename) is safe once that
  folder was fsynced. Before that, each change of a name may have reached the disk or not, independently of earlier and later
  changes. An fsync of a file does not make its name safe, and an fsync of a folder does not make the folder's own name safe.
- Renaming inside a folder is one change: afterwards either the old or the new name exists. Renaming from one folder to
  another is two changes, each safe with its own folder; afterwards both names may exist, but never neither, because no file
  system does that and no program could cope with it.
- A folder whose name is lost is lost with all its contents.

`Disk` follows the operations and tracks what is safe and what is not; `after_power_loss` creates one of the many folders that
a crash at this time may leave.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hookpoint.storage.disk._fs_calls import Operation, intercepted

HOW = ("all is lost", "names are kept", "data is kept", "all is kept", "any of it")  # what happens to unsafe changes


@dataclass(frozen=True)
class Done:
    """A completed operation, with the bytes that it wrote."""

    name: str
    path: str
    target: str | None
    data: bytes


@contextmanager
def recorded() -> Iterator[list[Done]]:
    """Record each completed change to the disk inside the block."""
    done: list[Done] = []

    def take_down(operation: Operation, proceed: Callable[[], Any]) -> Any:
        data = bytes(operation.data) if operation.data is not None else b""
        returned = proceed()
        if operation.changes:
            data = data[:returned] if operation.name == "write" else data
            done.append(Done(operation.name, operation.path, operation.target, data))
        return returned

    with intercepted(take_down):
        yield done


@dataclass(eq=False)
class File:
    """A file: its safe bytes, and the bytes written since."""

    safe: bytes = b""
    since: bytes = b""

    def after_power_loss(self, chance: random.Random, keeps: bool | None) -> bytes:
        if keeps is not None:
            return self.safe + (self.since if keeps else b"")
        length = chance.choice((0, chance.randint(0, len(self.since)), len(self.since)))
        left = bytearray(self.since[:length])
        if left and chance.random() < 0.5:
            begin = chance.randrange(len(left))
            end = chance.randint(begin, len(left))
            left[begin:end] = bytes(end - begin)
        return self.safe + bytes(left)


@dataclass(eq=False)
class Link:
    """A symbolic link."""

    target: str


@dataclass(eq=False)
class Change:
    """An atomic change to the names in a folder; None removes a name. It never reaches the disk before `first`."""

    folder: Folder
    names: dict[str, Node | None]
    first: Change | None = None

    def make_safe(self) -> None:
        if self.first is not None:
            self.first.make_safe()
        if self in self.folder.since:
            self.folder.since.remove(self)
            _apply(self.folder.safe, self.names)

    def is_left(self, chance: random.Random, keeps: bool | None, known: dict[Change, bool]) -> bool:
        """Return whether it is on disk; the answer is the same within one loss of power."""
        if self not in known:
            if keeps is not None or self not in self.folder.since:
                known[self] = keeps is not False or self not in self.folder.since
            else:
                known[self] = chance.random() < 0.5 and (self.first is None or self.first.is_left(chance, keeps, known))
        return known[self]


@dataclass(eq=False)
class Folder:
    """A folder: its safe names, the changes since, and its current names."""

    safe: dict[str, Node] = field(default_factory=dict)
    since: list[Change] = field(default_factory=list)
    now: dict[str, Node] = field(default_factory=dict)

    def change(self, names: dict[str, Node | None], first: Change | None = None) -> Change:
        change = Change(self, names, first)
        self.since.append(change)
        _apply(self.now, names)
        return change

    def sync(self) -> None:
        for change in list(self.since):
            change.make_safe()

    def after_power_loss(self, chance: random.Random, keeps: bool | None, known: dict[Change, bool]) -> dict[str, Node]:
        left = dict(self.safe)
        for change in self.since:
            if change.is_left(chance, keeps, known):
                _apply(left, change.names)
        return left


Node = File | Folder | Link


class Disk:
    """The contents of `root`. They start as the contents of the folder `safe`, all of them safe."""

    def __init__(self, root: Path, safe: Path | None = None) -> None:
        self._root = root
        self._top = Folder() if safe is None else _read(safe)

    def do(self, done: Iterable[Done]) -> None:
        """Apply operations in order."""
        for one in done:
            if one.name == "fsync":
                node = self._at(one.path)
                if isinstance(node, Folder):
                    node.sync()
                else:
                    assert isinstance(node, File)
                    node.safe, node.since = node.safe + node.since, b""
            elif one.name == "write":
                node = self._at(one.path)
                assert isinstance(node, File)
                node.since += one.data
            elif one.name in ("rename", "replace"):
                self._rename(one.path, str(one.target))
            else:
                folder, name = self._place(str(one.target) if one.name == "link" else one.path)
                made: dict[str, Callable[[], Node]] = {
                    "mkdir": Folder,
                    "create": File,
                    "link": lambda one=one: self._at(one.path),
                    "symlink": lambda one=one: Link(str(one.target)),
                }
                folder.change({name: made[one.name]() if one.name in made else None})

    def after_power_loss(self, target: Path, chance: random.Random, how: str) -> None:
        """Write what is left to the folder `target`, in one of the ways of HOW."""
        names = {"all is lost": False, "data is kept": False, "names are kept": True, "all is kept": True}.get(how)
        data = {"all is lost": False, "data is kept": True, "names are kept": False, "all is kept": True}.get(how)
        written: dict[File, Path] = {}
        known: dict[Change, bool] = {}

        def write(node: Node, path: Path) -> None:
            if isinstance(node, Folder):
                path.mkdir()
                for name, inner in node.after_power_loss(chance, names, known).items():
                    write(inner, path / name)
            elif isinstance(node, Link):
                path.symlink_to(node.target)
            elif node in written:
                os.link(written[node], path)
            else:
                path.write_bytes(node.after_power_loss(chance, data))
                written[node] = path

        write(self._top, target)

    def _rename(self, source: str, target: str) -> None:
        (old, old_name), (new, new_name) = self._place(source), self._place(target)
        node = old.now[old_name]
        if old is new:
            old.change({old_name: None, new_name: node})
        else:
            old.change({old_name: None}, first=new.change({new_name: node}))

    def _place(self, path: str) -> tuple[Folder, str]:
        *folders, name = PurePosixPath(path).relative_to(self._root).parts
        node: Node = self._top
        for one in folders:
            assert isinstance(node, Folder)
            node = node.now[one]
        assert isinstance(node, Folder)
        return node, name

    def _at(self, path: str) -> Node:
        if Path(path) == self._root:
            return self._top
        folder, name = self._place(path)
        return folder.now[name]


def _apply(names: dict[str, Node], changes: dict[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _read(path: Path) -> Folder:
    """Return the contents of a folder on the real disk; all of them count as safe."""
    files: dict[int, File] = {}

    def read(path: Path) -> Node:
        if path.is_symlink():
            return Link(os.readlink(path))
        if path.is_dir():
            safe = {one.name: read(one) for one in path.iterdir()}
            return Folder(safe, [], dict(safe))
        return files.setdefault(path.stat().st_ino, File(path.read_bytes()))

    top = read(path)
    assert isinstance(top, Folder)
    return top
