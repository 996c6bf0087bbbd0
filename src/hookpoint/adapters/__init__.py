"""Adapters: run hookpoint callbacks in other libraries' trainers, and other libraries' callbacks in hookpoint runs.

Each adapter imports its library when it is called. Importing this package imports none of these libraries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint._exports import ADAPTERS, load

if TYPE_CHECKING:
    from hookpoint.adapters._fastai import fastai as fastai
    from hookpoint.adapters._ignite import ignite as ignite
    from hookpoint.adapters._keras import keras as keras
    from hookpoint.adapters._lightning import lightning as lightning
    from hookpoint.adapters._transformers import transformers as transformers
    from hookpoint.adapters.foreign_callbacks.adopt import adopt as adopt
    from hookpoint.adapters.foreign_callbacks.ignite_engines import IgniteEngines as IgniteEngines


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(ADAPTERS)
    value = globals()[name] = load("hookpoint.adapters", ADAPTERS, name)
    return value


def __dir__() -> list[str]:
    return sorted(ADAPTERS)
