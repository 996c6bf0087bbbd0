"""build: create callbacks from a configuration of plain dicts and lists, or from a YAML, TOML or JSON file."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, overload

from hookpoint._exports import ALSO_CALLBACKS, CALLBACKS, HOOKPOINT, load
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadConfig, HookpointError
from hookpoint.core.schedule import when as schedules
from hookpoint.core.text.spelling import near_miss

T = TypeVar("T", bound=type[Any])

TARGET, ARGS, WHEN, LIST = "_target_", "_args_", "when", "callbacks"
SCHEDULES = ("After", "At", "Before", "Between", "Every", "Once")
SUFFIXES = (".json", ".toml", ".yaml", ".yml")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_registered: dict[str, type[Any]] = {}


@overload
def register(callback: T, /) -> T: ...
@overload
def register(*, name: str) -> Callable[[T], T]: ...
def register(callback: Any = None, /, *, name: str | None = None) -> Any:
    """Make a class available to `build` under its name, or under `name`. Use it as a decorator or a function.

    >>> @register
    ... class Bell(Callback):
    ...     def on_epoch_end(self): print("beep")
    >>> build(["Bell"])  # doctest: +ELLIPSIS
    [<...Bell object at ...>]
    """
    if callback is None:
        return lambda cls: _register(cls, name)
    return _register(callback, name)


def _register(cls: Any, name: str | None) -> Any:
    if not inspect.isclass(cls):
        raise BadConfig(f"register: {cls!r} is not a class.", write="@register above a class")
    own = name or cls.__name__
    if own in CALLBACKS or own in ALSO_CALLBACKS:
        raise BadConfig(f"register: {own} is already a hookpoint callback.", write=f'@register(name="My{own}")')
    before = _registered.get(own)
    if before is not None and (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):
        raise BadConfig(f"register: {own} is already {before.__module__}.{before.__qualname__}.", give="another name=")
    _registered[own] = cls
    return cls


def build(config: Any) -> list[Any]:
    """Create the callbacks that a configuration describes, and return them in order.

    config: A list of entries, a mapping of entries, a mapping with such a list under "callbacks", or the path of a .yaml, .toml
        or .json file that contains one of these. YAML files need the extra `config`.

    An entry is a class name, or a mapping from the class name to its arguments. A class name is the name of a class in
    `hookpoint.callbacks`, a name added with `register`, or a dotted name such as `mypackage.Mine`. `when` schedules the
    callback's trigger. As in Hydra, an entry may also specify the class as `_target_`, next to the arguments. Arguments may
    contain entries. `build` evaluates no code in a configuration, but it imports the module of a dotted name. BadConfig reports
    the wrong key and the allowed values.

    >>> saver, stopping = build([
    ...     {"ModelSaver": {"max_to_keep": 3}, "when": {"steps": 500}},
    ...     {"_target_": "hookpoint.callbacks.EarlyStopping", "monitor": "val_loss", "patience": 2},
    ... ])
    >>> saver.max_to_keep, saver.schedule, stopping.patience
    (3, Every(steps=500), 2)
    """
    where = ""
    if isinstance(config, str | os.PathLike):
        where, config = f"{os.fspath(config)}: ", _read(Path(config))
    if isinstance(config, Mapping) and LIST in config:
        where, config = f"{where}{LIST}", config[LIST]
    return list(_entries(config, where))


def _entries(config: Any, where: str) -> Iterator[Any]:
    if isinstance(config, Mapping) and TARGET not in config:
        if WHEN in config:
            raise BadConfig(
                f"{where}: `{WHEN}` belongs in a list entry, next to a single class.",
                write=f'[{{"ModelSaver": {{}}, "{WHEN}": …}}]',
            )
        for name, arguments in config.items():
            yield _callback({name: arguments}, f"{where}.{name}" if where else str(name), at=where)
    elif isinstance(config, list | tuple):
        for number, entry in enumerate(config):
            yield _callback(entry, f"{where}[{number}]")
    else:
        problem = f"{where or 'build'}: callbacks must be a list or a mapping, got {type(config).__name__}."
        raise BadConfig(problem, write='[{"EarlyStopping": {"monitor": "val_loss"}}]')


def _callback(entry: Any, where: str, at: str | None = None) -> Any:
    at = where if at is None else at
    if isinstance(entry, str):
        entry = {entry: None}
    if not isinstance(entry, Mapping):
        if isinstance(entry, Callback):
            return entry
        raise BadConfig(
            f"{where}: an entry must be a class name or a mapping, got {entry!r}.",
            write='{"EarlyStopping": {…}}',
        )
    entry = dict(entry)
    schedule = _schedule(entry.pop(WHEN), f"{where}.{WHEN}") if WHEN in entry else None
    if TARGET in entry:
        made = _made(entry, where)
    elif len(entry) == 1:
        [(name, arguments)] = entry.items()
        path = where if where.endswith(f".{name}") or where == name else f"{where}.{name}"
        made = _instance(_class(name, at or path), arguments, path)
    else:
        raise BadConfig(
            f"{where}: an entry must name exactly one class, got {', '.join(map(str, entry)) or 'none'}.",
            write="one entry per class",
        )
    if schedule is not None:
        if not hasattr(made, "when"):
            raise BadConfig(f"{where}.{WHEN}: {type(made).__name__} takes no schedule.", leave=f"{WHEN} out")
        made.when(schedule)
    return made


def _made(entry: Mapping[str, Any], where: str) -> Any:
    unknown = [key for key in entry if str(key).startswith("_") and key not in (TARGET, ARGS)]
    if unknown:
        raise BadConfig(f"{where}.{unknown[0]} is not supported.", known=f"{TARGET}, {ARGS}, and the arguments of the class")
    target = entry[TARGET]
    if not isinstance(target, str):
        raise BadConfig(f"{where}.{TARGET} must be a dotted name, got {target!r}.", write='"hookpoint.callbacks.EarlyStopping"')
    arguments = {key: value for key, value in entry.items() if key not in (TARGET, ARGS)}
    return _instance(_class(target, f"{where}.{TARGET}"), arguments, where, entry.get(ARGS, ()))


def _class(name: Any, where: str) -> Any:
    if name in CALLBACKS or name in ALSO_CALLBACKS:
        return load("hookpoint.callbacks", CALLBACKS, name)
    if name in _registered:
        return _registered[name]
    if isinstance(name, str) and _DOTTED.fullmatch(name):
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise BadConfig(f"{where}: {name} cannot be imported: {error}.", check="the name and PYTHONPATH") from error
        if not callable(found):
            raise BadConfig(f"{where}: {name} is not a class.", give="the dotted name of a class")
        return found
    known = sorted({*CALLBACKS, *_registered})
    meant = near_miss(str(name), known)
    cures = {"write": meant} if meant is not None else {"known": ", ".join(known)}
    raise BadConfig(f"{where}: there is no callback {name!r}.", **cures, register="your own class with @hookpoint.register")


def _instance(cls: Any, arguments: Any, where: str, positional: Any = ()) -> Any:
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise BadConfig(f"{where}: arguments must be a mapping of names to values, got {arguments!r}.", write="{} for none")
    values = {key: _value(value, f"{where}.{key}") for key, value in arguments.items()}
    given = [_value(value, f"{where}.{ARGS}[{number}]") for number, value in enumerate(positional)]
    _check_arguments(cls, values, given, where)
    try:
        return cls(*given, **values)
    except HookpointError as error:
        raise BadConfig(f"{where}: {error}") from error
    except (TypeError, ValueError) as error:
        raise BadConfig(f"{where}: {type(error).__name__}: {error}") from error


def _check_arguments(cls: Any, values: Mapping[str, Any], given: list[Any], where: str) -> None:
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for one in parameters:
        if one.kind is one.VAR_KEYWORD:
            if "Options" not in str(one.annotation):
                return  # the class accepts any keyword argument
            names += [*Options.__annotations__, *(["async_save"] if "SaverOptions" in str(one.annotation) else [])]
    for name in values:
        if name not in names:
            meant = near_miss(name, names)
            asked = f" Did you mean {meant}?" if meant is not None else ""
            raise BadConfig(f"{where}.{name}: {cls.__name__} has no such argument.{asked}", allowed=", ".join(names) or "none")
    required = [one.name for one in parameters if one.default is one.empty and one.name in names[len(given) :]]
    required = [name for name in required if name not in values and name not in Options.__annotations__]
    if required:
        raise BadConfig(f"{where}: {cls.__name__} needs {', '.join(required)}.", allowed=", ".join(names))


def _value(value: Any, where: str) -> Any:
    """Return an argument in which every entry is replaced by its callback."""
    if isinstance(value, Mapping):
        if TARGET in value:
            return _made(value, where)
        if len(value) == 1 and next(iter(value)) in {*CALLBACKS, *ALSO_CALLBACKS, *_registered}:
            return _callback(value, where)
        return {key: _value(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_value(item, f"{where}[{number}]") for number, item in enumerate(value)]
    return value


def _schedule(value: Any, where: str) -> Any:
    if isinstance(value, schedules.When):
        return value
    if isinstance(value, list | tuple) and value:
        first, *rest = [_schedule(item, f"{where}[{number}]") for number, item in enumerate(value)]
        for other in rest:
            first = first | other
        return first
    if not isinstance(value, Mapping) or not value:
        raise BadConfig(f"{where} must be a mapping such as {{steps: 500}}, got {value!r}.", known=", ".join(SCHEDULES))
    name = next(iter(value))
    kind, arguments = (name, value[name]) if len(value) == 1 and name in SCHEDULES else ("Every", value)
    cls = HOOKPOINT[kind] and getattr(schedules, kind)
    return _instance(cls, arguments, f"{where}.{kind}" if kind == name else where)


def _read(path: Path) -> Any:
    if path.suffix not in SUFFIXES:
        raise BadConfig(f"{path} is not a configuration file.", give=f"a file that ends with {', '.join(SUFFIXES)}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror or error}.", check="the path") from error
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path} is not UTF-8: {error}.") from error
    parse, failures = _parser(path)
    try:
        return parse(text)
    except failures as error:
        raise BadConfig(f"{path} cannot be parsed: {error}") from error


def _parser(path: Path) -> tuple[Callable[[str], Any], Any]:
    if path.suffix == ".toml":
        import tomllib

        return tomllib.loads, tomllib.TOMLDecodeError
    if path.suffix == ".json":
        import json

        return json.loads, ValueError
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ImportError("YAML files need PyYAML: pip install 'hookpoint[config]'") from error
    return yaml.safe_load, yaml.YAMLError
