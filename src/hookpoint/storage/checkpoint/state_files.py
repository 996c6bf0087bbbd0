"""State files: write a state to the files of a checkpoint, and read it back.

The model's weights are stored in `model.safetensors`, or in one file per model. Everything else is stored in `state.pt`, which
torch.save writes and torch.load reads, always with weights_only=True. A state without tensors is stored in `state.json`, which
does not need torch. Sharded tensors are stored in separate files: see `hookpoint.storage.checkpoint.shard_files`.
"""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hookpoint.core.checkpoint.layer_versions import put_versions, versions_of
from hookpoint.core.errors import CannotResume, DamagedCheckpoint, HookpointError, NotSaveable
from hookpoint.storage.checkpoint._encoding import for_json, restored
from hookpoint.storage.checkpoint.encryption import plain_source, require_key
from hookpoint.storage.checkpoint.layout import WEIGHTS, safe_name
from hookpoint.storage.checkpoint.tree import has_tensors, is_flat
from hookpoint.storage.disk import disk

MODEL = ("parts", "model")
TORCH, JSON = "state.pt", "state.json"
OTHER_RELEASE = {"install": "the releases that its manifest.json names", "start": 'over with resume="never"'}
NOT_ENCRYPTED: Mapping[str, Any] = MappingProxyType({})
KINDS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict}


def files_of(state: dict[str, Any]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Yield the name of each file, and a function that writes its content to a stream.

    The tensors must not change until all files are written.
    """
    weights: dict[str, Any] = {}
    places: list[dict[str, Any]] = []
    if has_tensors(state):
        from hookpoint.storage.checkpoint.weights_file import is_writable, write_weights

        def split_off_weights(model: Any, names: tuple[Any, ...]) -> Any:
            """Return the state of one or more models without the weights, which are written to separate files."""
            if is_writable(model):
                file = WEIGHTS if not names else f"{safe_name('model-' + '.'.join(names))}.safetensors"
                if file not in weights:
                    weights[file] = model
                    facts = {"names": names, "file": file, "kind": type(model).__name__, "keys": list(model)}
                    places.append({**facts, "metadata": versions_of(model)})
                    return None
            elif type(model) is dict and not is_flat(model) and all(type(name) is str for name in model):
                return {name: split_off_weights(inner, (*names, name)) for name, inner in model.items()}
            return model

        parts = state.get(MODEL[0])
        if type(parts) is dict and MODEL[1] in parts:
            state = {**state, MODEL[0]: {**parts, MODEL[1]: split_off_weights(parts[MODEL[1]], ())}}
        for name, model in weights.items():
            yield name, partial(write_weights, model)
    content = {"state": state, "weights": places}
    if has_tensors(state):
        from hookpoint.storage.checkpoint.torch_file import write_tree

        yield TORCH, partial(write_tree, content)
    else:
        yield JSON, partial(_write_json, content)


def check(state: dict[str, Any]) -> None:
    """Write the state to memory, except for the weights, and read it back. Raise NotSaveable if it cannot be read."""
    for name, write in files_of(state):
        if name in (TORCH, JSON):
            memory = io.BytesIO()
            write(memory)
            memory.seek(0)
            try:
                load(name, memory)
            except Exception as error:
                raise NotSaveable(
                    f"the state can be written but not read back: {error}", keep="plain types and tensors only"
                ) from error


def read_state(folder: Path, names: Container[str], encryption: Mapping[str, Any] = NOT_ENCRYPTED) -> dict[str, Any]:
    """Read the state from a checkpoint folder. The caller must have verified the files in the folder."""
    require_key(folder, encryption)
    files = [name for name in (TORCH, JSON) if name in names]
    if len(files) != 1:
        raise DamagedCheckpoint(f"{folder} has no state: neither {TORCH} nor {JSON}.")
    with unreadable_if_failing(f"{folder / files[0]} is intact but"):
        try:
            content = load(files[0], plain_source(folder / files[0], encryption))
            state: dict[str, Any] = content["state"]
            for place in content["weights"]:
                _insert_weights(state, place, folder, names, encryption)
        except ModuleNotFoundError as error:
            raise CannotResume(
                f"{folder} contains tensors, but {error.name} is not installed.", install="pip install 'hookpoint[torch]'"
            ) from None
    return state


@contextmanager
def unreadable_if_failing(what: str, **cures: str) -> Iterator[None]:
    """Raise CannotResume if reading verified files fails inside a `with` block.

    The files are not damaged, so an incompatible release of hookpoint or of another library must have written them.
    """
    try:
        yield
    except (OSError, MemoryError, HookpointError):
        raise
    except Exception as error:
        raise CannotResume(f"{what} cannot be read: {error}", **(cures or OTHER_RELEASE)) from error


def _insert_weights(
    state: dict[str, Any], place: dict[str, Any], folder: Path, names: Container[str], encryption: Mapping[str, Any]
) -> None:
    from hookpoint.storage.checkpoint.weights_file import read_weights

    if place["file"] not in names:
        raise ValueError(f"{place['file']!r} is not one of the checkpoint's files")
    loaded = read_weights(plain_source(folder / place["file"], encryption))
    weights = KINDS[place["kind"]]((key, loaded[key]) for key in place["keys"])
    put_versions(weights, place["metadata"])
    *inner, last = MODEL + tuple(place["names"])
    holder: Any = reduce(getitem, inner, state)
    holder[last] = weights


def load(name: str, source: Any) -> Any:
    """Read a state file from its path or from a stream."""
    if name == JSON:
        return restored(json.loads(disk.read(source) if isinstance(source, Path) else source.read()))
    from hookpoint.storage.checkpoint.torch_file import read_tree

    return read_tree(source)


def _write_json(content: Any, stream: Any) -> None:
    stream.write(json.dumps(for_json(content), allow_nan=False, separators=(",", ":")).encode())
