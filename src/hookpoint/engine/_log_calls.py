"""Find calls of `hookpoint.log` in code that is not hookpoint's: a model may log from its forward, under any name."""

from __future__ import annotations

import sys
from collections import ChainMap, deque
from collections.abc import Iterator, Mapping
from dis import get_instructions
from functools import partial
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch

from hookpoint.core.callback.current import log
from hookpoint.core.run.current_run import current_run

LOGGING = (log, current_run)
NAMES = {one.__name__ for one in LOGGING}
NOT_THE_USERS = {*sys.stdlib_module_names, "hookpoint", "torch", "numpy"}
MOST_ITEMS = 1000  # of a list or dict that are looked at: data may be longer
MOST_LOOKED_AT = 100_000
PLAIN = str | bytes | int | float | complex | torch.Tensor | None


def may_log(passed: Any) -> bool:
    """Say whether any class or function among these objects, or one that they name, has hookpoint's `log` in its code.

    Looks into containers, modules, loaders, callbacks and objects of the user's own classes. Where there is too much to look
    at, the answer is yes.
    """
    waiting = deque([passed])
    seen: dict[int, Any] = {}  # with the objects, so that no id is given to another one
    while waiting:
        one = waiting.popleft()
        if id(one) in seen or isinstance(one, PLAIN):
            continue
        if any(one is each for each in LOGGING) or len(seen) >= MOST_LOOKED_AT:
            return True
        seen[id(one)] = one
        try:
            waiting.extend(_inside(one))
        except _HasLog:
            return True
    return False


class _HasLog(Exception):
    """It is in the code."""


def _inside(one: Any) -> Iterator[Any]:
    if isinstance(one, FunctionType):
        if not _is_the_users(one):
            return
        free = _free(one)
        yield from (*free.values(), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())
        yield from _named(one.__code__, ChainMap(free, one.__globals__))
        yield getattr(one, "__wrapped__", None)
    elif isinstance(one, GeneratorType):
        yield from _named(one.gi_code, one.gi_frame.f_globals if one.gi_frame is not None else {})
    elif isinstance(one, MethodType):
        yield from (one.__func__, one.__self__)
    elif isinstance(one, partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, staticmethod | classmethod):
        yield one.__func__
    elif isinstance(one, property):
        yield from (one.fget, one.fset)
    elif isinstance(one, type):
        for base in one.__mro__:
            if _is_the_users(base):
                yield from vars(base).values()
    elif isinstance(one, Mapping):
        yield from (value for value, _ in zip(one.values(), range(MOST_ITEMS), strict=False))
    elif isinstance(one, list | tuple | set | frozenset):
        yield from (value for value, _ in zip(one, range(MOST_ITEMS), strict=False))
    elif _root(type(one).__module__) not in sys.stdlib_module_names:
        yield type(one)
        yield from getattr(one, "__dict__", {}).values()


def _named(code: CodeType, known: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the functions and classes that a piece of code names; raise if it names hookpoint's log."""
    names = set(code.co_names) | set(code.co_freevars)
    for name in names:
        value = known.get(name)
        is_hookpoint = _root(name) == "hookpoint" or (isinstance(value, ModuleType) and _root(value.__name__) == "hookpoint")
        is_log = any(value is one for one in LOGGING)
        if (is_log and _is_variable(name, code)) or (is_hookpoint and names & NAMES):
            raise _HasLog
        if isinstance(value, ModuleType):
            if _root(value.__name__) not in NOT_THE_USERS:
                yield from (vars(value)[part] for part in names if part in vars(value))
        elif isinstance(value, FunctionType | type | partial) and not is_log:
            yield value
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, known)


def _is_variable(name: str, code: CodeType) -> bool:
    """Say whether code reads a name by itself: in `torch.log` it is an attribute."""
    return any(one.argval == name and not one.opname.endswith(("ATTR", "METHOD")) for one in get_instructions(code))


def _free(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - a name that has no value yet raises
    except ValueError:
        return False
    return True


def _is_the_users(one: Any) -> bool:
    return _root(str(getattr(one, "__module__", ""))) not in NOT_THE_USERS


def _root(name: str) -> str:
    return name.partition(".")[0]
