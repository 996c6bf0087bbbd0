"""Adopted: the base class of callbacks that call another library's callback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument, CompileError, listed
from hookpoint.core.run.run import Run

OWN_OPTIONS = ("name", "on_error", "ranks")


class Adopted(Callback):
    """Call another library's callback ("the object") at the points of a run.

    The calls use that library's method names and arguments, and count epochs and batches as that library does. Listens only to
    the points for which the object overrides a method. After an error, the object's method for the end of training is not
    called, because the other library's trainer would not call that method either.
    """

    writes_anything = True

    LIBRARY: ClassVar[str] = ""
    # The object's methods that each point calls. This class handles the point `on_x` in its method `_x`.
    CALLS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    ALWAYS: ClassVar[tuple[str, ...]] = ()
    # Callback classes that cannot work in a run, with the alternative for each.
    REFUSED: ClassVar[Mapping[str, str]] = {}

    is_training = False  # True from the beginning of a run until its end or an error

    def __init__(self, theirs: Any, base: type, **options: Any) -> None:
        self.theirs, self._base = theirs, base
        self._check()
        self.options: dict[str, Any] = {}
        self.configure({"name": type(theirs).__name__, **options})
        for point, methods in self.CALLS.items():
            if point in self.ALWAYS or any(map(self.has, methods)):
                vars(self)[point] = getattr(self, point.removeprefix("on"))

    def configure(self, options: Mapping[str, Any]) -> None:
        """Set this callback's own options, and the options that the object reads from its library's trainer."""
        own = {name: value for name, value in options.items() if name in OWN_OPTIONS}
        options = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
        super().__init__(**own)
        known = self._known_options() if options else set()
        for name in options:
            if name not in known:
                who = f"adopt({type(self.theirs).__name__})"
                raise BadArgument(f"{who} has no option {name}=.", known=listed(known | set(OWN_OPTIONS)))
        self.options.update(options)

    def has(self, method: str) -> bool:
        """Return whether the object overrides a method, instead of inheriting the empty one from its base class."""
        is_own = getattr(type(self.theirs), method, None) is not getattr(self._base, method, None)
        return is_own or method in getattr(self.theirs, "__dict__", ())

    def is_a(self, name: str) -> bool:
        """Return whether the object is an instance of the library's class with this name."""
        packages = {self._base.__module__.partition(".")[0]}
        return any(cls.__name__ == name and cls.__module__.partition(".")[0] in packages for cls in type(self.theirs).__mro__)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    def _known_options(self) -> set[str]:
        return set()

    def _check(self) -> None:
        for name, instead in self.REFUSED.items():
            if self.is_a(name):
                raise self._refuse("cannot work in a hookpoint run", **cure(instead))

    def _refuse(self, why: str, **cures: str) -> CompileError:
        return CompileError(f"{type(self.theirs).__name__} ({self.LIBRARY}) {why}.", **cures)

    def __repr__(self) -> str:
        return f"adopt({self.theirs!r})"


def cure(instead: str) -> dict[str, str]:
    """Convert advice such as "pass epochs to fit" to an error hint: {"pass": "epochs to fit"}."""
    verb, _, rest = instead.partition(" ")
    return {verb: rest}


def number_of(loader: Any) -> int | None:
    """Return the number of batches in a loader, or None if the loader has no length."""
    try:
        return len(loader)
    except TypeError:
        return None


def values_of(run: Run) -> dict[str, float]:
    """Return the current epoch's metrics as floats."""
    return {name: float(value) for name, value in run.logs.items()}
