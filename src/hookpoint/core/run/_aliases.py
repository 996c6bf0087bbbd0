"""The run's attributes under the names that other libraries use."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import BadValue, NotShared, OutsideIteration
from hookpoint.core.run._mindspore_args import OriginalArgs
from hookpoint.core.run._values import Values, read_only

if TYPE_CHECKING:
    from typing import Self


Method = TypeVar("Method", bound=Callable[..., Any])
T = TypeVar("T")


class ForeignName:
    """An attribute that other libraries have, but a run does not. Reading it raises an error that names the alternative."""

    def __init__(self, write: str) -> None:
        self._write = write

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, run: Any, owner: type) -> NoReturn:
        raise AttributeError(f"the run has no attribute '{self._name}'; write {self._write}")


class BoundMethod:
    """A bound method of a run. Subclasses add other operations, such as `bool(run.stop)`."""

    def __init__(self, function: Callable[..., Any], run: Any) -> None:
        self._function, self._run = function, run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self._run, *args, **kwargs)


class StopRequest(BoundMethod):
    """`run.stop`: call it to stop the run. As in Orca, its truth value is False until a stop is requested."""

    def __bool__(self) -> bool:
        return self._run.stop_reason is not None

    def __repr__(self) -> str:
        return f"<run.stop: {self._run.stop_reason or 'not requested'}>"


class EpochsMethod(BoundMethod):
    """`run.epochs`: call it to iterate over epochs. In Orca, it is a number, so using it as a number raises a helpful error."""

    def _reject(self, *args: Any) -> NoReturn:
        raise BadValue("run.epochs is a method, not a number.", read="run.max_epochs, or run.epoch for the current epoch")

    __hash__ = None  # type: ignore[assignment]
    __int__ = __index__ = __float__ = __format__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _reject
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = _reject


class MethodObject:
    """A decorator for methods. Reading the method from a run returns a StopRequest or an EpochsMethod.

    Reading the method from the class returns the plain function.
    """

    def __init__(self, as_object: Callable[[Callable[..., Any], Any], Any], function: Callable[..., Any]) -> None:
        self._as_object, self._function = as_object, function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __get__(self, run: Any, owner: type) -> Any:
        return self._function if run is None else self._as_object(self._function, run)


if TYPE_CHECKING:  # type checkers see the methods' own types

    def as_stop_request(method: Method) -> Method: ...
    def as_epochs_method(method: Method) -> Method: ...
else:
    as_stop_request = functools.partial(MethodObject, StopRequest)
    as_epochs_method = functools.partial(MethodObject, EpochsMethod)


def alias(attribute: Callable[[Values], T]) -> T:
    """Return a property of the class Values unchanged, so that another class can give the property a second name.

    Type checkers see the type of the property's value.
    """
    return attribute  # type: ignore[return-value]


def as_list(name: str) -> Any:
    """Return a property that reads an attribute as a list.

    A mapping becomes a list of its values. None becomes an empty list. Any object that is not a list or tuple becomes a list
    with one item.
    """

    def read(run: Any) -> list[Any]:
        value = getattr(run, name)
        if isinstance(value, Mapping):
            return list(value.values())
        if type(value) in (list, tuple):  # a NamedTuple is one object
            return list(value)
        return [] if value is None else [value]

    return property(read)


class PeerNames(Values):
    """The run's attributes, under their names in tensorpack, MindSpore and Orca."""

    __slots__ = ("_args",)

    def __init__(self, *parts: Any, **given: Any) -> None:
        super().__init__(*parts, **given)
        self._args = OriginalArgs(self)

    # There is no __getattr__, because it would slow down access to every attribute of the run.
    eval_results = ForeignName("run.metrics, with val_ in front of each name; or run.original_args().eval_results")
    list_callback = ForeignName("run.callbacks, or run.original_args().list_callback")
    save_checkpoint = ForeignName('run.save("tag")')
    should_stop = ForeignName("run.stop, which is false until a stop is requested")
    stop_training = ForeignName('run.stop("why")')

    # MindSpore

    def request_stop(self) -> None:
        """Stop the run. This is MindSpore's name for `stop`."""
        self._loop.stop("request_stop() was called", same_on_all_ranks=False)

    def original_args(self) -> OriginalArgs:
        """Return the run as MindSpore callbacks see it: a dict with attribute access. All callbacks share the same dict."""
        return self._args

    def get_stop_requested(self) -> bool:
        """Return whether a stop was requested."""
        return self.stop_reason is not None

    # tensorpack

    @property
    def trainer(self) -> Self:
        return self

    global_step: Final[int] = Values.step
    epoch_num: Final[int] = Values.epoch
    max_epoch: Final[int | None] = read_only("max_epochs", "tensorpack's name for max_epochs.")

    @property
    def local_step(self) -> int:
        """The index of the current batch. Between iterations, this is the index of the epoch's latest training batch."""
        try:
            return int(self.batch_idx)
        except OutsideIteration:
            if self.progress is not None:
                return int(self.progress.done) - 1
            length = length_of(self.train_loader)
            if not length:
                raise
            return int(self.iteration - 1) % length

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of batches in the last training loader, or None if it is unknown or no pass has begun."""
        return length_of(self.train_loader)

    # Orca

    output: Any = Values.outputs
    target: Any = Values.targets
    num_epochs: int | None = Values.max_epochs
    epoch_stats = alias(Values.logs)
    size: Final[int] = read_only("world_size", "Orca's name for world_size.")
    scheduler: Final[Any] = read_only("lr_scheduler", "Orca's name for lr_scheduler.")

    models: Final[list[Any]] = as_list("model")
    optimizers: Final[list[Any]] = as_list("optimizer")
    schedulers: Final[list[Any]] = as_list("lr_scheduler")

    @property
    def logger(self) -> logging.Logger:
        return logging.getLogger("hookpoint")

    @property
    def metrics_stats(self) -> dict[str, Any]:
        return {"train_loss": self.loss, "num_samples": self._now.samples}

    def put(self, key: str, value: Any) -> None:
        self.store[key] = value

    update = put

    def get(self, key: str) -> Any:
        if key not in self.store:
            raise NotShared(key, self.store)
        return self.store[key]

    def remove(self, key: str) -> None:
        self.get(key)
        del self.store[key]
