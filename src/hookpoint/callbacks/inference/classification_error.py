"""ClassificationError: the share of misclassified samples in a data set."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from hookpoint.callbacks.inference._outputs import Source, check_source, outputs_of, read, targets_of, vector
from hookpoint.callbacks.inference._running_ratio import RunningRatio
from hookpoint.callbacks.inference._top_classes import wrong_in_top
from hookpoint.core.errors import BadArgument
from hookpoint.core.fields import named_fields
from hookpoint.core.run.run import Run

TOP = re.compile(r"wrong-top([1-9]\d*)")


class ClassificationError:
    """Measure the share of misclassified samples over the data set, exact for any batch sizes.

    `wrong` selects how. "wrong-top1", "wrong-top5" and so on compare the outputs, or their "logits", with the targets, unless
    an output has that name. Any other name is that of an output. A function computes it from outputs and targets. Both yield a
    vector with 0 for each correct sample. With "wrong-top…", samples with a negative target do not count, as criteria ignore
    them, and samples with a NaN score are wrong. A batch costs a few operations on its device, and no wait.

    >>> ClassificationError("wrong-top5", "val-error-top5").names
    ('val-error-top5',)
    """

    def __init__(self, wrong: Source = "wrong-top1", summary_name: str = "validation_error") -> None:
        check_source("ClassificationError", "wrong", wrong)
        if isinstance(wrong, str) and wrong.startswith("wrong-top") and not TOP.fullmatch(wrong):
            raise BadArgument(f"ClassificationError: wrong={wrong!r} has no number.", write="'wrong-top1', 'wrong-top5', ...")
        self.wrong = wrong
        self.names = (summary_name,)
        self.reset()

    def reset(self) -> None:
        self._error = RunningRatio()

    def update(self, run: Run) -> None:
        reader, wrong = f"ClassificationError({self.names[0]})", self.wrong
        top = TOP.fullmatch(wrong) if isinstance(wrong, str) else None
        outputs = outputs_of(reader, run)
        if top is not None and wrong not in (fields := named_fields(outputs)):
            scores = read(reader, run, "logits") if fields else outputs
            self._error.add(*wrong_in_top(reader, scores, targets_of(run), int(top[1])))
        else:
            is_wrong = vector(reader, "wrong", read(reader, run, wrong))
            self._error.add((is_wrong != 0).sum(), math.prod(is_wrong.shape))

    def share(self, run: Run) -> None:
        self._error.share(run)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        return {self.names[0]: self._error}
