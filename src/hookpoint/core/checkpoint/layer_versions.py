"""Layer versions, which torch stores next to the tensors in a state dict."""

from __future__ import annotations

from typing import Any

VERSIONS = "_metadata"


def versions_of(state: Any) -> Any:
    """Return the versions of a state dict, or None."""
    return getattr(state, "__dict__", {}).get(VERSIONS)


def put_versions(state: Any, versions: Any) -> None:
    """Set the versions of a state dict, if there are any. Its type must accept attributes, as torch's does."""
    if versions is not None:
        vars(state)[VERSIONS] = versions
