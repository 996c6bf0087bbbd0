"""CollectedData: the data that a SummaryCollector collects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hookpoint.core.errors import BadArgument, listed

FIRST = 5  # parameters, unless an expression selects them
SWITCHES = ("collect_metric", "collect_graph", "collect_input_data")
EXPRESSIONS = {"histogram_regular": "weights", "gradient_regular": "gradients"}
UNSUPPORTED = ("collect_train_lineage", "collect_eval_lineage", "collect_dataset_graph", "collect_landscape")

Selection = str | int | None  # a regular expression for the names of parameters, the number of the first ones, or none


@dataclass(frozen=True)
class CollectedData:
    """The data to collect."""

    metric: bool = True
    graph: bool = True
    input_data: bool = True
    weights: Selection = FIRST
    gradients: Selection = FIRST

    @classmethod
    def of(cls, specified: Mapping[str, Any] | None, keep_default_action: bool) -> CollectedData:
        """Convert MindSpore's arguments. Data that they do not name is collected only with `keep_default_action`."""
        given = dict(specified or {})
        _check(given)
        default = FIRST if keep_default_action else None
        fields: dict[str, Any] = {key.removeprefix("collect_"): given.get(key, keep_default_action) for key in SWITCHES}
        for key, field in EXPRESSIONS.items():
            fields[field] = default if given.get(key) is None else given[key]
        return cls(**fields)


def selected(selection: Selection, names: Iterable[str]) -> list[str]:
    """Return the names that are selected."""
    if isinstance(selection, str):
        return [name for name in names if re.search(selection, name)]
    return list(names)[: selection or 0]


def _check(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        argument = f"SummaryCollector: collect_specified_data={{{key!r}: {value!r}}}"
        if key in UNSUPPORTED:
            if value:
                raise BadArgument(f"{argument} is not supported.", leave="it out")
        elif key not in (*SWITCHES, *EXPRESSIONS):
            raise BadArgument(f"{argument} is unknown.", choose=listed((*SWITCHES, *EXPRESSIONS)))
        elif key in SWITCHES and not isinstance(value, bool):
            raise BadArgument(f"{argument} must be True or False.")
        elif key in EXPRESSIONS and value is not None:
            try:
                re.compile(value)
            except (re.error, TypeError) as error:
                raise BadArgument(f"{argument} is not a regular expression: {error}.") from None
