"""Shard files: write and read sharded tensors with torch.distributed.checkpoint.

Each rank writes its shards to its own file, such as `__0_0.distcp`, and the chief writes the index to `.metadata`. Each rank
reads only the shards that it needs, no matter how many ranks wrote them. Every file is verified right before it is read.
`.metadata` is a pickle file. It is read with a restricted unpickler, which accepts only descriptions of tensors and cannot run
other code.
"""

from __future__ import annotations

import errno
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from hookpoint.core.errors import CannotSave, HookpointError
from hookpoint.storage.checkpoint.checkpoint_folder import read_manifest, verify_file
from hookpoint.storage.checkpoint.encryption import Key, encrypted, plain_source
from hookpoint.storage.checkpoint.layout import SHARDS
from hookpoint.storage.checkpoint.manifest import File
from hookpoint.storage.disk import disk
from hookpoint.storage.disk.hashing_writer import NewFile

ALLOWED_IN_METADATA = {
    "torch.distributed.checkpoint.metadata": (
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
}

# A function that takes a tensor's name and shape, and returns a tensor with the requested sharding.
Like = Callable[[str, torch.Size], torch.Tensor | None]


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor], group: Any, key: Key | None = None) -> dict[str, File]:
    """Write this rank's shards, sync them to disk, verify them, and return this rank's files. With a key, files are encrypted.

    All ranks in the group must call this function with the same names. An error on one rank is raised on all ranks.
    """
    files = _HashingFileSystem(key)
    writer = _Writer(folder, sync_files=False, overwrite=False)
    writer.fs = files
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        save(dict(tensors), storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:
        raise _first_of(error) from None
    disk.sync_folder(folder)
    for name, file in files.written.items():
        if disk.digest(folder / name) != file.sha256:
            raise CannotSave(f"{folder / name} differs from what was written.", check="the disk", errno=errno.EIO)
    return files.written


def read_shards(folder: Path, names: set[str], like: Like) -> dict[str, torch.Tensor]:
    """Return the tensors with these names.

    `like` is called for each tensor. If it returns a tensor, the result is sharded in the same way as that tensor. If it
    returns None, the result is the full tensor.

    Raises DamagedCheckpoint if a file does not match the manifest. This function uses no collectives.
    """
    files = _VerifyingFileSystem(folder)
    with files.create_stream(folder / SHARDS, "rb") as stream:
        metadata: Metadata = _Metadata(stream).load()
    reader = _Reader(folder, metadata)
    reader.fs = files
    tensors = {name: _empty(metadata.state_dict_metadata[name], name, like) for name in sorted(names)}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, storage_reader=reader, planner=planner, no_dist=True)
    except CheckpointException as error:
        raise _first_of(error) from None
    return tensors


def _empty(metadata: Any, name: str, like: Like) -> torch.Tensor:
    if not isinstance(metadata, TensorStorageMetadata):
        raise ValueError(f"{name!r} is not a tensor")
    dtype = metadata.properties.dtype
    sharded = like(name, metadata.size)
    if sharded is None:
        return torch.empty(metadata.size, dtype=dtype)
    return torch.empty_like(sharded.detach(), dtype=dtype, requires_grad=False)


def _first_of(error: CheckpointException) -> BaseException:
    """Return the error of the first rank that failed. torch wraps all errors in a class that is not an Exception."""
    failures = [failure for _, (failure, _) in sorted(error.failures.items())]
    return next((failure for failure in failures if isinstance(failure, OSError | HookpointError)), failures[0])


class _HashingFileSystem(FileSystem):
    """Create this rank's files, and record their sizes and digests."""

    def __init__(self, key: Key | None) -> None:
        self.written: dict[str, File] = {}
        self._key = key

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        final = Path(path).name.removesuffix(".tmp")  # torch writes the index to a .tmp file, then renames it
        with NewFile(Path(path)) as file, encrypted(file, final, self._key) as stream:
            yield stream
        self.written[Path(path).name] = File(file.size, file.sha256)

    def mkdir(self, path: Any) -> None:
        """Check that this rank sees the folder that the chief has created."""
        if not disk.is_folder(Path(path)):
            problem = "the chief created it, but this rank does not see it; all ranks must share the workdir"
            raise FileNotFoundError(errno.ENOENT, problem, os.fspath(path))

    def rename(self, path: Any, new_path: Any) -> None:
        disk.rename(Path(path), Path(new_path))
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _Writer(FileSystemWriter):
    """Write to a folder without storing the folder's name, because the folder is renamed later."""

    def storage_meta(self) -> StorageMeta:
        return StorageMeta()


class _VerifyingFileSystem(FileSystem):
    """Open only files that the manifest lists, and verify each file once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifest = read_manifest(folder)
        self._verified: set[str] = set()

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        name = Path(path).name
        if Path(path) != self._folder / name or name not in self._manifest.files:
            raise ValueError(f"{path} is not one of the checkpoint's files")
        if name not in self._verified:
            verify_file(self._folder, name, self._manifest)
            self._verified.add(name)
        if self._manifest.encryption:
            yield plain_source(self._folder / name, self._manifest.encryption)
            return
        with super().create_stream(path, "rb") as stream:
            yield stream


class _Reader(FileSystemReader):
    """Read from a folder whose metadata is already loaded."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata


class _Metadata(pickle._Unpickler):
    """Unpickle only descriptions of tensors.

    A pickle may only use the allowed names, and may set attributes only on instances of the allowed dataclasses. Setting
    attributes on a class, a function or a constant would affect the whole process. This class extends the Python unpickler,
    because the C unpickler has no method to override for this check.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)):
            return getattr(torch, name)
        if name in ALLOWED_IN_METADATA.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in {SHARDS}")

    def load_build(self) -> None:
        state, instance = self.stack.pop(), self.stack[-1]
        kind = type(instance)
        if not is_dataclass(kind):
            raise pickle.UnpicklingError(f"setting attributes of a {kind.__name__} is not allowed in {SHARDS}")
        if hasattr(kind, "__setstate__"):
            kind.__setstate__(instance, state)
        elif isinstance(state, dict):
            vars(instance).update(state)
        else:
            raise pickle.UnpicklingError(f"setting attributes from a {type(state).__name__} is not allowed in {SHARDS}")

    dispatch[pickle.BUILD[0]] = load_build
