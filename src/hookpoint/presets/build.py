"""build: create callbacks from a configuration of plain dicts and lists, or from a YAML, TOML or JSON file."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, overload

from hookpoint._exports import ALSO_CALLBACKS, CALLBACKS, HOOKPOINT, load
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.foreign import BASES, base_of
from hookpoint.core.callback.handlers import find_handlers
from hookpoint.core.errors import BadConfig, HookpointError
from hookpoint.core.points import BY_NAME, SPELLINGS
from hookpoint.core.schedule import when as schedules
from hookpoint.core.text.spelling import near_miss

T = TypeVar("T", bound=type[Any])

TARGET, ARGS, WHEN, LIST = "_target_", "_args_", "when", "callbacks"
PARTIAL, RECURSIVE, CONVERT = "_partial_", "_recursive_", "_convert_"  # special keys of Hydra
HYDRA: dict[str, tuple[Any, ...]] = {
    PARTIAL: (False, True),
    RECURSIVE: (True, False),
    CONVERT: ("none", "partial", "object", "all"),  # accepted, but has no effect: arguments are always plain lists and dicts
}
SCHEDULES = ("After", "At", "Before", "Between", "Every", "Once")
SUFFIXES = (".json", ".toml", ".yaml", ".yml")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_registered: dict[str, type[Any]] = {}


@overload
def register(callback: T, /) -> T: ...
@overload
def register(*, name: str) -> Callable[[T], T]: ...
def register(callback: Any = None, /, *, name: str | None = None) -> Any:
    """Make a class available to `build` under the class's own name or, if you pass `name`, under that name.

    `register` is a decorator, and can also be called as a function.

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
    `hookpoint.callbacks`, a name added with `register`, or a dotted name such as `mypackage.Mine`. The key `when`
    sets the callback's schedule. Arguments may contain entries. BadConfig reports the wrong key and the allowed values.

    As in Hydra, an entry may also contain the class name under the key `_target_`, together with the arguments. In a mapping,
    you can choose any key for such an entry. `_args_`, `_partial_` (only inside arguments) and `_recursive_` work as in Hydra.
    `_convert_` has no effect, because arguments are always plain lists and dicts.

    Only load configurations that you trust: a dotted name can refer to any class or function that can be imported. `build`
    imports this class or function, and calls it with the arguments. If the result is not a callback, `build` raises BadConfig,
    but a function has already been called by then.

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
    elif where and not (_is_list(config) or (isinstance(config, Mapping) and any(map(_is_entry, config.items())))):
        keys = ", ".join(map(str, config)) if isinstance(config, Mapping) else ""
        found = f"has neither the key `{LIST}` nor the name of a callback, only {keys}" if keys else "describes no callbacks"
        raise BadConfig(f"{where}the file {found}.", add=f"{LIST}: followed by a list such as [EarlyStopping: {{…}}]")
    return list(_entries(config, where))


def _entries(config: Any, where: str) -> Iterator[Any]:
    if isinstance(config, Mapping) and TARGET in config:
        yield _entry(config, where)
    elif isinstance(config, Mapping):
        if WHEN in config:
            raise BadConfig(
                f"{_head(where)}`{WHEN}` belongs in a list entry, next to a single class.",
                write=f'[{{"ModelSaver": {{}}, "{WHEN}": …}}]',
            )
        for name, arguments in config.items():
            has_target = isinstance(arguments, Mapping) and TARGET in arguments
            yield _entry(arguments if has_target else {name: arguments}, _key(where, name), at=None if has_target else where)
    elif _is_list(config):
        for number, entry in enumerate(config):
            yield _entry(entry, f"{where}[{number}]")
    else:
        head = _head(where.removesuffix(LIST) if where else "build")
        problem = f"{head}callbacks must be a list or a mapping, got {type(config).__name__}."
        raise BadConfig(problem, write='[{"EarlyStopping": {"monitor": "val_loss"}}]')


def _entry(entry: Any, where: str, at: str | None = None) -> Any:
    """Return the callback that an entry describes. Raise BadConfig if the result is not a callback."""
    if isinstance(entry, Mapping) and entry.get(PARTIAL):
        raise BadConfig(f"{_key(where, PARTIAL)} must be false here: an entry must give a callback.", leave=f"{PARTIAL} out")
    made = _callback(entry, where, at, must_be_callback=True)
    if not _is_callback(made):
        raise _not_a_callback(where, f"results in {made!r}")
    return made


def _callback(entry: Any, where: str, at: str | None = None, *, must_be_callback: bool = False) -> Any:
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
    schedule = _schedule(entry.pop(WHEN), _key(where, WHEN)) if WHEN in entry else None
    if TARGET in entry:
        made = _made(entry, where, must_be_callback=must_be_callback)
    elif len(entry) == 1:
        [(name, arguments)] = entry.items()
        path = where if re.search(rf"(^|[. ]){re.escape(str(name))}$", where) else _key(where, name)
        found = _class(name, at.removesuffix(": ") or path)
        if must_be_callback:
            _check_target(found, path)
        made = _instance(found, arguments, path)
    else:
        raise BadConfig(
            f"{where}: an entry must name exactly one class, got {', '.join(map(str, entry)) or 'none'}.",
            write="one entry per class",
        )
    if schedule is not None:
        if not hasattr(made, "when"):
            raise BadConfig(f"{_key(where, WHEN)}: {type(made).__name__} takes no schedule.", leave=f"{WHEN} out")
        made.when(schedule)
    return made


def _made(entry: Mapping[str, Any], where: str, *, must_be_callback: bool = False) -> Any:
    reserved = (TARGET, ARGS, *HYDRA)
    unknown = [key for key in entry if str(key).startswith("_") and key not in reserved]
    if unknown:
        raise BadConfig(f"{_key(where, unknown[0])} is not supported.", known=f"{', '.join(reserved)}, and the arguments")
    for key, allowed in HYDRA.items():
        if key in entry and entry[key] not in allowed:
            raise BadConfig(f"{_key(where, key)} must be one of {', '.join(map(str, allowed))}, got {entry[key]!r}.")
    target = entry[TARGET]
    if not isinstance(target, str):
        raise BadConfig(
            f"{_key(where, TARGET)} must be a dotted name, got {target!r}.", write='"hookpoint.callbacks.EarlyStopping"'
        )
    arguments = {key: value for key, value in entry.items() if key not in reserved}
    found = _class(target, _key(where, TARGET))
    if must_be_callback:
        _check_target(found, _key(where, TARGET))
    is_recursive, is_partial = entry.get(RECURSIVE, True), entry.get(PARTIAL, False)
    return _instance(found, arguments, where, entry.get(ARGS, ()), is_recursive=is_recursive, is_partial=is_partial)


def _key(where: str, name: Any) -> str:
    """Return the path of a key, for error messages.

    `where` is empty, a file name with a colon, or the path of the mapping that contains the key.
    """
    return f"{where}.{name}" if where and not where.endswith(": ") else f"{where}{name}"


def _head(where: str) -> str:
    return where if not where or where.endswith(": ") else f"{where}: "


def _is_list(config: Any) -> bool:
    return isinstance(config, Sequence) and not isinstance(config, str | bytes)


def _is_entry(item: tuple[Any, Any]) -> bool:
    """Return whether an item of a mapping is meant as an entry.

    Its key must be `_target_` or `when` or look like a callback's name, or its value must be a mapping with the key `_target_`.
    """
    name, value = str(item[0]), item[1]
    is_named = near_miss(name, [*CALLBACKS, *ALSO_CALLBACKS, *_registered]) is not None or _DOTTED.fullmatch(name)
    return bool(is_named) or name in (TARGET, WHEN) or _is_known(name) or (isinstance(value, Mapping) and TARGET in value)


def _is_known(name: Any) -> bool:
    return name in CALLBACKS or name in ALSO_CALLBACKS or name in _registered


def _check_target(target: Any, where: str) -> None:
    """Raise BadConfig if a call to `target` cannot return a callback.

    A Python function is accepted here, because only its result shows whether it returns a callback.
    """
    if inspect.isfunction(target) or inspect.ismethod(target):
        return
    is_foreign = inspect.isclass(target) and any((cls.__module__, cls.__qualname__) in BASES for cls in target.__mro__)
    if not is_foreign and not (inspect.isclass(target) and _has_points(target)):
        raise _not_a_callback(where, f"is {target!r}")


def _has_points(cls: type) -> bool:
    return issubclass(cls, Callback) or any(name in BY_NAME or name in SPELLINGS or name.startswith("on_") for name in dir(cls))


def _is_callback(made: Any) -> bool:
    if isinstance(made, Callback) or base_of(made) is not None:
        return True
    try:
        return bool(find_handlers(made))
    except HookpointError:  # a misspelled point makes find_handlers raise; the run reports this error later
        return True


def _not_a_callback(where: str, what: str) -> BadConfig:
    allowed = "a class in hookpoint.callbacks, a class with methods such as on_epoch_end, or a function that returns a callback"
    return BadConfig(f"{where.removesuffix(': ') or 'the entry'} {what}, which is not a callback.", allowed=allowed)


def _class(name: Any, where: str) -> Any:
    if name in CALLBACKS or name in ALSO_CALLBACKS:
        return load("hookpoint.callbacks", CALLBACKS, name)
    if name in _registered:
        return _registered[name]
    if isinstance(name, str) and _DOTTED.fullmatch(name):
        try:
            found = _located(name)
        except (ImportError, AttributeError) as error:
            raise BadConfig(f"{where}: {name} cannot be imported: {error}.", check="the name and PYTHONPATH") from error
        if not callable(found):
            raise BadConfig(f"{where}: {name} is neither a class nor a function.", give="the dotted name of a class")
        return found
    known = sorted({*CALLBACKS, *_registered})
    meant = near_miss(str(name), known)
    cures = {"write": meant} if meant is not None else {"known": ", ".join(known)}
    raise BadConfig(f"{where}: there is no callback {name!r}.", **cures, register="your own class with @hookpoint.register")


def _located(name: str) -> Any:
    """Import an attribute of a module, or of a class in a module."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module or "." not in module:
            raise
        outer, _, cls = module.rpartition(".")
        if not hasattr(import_module(outer), cls):
            raise
        return getattr(getattr(import_module(outer), cls), attribute)


def _instance(
    cls: Any, arguments: Any, where: str, positional: Any = (), *, is_recursive: bool = True, is_partial: bool = False
) -> Any:
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
        raise BadConfig(
            f"{_head(where)}arguments must be a mapping of names to values, got {arguments!r}.", write="{} for none"
        )
    values, given = dict(arguments), list(positional)
    if is_recursive:
        values = {key: _value(value, _key(where, key)) for key, value in values.items()}
        given = [_value(value, _key(where, f"{ARGS}[{number}]")) for number, value in enumerate(given)]
    _check_arguments(cls, values, given, where, is_partial=is_partial)
    if is_partial:
        return partial(cls, *given, **values)
    try:
        return cls(*given, **values)
    except HookpointError as error:
        raise BadConfig(f"{_head(where)}{error}") from error
    except (TypeError, ValueError) as error:
        raise BadConfig(f"{_head(where)}{type(error).__name__}: {error}") from error


def _check_arguments(cls: Any, values: Mapping[str, Any], given: list[Any], where: str, *, is_partial: bool) -> None:
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
            raise BadConfig(
                f"{_key(where, name)}: {cls.__name__} has no such argument.{asked}", allowed=", ".join(names) or "none"
            )
    required = [one.name for one in parameters if one.default is one.empty and one.name in names[len(given) :]]
    required = [name for name in required if name not in values and name not in Options.__annotations__]
    if required and not is_partial:
        raise BadConfig(f"{_head(where)}{cls.__name__} needs {', '.join(required)}.", allowed=", ".join(names))


def _value(value: Any, where: str) -> Any:
    """Return an argument in which every entry is replaced by its callback."""
    if isinstance(value, Mapping):
        if TARGET in value:
            return _made(value, where)
        if len(value) == 1 and _is_known(next(iter(value))):
            return _callback(value, where)
        return {key: _value(item, f"{where}.{key}") for key, item in value.items()}
    if _is_list(value):
        return [_value(item, f"{where}[{number}]") for number, item in enumerate(value)]
    return value


def _schedule(value: Any, where: str) -> Any:
    if isinstance(value, schedules.When):
        return value
    if _is_list(value) and value:
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
