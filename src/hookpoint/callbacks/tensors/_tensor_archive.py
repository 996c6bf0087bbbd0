"""Tensor archives: named arrays in one .npz file."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

from hookpoint.core.errors import BadArgument

UNSAFE = re.compile(r"[^\w .+=@()\[\]-]", re.ASCII)


def archive_key(name: str) -> str:
    """Return a name that is safe in an archive: unpacking it never writes outside the target folder.

    >>> archive_key("outputs/logits"), archive_key("../a:b//c")
    ('outputs/logits', '_/a_b/_/c')
    """
    parts = (UNSAFE.sub("_", part) for part in name.split("/"))
    return "/".join(part if part.strip(". ") else "_" for part in parts)


def archive_keys(owner: str, names: Iterable[str]) -> dict[str, str]:
    """Return the key of each name. Refuse two names with the same key."""
    owners: dict[str, str] = {}
    for name in names:
        key = archive_key(name)
        if key in owners:
            raise BadArgument(f"{owner}: '{owners[key]}' and '{name}' would both be '{key}' in the file.", rename="one of them")
        owners[key] = name
    return {name: key for key, name in owners.items()}


def archive(arrays: Mapping[str, Any]) -> bytes:
    """Return an .npz file without pickled objects. Equal arrays give equal bytes.

    `numpy.savez` does not allow an array named "file", and writes timestamps.
    """
    import numpy

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for key, array in arrays.items():
            with file.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                numpy.lib.format.write_array(member, numpy.asanyarray(array), allow_pickle=False)
    return content.getvalue()
