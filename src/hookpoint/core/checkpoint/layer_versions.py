"""Layer versions: the `_metadata` attribute that torch adds to a state dict."""

from __future__ import annotations

from typing import Any

VERSIONS = "_metadata"


def versions_of(state: Any) -> Any:
    """Return a state dict's layer versions, or None."""
    return getattr(state, "__dict__", {}).get(VERSIONS)


def put_versions(state: Any, versions: Any) -> None:
    """Set a state dict's layer versions unless they are None. The dict must accept attributes, as an OrderedDict does."""
    if versions is not None:
        vars(state)[VERSIONS] = versions
