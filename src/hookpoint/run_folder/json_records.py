"""Records: parse and check the JSON lines that JSONWriter wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

from hookpoint.storage.json_rows import NOT_FINITE

AT_ONCE = 1_000  # lines decoded together
_LARGEST = 2**63  # values of this size do not fit into an integer array
_decode = json.JSONDecoder().raw_decode


class Table(NamedTuple):
    """A group of records that have the same keys.

    `columns` maps each key to the values of all records. `indices` contains the index of each record's line.
    """

    columns: dict[str, tuple[Any, ...]]
    indices: list[int]


def records_of(lines: Sequence[bytes]) -> Iterator[dict[str, Any] | None]:
    """Yield `record_of(line)` for each line. Lines are decoded in batches, which halves the time."""
    for batch in _batches(lines):
        rows = _decoded(batch)
        yield from map(record_of, batch) if rows is None else map(_checked, rows)


def tables_of(lines: Sequence[bytes]) -> tuple[list[Table], list[int]]:
    """Return the records in these lines as tables, and the indices of lines that are not records.

    `records_of` yields the same records. Most lines in a file have the same keys, so values are checked by column.
    """
    rows: list[Any] = []
    for batch in _batches(lines):
        rows += _decoded(batch) or map(record_of, batch)
    tables, unchecked = [], []
    bad: list[int] = []
    for table in _single_table(rows) or _tables(enumerate(rows), bad):
        if _is_checked(table.columns):
            tables.append(table)
        else:
            unchecked += [(index, _checked(rows[index])) for index in table.indices]
    return tables + _tables(unchecked, bad), sorted(bad)


def _batches(lines: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (lines[begin : begin + AT_ONCE] for begin in range(0, len(lines), AT_ONCE))


def _decoded(batch: Sequence[bytes]) -> list[Any] | None:
    """Decode lines as one list. Return None if this fails, or if some of the values are not objects."""
    try:
        rows: list[Any] = _decoder()(b"[%b]" % b",".join(batch))
    except (ValueError, RecursionError):
        return None
    return rows if len(rows) == len(batch) and set(map(type, rows)) == {dict} else None


def _single_table(rows: Sequence[Any]) -> list[Table]:
    """Return a list with one table of all rows, or an empty list if their keys differ. Twice as fast as `_tables`."""
    try:
        if len(set(map(len, rows))) != 1:
            return []
        return [Table({name: tuple(map(itemgetter(name), rows)) for name in rows[0]}, list(range(len(rows))))]
    except (KeyError, TypeError):  # a row lacks a key of the first row, or is not a record
        return []


def _tables(rows: Iterable[tuple[int, Any]], bad: list[int]) -> list[Table]:
    """Group rows by their keys. Add the indices of rows that are None to `bad`."""
    groups: dict[tuple[str, ...], tuple[list[int], list[Iterable[Any]]]] = {}
    for index, row in rows:
        if row is None:
            bad.append(index)
            continue
        names = tuple(row)
        group = groups.get(names)
        if group is None:
            group = groups[names] = [], []
        group[0].append(index)
        group[1].append(row.values())
    return [Table(dict(zip(names, zip(*rows, strict=True), strict=True)), indices) for names, (indices, rows) in groups.items()]


def _is_checked(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether `_checked` would return all of these rows unchanged."""
    types = {name: set(map(type, columns.get(name, ()))) for name in ("step", "epoch", "time", "at", "iteration")}
    if types["step"] != {int} or types["epoch"] != {int} or types["at"] != {str} or float in types["iteration"]:
        return False
    if not types["time"] <= {float, int} or not types["time"] or not math.isfinite(sum(columns["time"])):
        return False
    clocks = [columns["step"], columns["epoch"], columns["time"]]
    return all(min(clock) > -_LARGEST and max(clock) < _LARGEST for clock in clocks)


def record_of(line: bytes) -> dict[str, Any] | None:
    """Parse a line as a record. Return None if its step, epoch, time or `at` has the wrong type."""
    try:
        row: Any
        try:
            row, end = _decode(text := line.decode())  # twice as fast as json.loads
            if end != len(text):
                raise ValueError
        except ValueError:
            row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _checked(row)


def _checked(row: Any) -> dict[str, Any] | None:
    """Return a decoded line if it is a record, or None."""
    try:
        step, epoch = row["step"], row.setdefault("epoch", 0)
        time, at = row.setdefault("time", 0.0), row.setdefault("at", "step")
        if type(row.get("iteration")) is float:  # in files from older versions, a float "iteration" is a metric
            row["values/iteration"] = row.pop("iteration")
        is_record = type(step) is int and type(epoch) is int and type(at) is str and type(time) in (float, int)
        return row if is_record and abs(step) < _LARGEST and abs(epoch) < _LARGEST and abs(time) < _LARGEST else None
    except (TypeError, KeyError, AttributeError):
        return None


def number_of(value: Any) -> float | None:
    """Return a record's value as a float, or None if it is not a number. "nan", "inf" and "-inf" count as numbers."""
    if type(value) is float:
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return NOT_FINITE["inf"] if value > 0 else NOT_FINITE["-inf"]
    return NOT_FINITE.get(value) if isinstance(value, str) else None


@cache
def _decoder() -> Callable[[bytes], Any]:
    """Return orjson's decoder, which is twice as fast, or the standard library's if orjson is not installed."""
    try:
        import orjson
    except ImportError:
        return lambda text: json.loads(text.decode())
    decode: Callable[[bytes], Any] = orjson.loads
    return decode


def encoded(value: Any) -> bytes:
    """Encode a value as JSON, with orjson if it is installed. Floats must be finite."""
    try:
        return _encoder()(value)
    except TypeError:  # orjson cannot encode integers of more than 64 bits or file names that are not valid Unicode
        return _encoded_by_standard_library(value)


def _encoded_by_standard_library(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


@cache
def _encoder() -> Callable[[Any], bytes]:
    try:
        import orjson
    except ImportError:
        return _encoded_by_standard_library
    encode: Callable[[Any], bytes] = orjson.dumps
    return encode
