"""Write callbacks.md from the docstrings: `make docs`. A test keeps the page and the classes in step."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from hookpoint import callbacks

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("callbacks.md")

INTRODUCTION = """\
# All callbacks

<!-- Made by docs/make_callbacks.py from the docstrings of the classes. Do not edit: run `make docs`. -->

`from hookpoint import callbacks as cb`. Each works in a `Runner` and in a loop of one's own. Its docstring says which points it
listens to, what it reads and writes, what it keeps in the checkpoint, and what a step pays for it: `help(cb.EarlyStopping)`, or
behind the link. How to write one: [writing a callback](writing-callbacks.md). Whose name is what: [coming from Keras,
tensorpack, MindSpore, Orca or cinnamon](coming-from.md).
"""

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
    "Monitors": ["TFEventWriter", "JSONWriter", "ScalarPrinter", "CSVLogger", "History", "RemoteMonitor", "MLflowMonitor", "WandbMonitor"],
}


def page() -> str:
    """Return the page as it should be."""
    named = [name for names in GROUPS.values() for name in names]
    unlisted, unknown = set(callbacks.__all__) - set(named), set(named) - set(callbacks.__all__)
    if unlisted or unknown:
        raise SystemExit(f"docs/make_callbacks.py: no group for {sorted(unlisted)}; no class {sorted(unknown)}")
    return "\n".join([INTRODUCTION, *(line for title, names in GROUPS.items() for line in _group(title, names))])


def _group(title: str, names: list[str]) -> Iterator[str]:
    yield from (f"## {title}", "", "| | |", "|---|---|")
    for name in names:
        one = getattr(callbacks, name)
        source = Path(inspect.getfile(one)).resolve().relative_to(ROOT)
        yield f"| [`{name}`](../{source.as_posix()}) | {_first_sentence(one)} |"
    yield ""


def _first_sentence(one: type) -> str:
    paragraph = " ".join(inspect.cleandoc(one.__doc__ or "").split("\n\n")[0].split())
    return paragraph.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
