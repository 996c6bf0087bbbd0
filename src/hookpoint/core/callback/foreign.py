"""Foreign callbacks: recognize objects from other libraries in a list of callbacks, and adopt them.

A class is recognized by the names of its base classes, so hookpoint does not import the other library.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hookpoint._exports import FOR_THE_CORE, load
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import NotACallback

# Maps base classes to libraries. For a callback from one of these libraries, a run follows the conventions of the library: it
# uses the same method names and arguments, and numbers epochs and steps in the same way.
BASES = {
    ("keras.src.callbacks.callback", "Callback"): "Keras",
    ("lightning.pytorch.callbacks.callback", "Callback"): "Lightning",
    ("pytorch_lightning.callbacks.callback", "Callback"): "Lightning",
    ("transformers.trainer_callback", "TrainerCallback"): "transformers",
}
# Packages whose callbacks a run cannot call. Each package maps to the library's name and a suggested fix.
_KERAS_3 = {"use": "the Keras 3 version of this callback: import keras"}
_WRITE = {"write": "a hookpoint.Callback that calls its methods: def on_epoch_end(self, run): theirs.method(...)"}
OTHER_PACKAGES: dict[str, tuple[str, dict[str, str]]] = {
    "catalyst": ("Catalyst", _WRITE),
    "composer": ("Composer", _WRITE),
    "fastai": ("fastai", _WRITE),
    "ignite": ("ignite", {"attach": "it to the trainer or the evaluator of hookpoint.adapters.IgniteEngines()"}),
    "keras": ("Keras 2", _KERAS_3),
    "mmengine": ("MMEngine", _WRITE),
    "skorch": ("skorch", _WRITE),
    "tensorflow": ("Keras 2", _KERAS_3),
    "tf_keras": ("Keras 2", _KERAS_3),
    "torchtnt": ("TorchTNT", _WRITE),
    "xgboost": ("XGBoost", _WRITE),
}
_CALLED_BY_A_TRAINER = re.compile("callback|hook|handler", re.IGNORECASE)


def base_of(subject: Any) -> type | None:
    """Return the object's base class from a supported library, or None."""
    return next((cls for cls in type(subject).__mro__ if (cls.__module__, cls.__qualname__) in BASES), None)


def adopted(subject: Any) -> Any:
    """Wrap an object from another library in a hookpoint callback. Return any other object unchanged.

    Repeated calls with the same object return the same wrapper. Raise NotACallback if the object cannot be wrapped.
    """
    if isinstance(subject, Callback):
        return subject
    if base_of(subject) is not None:
        return load("hookpoint", FOR_THE_CORE, "adopt")(subject)
    for cls in type(subject).__mro__:
        library, cures = OTHER_PACKAGES.get(cls.__module__.partition(".")[0], ("", {}))
        if library and _CALLED_BY_A_TRAINER.search(f"{cls.__module__}.{cls.__qualname__}"):
            raise _not_adoptable(subject, library, cures)
    return subject


def check_library(subject: Any) -> None:
    """Raise NotACallback if the object comes from an installed library.

    The error suggests a wrapper, because a user cannot rename the methods of an installed library.
    """
    for cls in type(subject).__mro__ if not isinstance(subject, Callback) else ():
        package = cls.__module__.partition(".")[0]
        file = getattr(sys.modules.get(package), "__file__", None)
        # Compare only the folder's name, such as site-packages, so that packages from `pip install --user` also match.
        folders = {Path(sysconfig.get_path(kind)).name for kind in ("purelib", "platlib")}
        if file and Path(file).parent.parent.name in folders:
            raise _not_adoptable(subject, package, _WRITE)


def _not_adoptable(subject: Any, library: str, cures: dict[str, str]) -> NotACallback:
    return NotACallback(f"{type(subject).__name__} is written for {library}: a run cannot call its methods.", **cures)
