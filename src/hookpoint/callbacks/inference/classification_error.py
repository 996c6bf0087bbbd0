"""ClassificationError: the part of a data set that is classified wrongly."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from hookpoint.callbacks._shared.outputs import Source, outputs_of, read, targets_of, vector
from hookpoint.callbacks.inference._running_ratio import Ratio
from hookpoint.callbacks.inference._top_classes import wrong_in_top
from hookpoint.core.fields import named_fields
from hookpoint.core.run.run import Run

TOP = re.compile(r"wrong-top([1-9]\d*)")


class ClassificationError:
    """Measure the true ratio of wrongly classified samples over the data set, whatever the sizes of its batches.

    `wrong` says which samples are wrong: "wrong-top1", "wrong-top5" and so on are computed from outputs (or their "logits")
    and targets, unless an output has that name; any other name is that of an output, and a function makes it of outputs and
    targets: a vector with 0 for each sample that is right. In the first case a target below 0 does not count, as criteria
    ignore it, and a sample with a NaN among its scores is wrong. A batch costs a few operations on its device, and no wait.

    >>> ClassificationError("wrong-top5", "val-error-top5").names
    ('val-error-top5',)
    """

    def __init__(self, wrong: Source = "wrong-top1", summary_name: str = "validation_error") -> None:
        if not callable(wrong) and (not isinstance(wrong, str) or not wrong):
            raise TypeError(f"ClassificationError(wrong=...) takes a name or a function (outputs, targets); got {wrong!r}")
        if isinstance(wrong, str) and wrong.startswith("wrong-top") and not TOP.fullmatch(wrong):
            raise ValueError(f"ClassificationError(wrong={wrong!r}): write 'wrong-top1', 'wrong-top5' and so on")
        self.wrong = wrong
        self.names = (summary_name,)
        self.reset()

    def reset(self) -> None:
        self._error = Ratio()

    def update(self, run: Run) -> None:
        who, wrong = f"ClassificationError({self.names[0]})", self.wrong
        top = TOP.fullmatch(wrong) if isinstance(wrong, str) else None
        outputs = outputs_of(who, run)
        if top is not None and wrong not in (found := named_fields(outputs)):
            scores = read(who, run, "logits") if found else outputs
            self._error.add(*wrong_in_top(who, scores, targets_of(run), int(top[1])))
        else:
            entries = vector(who, "what says which samples are wrong", read(who, run, wrong))
            self._error.add((entries != 0).sum(), math.prod(entries.shape))

    def share(self, run: Run) -> None:
        self._error.share(run)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        return {self.names[0]: self._error}
