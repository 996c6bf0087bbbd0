"""The public names of hookpoint, hookpoint.callbacks and hookpoint.monitors, each with the module that defines it.

Names are loaded on first use, so that importing hookpoint does not import torch. The packages repeat the names under
`TYPE_CHECKING` for type checkers; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module, util
from typing import Any

HOOKPOINT = {
    name: module
    for module, names in {
        "callbacks": "callbacks",
        "core.callback.callback": "Callback",
        "core.callback.callback_factory": "CallbackFactory",
        "core.callback.current": "log",
        "core.callback.lambda_callback": "LambdaCallback",
        "core.callback.main_callback": "MainCallBack MainCallback",
        "core.callback.on": "on",
        "core.callback.periodic": "EnableCallbackIf PeriodicCallback PeriodicTrigger",
        "core.callback.pipeline": "CallbackPipeline",
        "core.callback.replace": "Replace",
        "core.checkpoint.store": "Store",
        "core.errors": "HookpointError HookpointWarning StopRun errors",
        "core.guard.guard": "guard guarding install",
        "core.guard.run_each": "run_each",
        "core.hooks.hooks": "Hooks",
        "core.log.records": "Record",
        "core.points": "Point declare points",
        "core.run.current_run": "current_run",
        "core.run.hyper": "HyperParam ObjAttrParam",
        "core.run.run": "Run",
        "core.schedule.when": "After At Before Between Every If Once When",
        "engine.data.hooked_loader": "HookedLoader",
        "engine.data.seeded_samples": "SeededSamples",
        "parallel.async_sgd.async_sgd": "AsyncSGD",
        "parallel.averaging.parameter_averaging": "ParameterAveraging",
        "parallel.pipeline.pipeline_parallel": "PipelineParallel",
        "parallel.strategy.data_parallel": "DataParallel",
        "parallel.strategy.sharded": "Sharded",
        "parallel.tensor.tensor_parallel": "TensorParallel",
        "presets.loop": "Loop",
        "presets.plot": "plot",
        "presets.prove": "prove",
        "presets.runner": "Runner",
        "storage.load_weights": "load_weights",
        "storage.save_checkpoint": "save_checkpoint",
        "storage.verify": "verify",
    }.items()
    for name in names.split()
}

MONITORS = {
    "CSVLogger": "monitors.csv_logger",
    "History": "monitors.history",
    "JSONWriter": "monitors.json_writer",
    "MLflowMonitor": "monitors.mlflow_monitor",
    "RemoteMonitor": "monitors.remote_monitor",
    "ScalarPrinter": "monitors.scalar_printer",
    "TFEventWriter": "monitors.tf_event_writer",
    "WandbMonitor": "monitors.wandb_monitor",
    "read_scalars": "monitors.json_writer",
}

# By folder: a callback is in a module of its own name.
WORD_BEGIN = re.compile("(?<=[a-z])(?=[A-Z][A-Za-z])|(?<=[A-Z])(?=[A-Z][a-z])")
CALLBACKS = {
    name: f"callbacks.{folder}.{WORD_BEGIN.sub('_', name).lower()}"
    for folder, names in {
        "debug": "InjectShell StartProcOrThread",
        "hyper_params": "HumanHyperParamSetter HyperParamSetterWithFunc LearningRateScheduler ReduceLROnPlateau"
        " ScheduledHyperParamSetter StatMonitorParamSetter",
        "inference": "BinaryClassificationStats ClassificationError InferenceRunner Inferencer ScalarStats",
        "model_hooks": "ActivationStats FeatureTap GradientStats ModuleHooks ParameterHooks",
        "notify": "Notify SendMonitorData SendStat",
        "profiling": "HookTrace ProfilerTrace StepTimeout StepTooSlow",
        "progress": "EstimatedTimeLeft ProgressBar ThroughputTracker TimeMonitor",
        "saving": "BackupAndRestore CheckpointConfig MaxSaver MinSaver ModelCheckpoint ModelSaver TopKSaver",
        "stopping": "CheckNumerics EarlyStopping LossMonitor MaxSteps OnRequestExit StopAtThreshold StopAtTime TerminateOnNaN",
        "summaries": "MergeAllSummaries MovingAverageSummary RunOp RunUpdateOps SummaryCollector",
        "system": "GPUMemoryTracker GPUUtilizationTracker GarbageCollector HostMemoryTracker",
        "tensors": "DumpTensorAsImage DumpTensors ProcessTensors SimpleMovingAverage TensorPrinter",
        "weights": "StochasticWeightAveraging SwapEMAWeights",
    }.items()
    for name in names.split()
}
CALLBACKS |= {name: module for name, module in MONITORS.items() if name != "read_scalars"}

MODULES = ("callbacks", "errors")
# Names of hookpoint that are also available in hookpoint.callbacks.
ALSO_CALLBACKS = (
    "Callback",
    "CallbackFactory",
    "CallbackPipeline",
    "EnableCallbackIf",
    "LambdaCallback",
    "MainCallback",
    "PeriodicCallback",
    "PeriodicTrigger",
)
NEED_TORCH = ("engine.", "parallel.", "presets.runner")

# Names in other libraries, and what to use instead.
FOREIGN = {
    "LearningRateMonitor": "a Runner logs learning_rate by itself; in your own loop, write run.log(learning_rate=...)",
    "TensorBoard": "callbacks.TFEventWriter, a default monitor, writes for TensorBoard",
    "TensorBoardCallback": "callbacks.TFEventWriter, a default monitor, writes for TensorBoard",
}


def star(exports: Mapping[str, str]) -> list[str]:
    """Return the sorted names for `import *`; without torch, only those that do not need it."""
    has_torch = util.find_spec("torch") is not None
    return sorted(name for name, module in exports.items() if has_torch or not module.startswith(NEED_TORCH))


def load(package: str, exports: Mapping[str, str], name: str) -> Any:
    """Import and return a public name of a package. `callbacks` and `errors` are modules themselves."""
    if package == "hookpoint.callbacks" and name in ALSO_CALLBACKS:
        exports = HOOKPOINT
    if name not in exports:
        where = f": {FOREIGN[name]}" if name in FOREIGN else ""
        raise AttributeError(f"{package} has no '{name}'{where}")
    try:
        module = import_module(f"hookpoint.{exports[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{package}.{name} needs PyTorch: pip install 'hookpoint[torch]'") from error
    return module if name in MODULES else getattr(module, name)
