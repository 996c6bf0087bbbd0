"""Setting: a hyper-parameter that a callback changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import BadArgument, BadValue
from hookpoint.core.run.hyper import HyperParam, parted
from hookpoint.core.run.rates import as_stored

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

NEVER_NEGATIVE = ("lr", "momentum", "weight_decay")


class Setting:
    """Read and change a setting, by its name in `run.hyper` or as an object such as ObjAttrParam.

    A change is an event, "setting", and a line in the log. The learning rate is that of the first parameter group; the others
    keep their ratios to it. Of any other setting that differs between groups, each group is changed from the value it has. Two
    callbacks that change one setting are both named in a warning, once, when the second one does so. A checkpoint keeps what
    nobody else would: the value of a setting that is not the optimizer's.

    In a run of several processes, all of them get a new value at the same step: at once where each sets the same one, which is
    what `same_on_all_ranks` says, and one step later where only one of them may know of it.
    """

    def __init__(self, param: str | HyperParam, *, same_on_all_ranks: bool = False) -> None:
        is_object = hasattr(param, "get_value") and hasattr(param, "set_value") and hasattr(param, "name")
        if not (isinstance(param, str) and param) and not is_object:
            raise BadArgument(f"{param!r} is no setting.", give='a name, such as "learning_rate", or ObjAttrParam(obj, "attr")')
        self.name: str = param if isinstance(param, str) else param.name
        self.has_written = False
        self._is_same = same_on_all_ranks
        self._param = None if isinstance(param, str) else param
        self._own: HyperParam | None = self._param
        self.owner = ""  # the callback that changes it
        self._rivals: list[Setting] = []
        self._has_warned = False
        self._kept: Any = None

    def begin(self, run: Run, by: str, *, takes_over: bool = False) -> None:
        """Find the setting of this run, or say that there is none; forget the run before, unless this one is resumed.

        Whoever takes over from a scheduler sets the value before each step, and need not warn of it.
        """
        self.owner = by
        if self._param is None:
            self._own = run.hyper.registered(self.name)
        if self._is_told_of(run) and self._own is not None:
            run.hyper.register(self._own)
        self.value(run)
        others = [getattr(entry.subject, "setting", None) for entry in run.hooks.entries]
        mine = self.targets(run)
        self._rivals = [one for one in others if isinstance(one, Setting) and one is not self and mine & one.targets(run)]
        self._has_warned = False
        if not run.resuming:
            self.has_written, self._kept = False, None
        if run.lr_scheduler is not None and self._own is None and self._key == "lr" and not takes_over:
            self._warn_of(f"the lr_scheduler, {type(run.lr_scheduler).__name__}")

    def is_called(self, name: str) -> bool:
        """Say whether this is a name of the setting: `lr` and `learning_rate` are one."""
        return parted(name) == parted(self.name)

    def value(self, run: Run) -> Any:
        """Return the present value; of several parameter groups the first one's."""
        return self._get(run, self._parts(run)[0])

    def set(self, run: Run, value: Any, *, quietly: bool = False) -> bool:
        """Make this the value; say whether it was another before."""
        return self.adjust(run, lambda old: value, quietly=quietly)

    def adjust(self, run: Run, function: Callable[[Any], Any], *, quietly: bool = False) -> bool:
        """Make `function(old)` the value, unless it is None; say whether it was another before.

        The function is called once for each value that parameter groups have, and for a learning rate once. A quiet change is
        no event.
        """
        parts = self._parts(run)
        old = [self._get(run, part) for part in parts]
        answers = [(value, _plain(function(value))) for position, value in enumerate(old) if value not in old[:position]]
        new = [next(_like(value, answer) for known, answer in answers if known == value) for value in old]
        return self._change(run, parts, old, new, quietly=quietly)

    def set_each(self, run: Run, values: list[Any]) -> bool:
        """Give each parameter group its own value, which changes their ratios; say whether any was another before."""
        parts = run.hyper.group_names(self.name)
        return self._change(run, parts, [self._get(run, part) for part in parts], values)

    def _change(self, run: Run, parts: list[str], old: list[Any], new: list[Any], *, quietly: bool = False) -> bool:
        pairs = zip(parts, old, new, strict=True)
        changes = [(part, now) for part, before, now in pairs if now is not None and not self._holds(run, part, before, now)]
        for part, value in changes:
            self._refuse_negative(value)
            self._put(run, part, value)
        if not changes:
            return False
        self.has_written = True
        for rival in self._rivals:
            if rival.has_written:
                self._warn_of(rival.owner)
                rival.be_named()
        if not quietly:
            before, after = _shown(old), _shown([self._get(run, part) for part in parts])
            logger.info("%s: %s sets it to %s, after %s", self.name, self.owner, after, before)
            run.put_event("setting", param=self.name, value=after, previous=before, by=self.owner)
        return True

    def log(self, run: Run) -> None:
        """Log the value as a metric, unless a value of this epoch is there: a runner logs the learning rate itself."""
        if self.name not in run.logs:
            run.put_scalar(self.name, self.value(run))

    def state_dict(self) -> dict[str, Any]:
        if self._own is not None and self.has_written:
            self._kept = self._own.get_value()
        return {"has_written": self.has_written, "value": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.has_written, self._kept = state["has_written"], state["value"]
        if self._own is not None and self.has_written:
            self._own.set_value(self._kept)

    @property
    def _key(self) -> str:
        return parted(self.name)[0]

    def targets(self, run: Run) -> frozenset[Any]:
        """Return what it changes: an object of the user's, or an entry in parameter groups."""
        if self._own is not None:
            return frozenset([getattr(self._own, "identity", id(self._own))])
        return frozenset((self._key, address) for address in run.hyper.addresses(self.name))

    def be_named(self) -> None:
        """Note that it was named beside another one: once is enough."""
        self._has_warned = True

    def _parts(self, run: Run) -> list[str]:
        """Return the names of what is set: of each parameter group, where it is theirs and not a learning rate."""
        if self._own is not None or "@" in self.name or self._key == "lr":
            return [self.name]
        return run.hyper.group_names(self.name) or [self.name]

    def _holds(self, run: Run, part: str, value: Any, new: Any) -> bool:
        """Say whether the setting has the new value already; a tensor has fewer digits than a float."""
        if new == value or self._own is not None or not isinstance(new, int | float):
            return bool(new == value)
        return bool(as_stored(run.hyper[part], new) == value)

    def _get(self, run: Run, part: str) -> Any:
        value = run.hyper[part] if self._own is None or self._is_told_of(run) else self._own.get_value()
        return float(value) if hasattr(value, "fill_") else value  # a learning rate may be a tensor

    def _put(self, run: Run, part: str, value: Any) -> None:
        if self._own is None or self._is_told_of(run):
            run.hyper.set(part, value, same_on_all_ranks=self._is_same)
        else:
            self._own.set_value(value)

    def _is_told_of(self, run: Run) -> bool:
        """Whether other processes are to be told of a change."""
        return run.hyper.request is not None and not self._is_same

    def _refuse_negative(self, value: Any) -> None:
        if self._own is None and self._key in NEVER_NEGATIVE and isinstance(value, int | float) and value < 0:
            raise BadValue(f"{self.name} takes no negative number.", got=repr(value), by=self.owner)

    def _warn_of(self, other: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s is set by %s and by %s: whichever writes last wins", self.name, other, self.owner)


def _plain(value: Any) -> Any:
    """Return a Python number for a scalar of NumPy or a tensor of one element."""
    return value.item() if hasattr(value, "item") and not isinstance(value, int | float) else value


def _like(old: Any, value: Any) -> Any:
    """Return a number in the type of the one before, where that changes nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if type(old) is float and type(value) is int:
        return float(value)
    return int(value) if type(old) is int and type(value) is float and value.is_integer() else value


def _shown(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else values
