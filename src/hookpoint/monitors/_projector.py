"""Projector: the files of TensorBoard's embedding projector.

Each embedding has a folder. The folder contains `tensors.tsv`, `metadata.tsv` if the embedding has labels, and `sprite.png` if
the embedding has images. `projector_config.pbtxt` names these files. Each file is replaced atomically. If an embedding's entry
in this configuration changes, for example because the embedding has a new shape, the old entry is removed before the files are
written. The configuration therefore never names files with different numbers of rows, even if the process is killed.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from math import ceil, sqrt
from pathlib import Path
from typing import Any

from hookpoint.core.errors import BadValue
from hookpoint.core.log.embedding import Embedding
from hookpoint.monitors._chart_values import to_array, to_pixels
from hookpoint.storage.checkpoint.layout import safe_name
from hookpoint.storage.disk import disk
from hookpoint.storage.disk.hashing_writer import NewFile

CONFIG, FOLDER = "projector_config.pbtxt", "projector"
TENSORS, METADATA, SPRITE = "tensors.tsv", "metadata.tsv", "sprite.png"
MAX_SPRITE_PIXELS = 8192  # the largest sprite that TensorBoard shows
ROWS_AT_ONCE = 1000


def write_embedding(folder: Path, name: str, embedding: Embedding) -> None:
    """Write an embedding, and add it to the configuration. The new embedding replaces an earlier one with the same name."""
    matrix = to_array(embedding.matrix)
    if matrix.dtype.kind not in "biuf":
        raise BadValue(f"embedding '{name}' has type {matrix.dtype}; expected real numbers.")
    if not abs(matrix.astype("float64")).max() < float("inf"):
        raise BadValue(f"embedding '{name}' has values that are NaN or infinite, which TensorBoard cannot show.")
    files = {} if embedding.metadata is None else {METADATA: _table(embedding.metadata)}
    size: tuple[int, int] | None = None
    if embedding.images is not None:
        files[SPRITE], size = _sprite(name, embedding.images)
    place = f"{FOLDER}/{safe_name(name)}"
    entry = _entry(name, place, matrix.shape, files, size)
    _configure(folder, name, None, unless=entry)
    disk.make_folder(folder / place)
    for file, content in files.items():
        disk.replace(folder / place / file, content)
    with disk.replacing(folder / place / TENSORS) as staged:
        _write_matrix(staged, matrix)
    disk.sync_folder(folder / place)
    _configure(folder, name, entry)


def _entry(name: str, place: str, shape: tuple[int, int], files: Mapping[str, bytes], size: tuple[int, int] | None) -> Any:
    from tensorboard.plugins.projector.projector_config_pb2 import EmbeddingInfo

    entry = EmbeddingInfo(tensor_name=name, tensor_path=f"{place}/{TENSORS}", tensor_shape=shape)
    if METADATA in files:
        entry.metadata_path = f"{place}/{METADATA}"
    if size is not None:
        entry.sprite.image_path = f"{place}/{SPRITE}"
        entry.sprite.single_image_dim.extend(size)
    return entry


def _configure(folder: Path, name: str, entry: Any, *, unless: Any = None) -> None:
    """Set an embedding's entry, or remove it if `entry` is None. Do nothing if the current entry equals `entry` or `unless`."""
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    path, config = folder / CONFIG, ProjectorConfig()
    if disk.exists(path):
        try:
            text_format.Parse(disk.read(path).decode(), config)
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise BadValue(f"{path} cannot be read: {error}.", remove="or repair it") from None
    old = next((one for one in config.embeddings if one.tensor_name == name), None)
    if old == entry or (old is not None and old == unless):
        return
    if old is not None:
        config.embeddings.remove(old)
    if entry is not None:
        config.embeddings.append(entry)
    disk.replace(path, text_format.MessageToString(config).encode())


def _write_matrix(path: Path, matrix: Any) -> None:
    import numpy

    with NewFile(path) as file:
        for start in range(0, len(matrix), ROWS_AT_ONCE):
            text = io.BytesIO()
            # Nine significant digits represent a float32 exactly.
            numpy.savetxt(text, matrix[start : start + ROWS_AT_ONCE], fmt="%.9g", delimiter="\t")
            file.write(text.getvalue())


def _table(metadata: Any) -> bytes:
    """Return labels as lines. TensorBoard expects a header only if there is more than one column."""
    columns = metadata if isinstance(metadata, Mapping) else {"label": metadata}
    header = [tuple(columns)] if len(columns) > 1 else []
    rows = [*header, *zip(*columns.values(), strict=True)]
    return "".join("\t".join(map(_cell, row)) + "\n" for row in rows).encode()


def _cell(value: Any) -> str:
    """Return a label as text: on one line, without tabs, and never empty, because TensorBoard skips empty lines."""
    value = value.item() if hasattr(value, "item") else value
    return " ".join(str(value).split()).encode(errors="replace").decode() or "-"


def _sprite(name: str, images: Any) -> tuple[bytes, tuple[int, int]]:
    """Return all images as one square PNG, and the width and height of a single image."""
    import numpy
    from PIL import Image

    pixels = to_array(images)
    pixels = to_pixels(name, pixels[..., None] if pixels.ndim == 3 else pixels)
    count, height, width, channels = pixels.shape
    if channels not in (1, 3):
        raise BadValue(f"embedding '{name}': images have {channels} channels; expected 1 or 3.")
    across = ceil(sqrt(count))
    if across * max(height, width) > MAX_SPRITE_PIXELS:
        needed = f"{across * width} x {across * height} pixels; TensorBoard shows at most {MAX_SPRITE_PIXELS} per side"
        raise BadValue(
            f"embedding '{name}': {count} images of {width} x {height} pixels need a sprite of {needed}.",
            give="smaller or fewer images",
        )
    sheet = numpy.zeros((across * height, across * width, 3), "uint8")
    for place, image in enumerate(pixels):
        row, column = divmod(place, across)
        sheet[row * height : (row + 1) * height, column * width : (column + 1) * width] = image
    content = io.BytesIO()
    Image.fromarray(sheet).save(content, "PNG")
    return content.getvalue(), (width, height)
