"""CollectedData: what a SummaryCollector is to collect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hookpoint.core.errors import BadArgument, listed

FIRST = 5  # parameters, where no expression says which
SWITCHES = ("collect_metric", "collect_graph", "collect_input_data")
EXPRESSIONS = ("histogram_regular", "gradient_regular")
NOT_HERE = ("collect_train_lineage", "collect_eval_lineage", "collect_dataset_graph", "collect_landscape")


@dataclass(frozen=True)
class Selection:
    """Some of a model's parameters: the first five, or those with a name in which an expression is found."""

    expression: str | None = None

    def of(self, names: Iterable[str]) -> list[str]:
        if self.expression is None:
            return list(names)[:FIRST]
        return [name for name in names if re.search(self.expression, name)]


@dataclass(frozen=True)
class CollectedData:
    """What is collected; None stands for no parameters."""

    metric: bool = True
    graph: bool = True
    input_data: bool = True
    weights: Selection | None = Selection()
    gradients: Selection | None = Selection()

    @classmethod
    def of(cls, specified: Mapping[str, Any] | None, keep_default_action: bool) -> CollectedData:
        """Return what MindSpore's arguments mean; what they do not name is collected only with the default action."""
        given = dict(specified or {})
        _refuse(given)
        named = {key.removeprefix("collect_"): given.get(key, keep_default_action) for key in SWITCHES}
        for key, name in zip(EXPRESSIONS, ("weights", "gradients"), strict=True):
            is_wanted = given.get(key) is not None or keep_default_action
            named[name] = Selection(given.get(key)) if is_wanted else None
        return cls(**named)


def _refuse(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        where = f"SummaryCollector(collect_specified_data={{{key!r}: {value!r}}})"
        if key in NOT_HERE:
            if value:
                raise BadArgument(f"{where} is not collected here.", leave="it out")
        elif key not in SWITCHES + EXPRESSIONS:
            raise BadArgument(f"{where} is unknown.", choose=listed(SWITCHES + EXPRESSIONS))
        elif key in SWITCHES and not isinstance(value, bool):
            raise BadArgument(f"{where} means nothing.", give="True or False")
        elif key in EXPRESSIONS and value is not None:
            try:
                re.compile(value)
            except (re.error, TypeError) as error:
                raise BadArgument(f"{where} is no regular expression: {error}.", give="one, or None") from None
