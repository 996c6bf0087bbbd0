"""The versions of a module's layers, which torch keeps beside the tensors of its state dict."""

from __future__ import annotations

from typing import Any

VERSIONS = "_metadata"


def versions_of(state: Any) -> Any:
    """Return the versions that a state dict carries; None where it carries none."""
    return getattr(state, "__dict__", {}).get(VERSIONS)


def put_versions(state: Any, versions: Any) -> None:
    """Let a state dict carry versions: its type takes attributes, as that of torch does."""
    vars(state)[VERSIONS] = versions
