"""Write callbacks.md and reference.md from the docstrings: `make docs`. A test keeps the pages and the classes in step."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import hookpoint
from hookpoint import callbacks

PAGE = Path(__file__).with_name("callbacks.md")
REFERENCE = Path(__file__).with_name("reference.md")

INTRODUCTION = """\
# All callbacks

<!-- Made by docs/make_callbacks.py from the docstrings of the classes. Do not edit: run `make docs`. -->

`from hookpoint import callbacks as cb`. Each works in a `Runner` and in a loop of one's own. Behind each name are its arguments
and its docstring, as `help(cb.EarlyStopping)` shows them: which points it listens to, what it reads and writes, what it keeps
in the checkpoint, and what a step pays for it. How to write one: [writing a callback](writing-callbacks.md). Whose name is
what: [coming from Keras, tensorpack, MindSpore, Orca or cinnamon](coming-from.md).
"""

REFERENCE_INTRODUCTION = """\
# Reference

<!-- Made by docs/make_callbacks.py from the docstrings of the classes. Do not edit: run `make docs`. -->

The arguments and the docstring of `Loop`, of `Runner`, and of every class in `hookpoint.callbacks`, in the order of [the
list](callbacks.md). `**options` are those that every callback takes: `name`,
[`on_error`](writing-callbacks.md#when-a-callback-fails) and [`ranks`](writing-callbacks.md#ranks). In the examples, the public
names of `hookpoint` and what is beside them in their modules are imported.
"""

MOST_LETTERS = 84  # of a signature on one line: as many as the site shows

LOOPS = ["Loop", "Runner"]

GROUPS = {
    "In every run": ["MovingAverageSummary", "ProgressBar", "MergeAllSummaries", "RunUpdateOps"],
    "Saving": [
        "ModelSaver",
        "MinSaver",
        "MaxSaver",
        "TopKSaver",
        "ModelCheckpoint",
        "CheckpointConfig",
        "BackupAndRestore",
    ],
    "Validation": ["InferenceRunner", "ScalarStats", "ClassificationError", "BinaryClassificationStats", "Inferencer"],
    "Averages of weights": ["SwapEMAWeights", "StochasticWeightAveraging"],
    "Hyper-parameters": [
        "ScheduledHyperParamSetter",
        "HumanHyperParamSetter",
        "HyperParamSetterWithFunc",
        "StatMonitorParamSetter",
        "LearningRateScheduler",
        "ReduceLROnPlateau",
    ],
    "Stopping": [
        "EarlyStopping",
        "StopAtTime",
        "StopAtThreshold",
        "MaxSteps",
        "LossMonitor",
        "TerminateOnNaN",
        "CheckNumerics",
        "OnRequestExit",
        "StepTimeout",
        "StepTooSlow",
    ],
    "Seeing": [
        "TimeMonitor",
        "EstimatedTimeLeft",
        "ThroughputTracker",
        "GPUUtilizationTracker",
        "GPUMemoryTracker",
        "HostMemoryTracker",
        "SummaryCollector",
        "HookTrace",
        "ProfilerTrace",
    ],
    "Inside of a model": ["ModuleHooks", "ParameterHooks", "ActivationStats", "GradientStats", "FeatureTap"],
    "Tensors": ["ProcessTensors", "TensorPrinter", "DumpTensors", "DumpTensorAsImage", "SimpleMovingAverage"],
    "Acting": ["SendStat", "SendMonitorData", "Notify", "InjectShell", "RunOp", "StartProcOrThread", "GarbageCollector"],
    "Monitors": [
        "TFEventWriter",
        "JSONWriter",
        "ScalarPrinter",
        "CSVLogger",
        "History",
        "RemoteMonitor",
        "MLflowMonitor",
        "WandbMonitor",
    ],
}


def page() -> str:
    """Return the page as it should be."""
    named = [name for names in GROUPS.values() for name in names]
    unlisted, unknown = set(callbacks.__all__) - set(named), set(named) - set(callbacks.__all__)
    if unlisted or unknown:
        raise SystemExit(f"docs/make_callbacks.py: no group for {sorted(unlisted)}; no class {sorted(unknown)}")
    return "\n".join([INTRODUCTION, *(line for title, names in GROUPS.items() for line in _group(title, names))])


def reference() -> str:
    """Return the page of all docstrings as it should be."""
    groups = {"Loops": LOOPS, **GROUPS}
    return "\n".join([REFERENCE_INTRODUCTION, *(line for title, names in groups.items() for line in _described(title, names))])


def _group(title: str, names: list[str]) -> Iterator[str]:
    yield from (f"## {title}", "", "| | |", "|---|---|")
    for name in names:
        yield f"| [`{name}`](reference.md#{name.lower()}) | {_first_sentence(getattr(callbacks, name))} |"
    yield ""


def _described(title: str, names: list[str]) -> Iterator[str]:
    yield from (f"## {title}", "")
    for name in names:
        one = getattr(hookpoint if name in LOOPS else callbacks, name)
        yield from (f"### {name}", "", "```py", *_signature(one), "```", "")
        for paragraph in inspect.cleandoc(one.__doc__ or "").split("\n\n"):
            if paragraph.startswith(">>>"):  # not "python": the tests run docstrings where they are
                yield from ("```pycon", re.sub(r"  # doctest: .*", "", paragraph), "```", "")
            else:
                yield from (_escaped(paragraph), "")


def _signature(one: type) -> Iterator[str]:
    """Yield a call with all arguments, in lines that fit a page."""
    given = list(inspect.signature(one).parameters.values())
    if [parameter.name for parameter in given] == ["args", "kwargs"]:  # a protocol: whoever implements it has arguments
        given = []
    kinds = [parameter.kind for parameter in given]
    words = [_argument(parameter) for parameter in given]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        words.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    line = f"{one.__name__}({', '.join(words)})"
    if len(line) <= MOST_LETTERS:
        yield line
    else:
        yield from (f"{one.__name__}(", *(f"    {word}," for word in words), ")")


def _argument(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    return str(parameter.replace(annotation=_Written(parameter.annotation)))


class _Written:
    """An annotation as it stands in the source; a string would be shown with quotes around it."""

    def __init__(self, annotation: object) -> None:
        self._words = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self._words


def _escaped(paragraph: str) -> str:
    """Return a paragraph of a docstring in which nothing outside of code is taken for markup."""
    if paragraph.startswith("    "):  # code in itself
        return paragraph
    parts = re.split(r"(`[^`]+`)", paragraph)
    return "".join(part if part.startswith("`") else re.sub(r"([*<\[])", r"\\\1", part) for part in parts)


def _first_sentence(one: type) -> str:
    paragraph = " ".join(inspect.cleandoc(one.__doc__ or "").split("\n\n")[0].split())
    return paragraph.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
    REFERENCE.write_text(reference())
