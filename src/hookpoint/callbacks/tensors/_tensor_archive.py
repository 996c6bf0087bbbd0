"""Tensor archives: arrays by name in one file, as numpy.load reads it."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from hookpoint.core.errors import BadArgument

UNSAFE = re.compile(r"[^\w .+=@()\[\]-]", re.ASCII)


def archive_key(name: str) -> str:
    """Return a name as it may stand in an archive: slashes part it, and it never leads out of the folder it is unpacked in.

    >>> archive_key("outputs/logits"), archive_key("../a:b//c")
    ('outputs/logits', '_/a_b/_/c')
    """
    parts = (UNSAFE.sub("_", part) for part in name.split("/"))
    return "/".join("_" if not part.strip(". ") else part for part in parts)


def archive_keys(owner: str, names: Iterable[str]) -> dict[str, str]:
    """Return the key of each name, or refuse two names that would have the same one."""
    keys: dict[str, str] = {}
    for name in names:
        key = archive_key(name)
        for other, taken in keys.items():
            if taken == key:
                raise BadArgument(f"{owner}: '{other}' and '{name}' would both be '{key}' in the file.", rename="one of them")
        keys[name] = key
    return keys


def archive(arrays: Mapping[str, Any]) -> bytes:
    """Return an .npz file of these arrays. The same arrays make the same bytes; nothing in it is pickled.

    `numpy.savez` takes names as keywords, of which "file" is not free, and has the time of day in its files.
    """
    import numpy

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for key, array in arrays.items():
            with file.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                numpy.lib.format.write_array(member, numpy.asanyarray(array), allow_pickle=False)
    return content.getvalue()
