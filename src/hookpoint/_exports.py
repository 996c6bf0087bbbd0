"""Tables that map each public name to the module that defines it.

The tables cover hookpoint and its subpackages callbacks, monitors and adapters.

Names are loaded on first use, so that importing hookpoint does not import torch. For type checkers, the packages import the
same names under `TYPE_CHECKING`. A test compares these imports with the tables below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module, util
from typing import Any

from hookpoint._gc_pause import GcPause

# The public names that each module defines.
_MODULES = {
    "adapters": "adapters",
    "callbacks": "callbacks",
    "core.callback.callback": "Callback",
    "core.callback.callback_factory": "CallbackFactory",
    "core.callback.current": "log",
    "core.callback.knob": "Knob",
    "core.callback.lambda_callback": "LambdaCallback",
    "core.callback.main_callback": "MainCallBack MainCallback",
    "core.callback.on": "on",
    "core.callback.periodic": "EnableCallbackIf PeriodicCallback PeriodicTrigger",
    "core.callback.pipeline": "CallbackPipeline",
    "core.callback.proxy_callback": "ProxyCallback",
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
    "presets.build": "build register",
    "presets.loop": "Loop",
    "presets.plot": "plot",
    "presets.prove": "prove",
    "presets.runner": "Runner",
    "steering.controller": "control",
    "storage.load_info": "load_info",
    "storage.load_weights": "load_weights",
    "storage.save_checkpoint": "save_checkpoint",
    "storage.verify": "verify",
}
HOOKPOINT = {name: module for module, names in _MODULES.items() for name in names.split()}

# The public classes in each folder. Each class has a module named after it.
_FOLDERS: dict[str, tuple[str, ...]] = {
    "callbacks.debug": ("InjectShell", "StartProcOrThread"),
    "callbacks.hyper_params": (
        "HumanHyperParamSetter",
        "HyperParamSetterWithFunc",
        "LearningRateScheduler",
        "ReduceLROnPlateau",
        "ScheduledHyperParamSetter",
        "StatMonitorParamSetter",
    ),
    "callbacks.inference": ("BinaryClassificationStats", "ClassificationError", "InferenceRunner", "Inferencer", "ScalarStats"),
    "callbacks.model_hooks": ("ActivationStats", "FeatureTap", "GradientStats", "ModuleHooks", "ParameterHooks"),
    "callbacks.notify": ("Notify", "SendMonitorData", "SendStat"),
    "callbacks.profiling": ("HookTrace", "ProfilerTrace", "StepTimeout", "StepTooSlow"),
    "callbacks.progress": ("EstimatedTimeLeft", "FlopsTracker", "ProgressBar", "ThroughputTracker", "TimeMonitor"),
    "callbacks.saving": (
        "BackupAndRestore",
        "CheckpointConfig",
        "MaxSaver",
        "MinSaver",
        "Mirror",
        "ModelCheckpoint",
        "ModelSaver",
        "TopKSaver",
    ),
    "callbacks.stopping": (
        "CheckNumerics",
        "EarlyStopping",
        "LossMonitor",
        "MaxSteps",
        "OnRequestExit",
        "StopAtThreshold",
        "StopAtTime",
        "TerminateOnNaN",
    ),
    "callbacks.summaries": (
        "EmbeddingCollector",
        "MergeAllSummaries",
        "MovingAverageSummary",
        "RunOp",
        "RunUpdateOps",
        "SummaryCollector",
    ),
    "callbacks.system": ("GPUMemoryTracker", "GPUUtilizationTracker", "GarbageCollector", "HostMemoryTracker"),
    "callbacks.tensors": ("DumpTensorAsImage", "DumpTensors", "ProcessTensors", "SimpleMovingAverage", "TensorPrinter"),
    "callbacks.weights": ("CheckReplicas", "LossLandscape", "StochasticWeightAveraging", "SwapEMAWeights"),
    "monitors": ("CSVLogger", "History", "JSONWriter", "RemoteMonitor", "ScalarPrinter", "TFEventWriter", "WandbMonitor"),
}
_WORD = re.compile(r"(?<!^)(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z]{2})")  # splits a class name into words: Swap|EMA|Weights
CALLBACKS = {name: f"{folder}.{_WORD.sub('_', name).lower()}" for folder, names in _FOLDERS.items() for name in names}
CALLBACKS["MLflowMonitor"] = "monitors.mlflow_monitor"

MONITORS = {name: module for name, module in CALLBACKS.items() if module.startswith("monitors.")}
MONITORS["read_scalars"] = "storage.json_rows"

# Adapters for other trainers. The module names start with an underscore, because a module named `adapters.keras` would hide the
# function `adapters.keras`.
ADAPTERS = {
    "fastai": "adapters._fastai",
    "ignite": "adapters._ignite",
    "keras": "adapters._keras",
    "lightning": "adapters._lightning",
    "transformers": "adapters._transformers",
    "IgniteEngines": "adapters.foreign_callbacks.ignite_engines",
    "adopt": "adapters.foreign_callbacks.adopt",
}

# What the core needs from higher layers. The core knows the names, not the modules. It passes this table to `load` if a list of
# callbacks contains a callback from another library ("adopt"), or one with tensorpack's `_before_run` or `_after_run`
# ("StepFetches").
FOR_THE_CORE = {
    "StepFetches": "callbacks.tensors._step_fetches",
    "adopt": ADAPTERS["adopt"],
}

MODULES = ("adapters", "callbacks", "errors")
# Names that hookpoint exports and that can also be imported from hookpoint.callbacks.
ALSO_CALLBACKS = (
    "Callback",
    "CallbackFactory",
    "CallbackPipeline",
    "EnableCallbackIf",
    "LambdaCallback",
    "MainCallback",
    "PeriodicCallback",
    "PeriodicTrigger",
    "ProxyCallback",
)
NEED_TORCH = ("engine.", "parallel.", "presets.runner")

# Callback names from other libraries, and what to use instead.
FOREIGN = {
    "LearningRateMonitor": "a Runner logs learning_rate automatically; in your own loop, call run.log(learning_rate=...)",
    "TensorBoard": "callbacks.TFEventWriter, a default monitor, writes TensorBoard files",
    "TensorBoardCallback": "callbacks.TFEventWriter, a default monitor, writes TensorBoard files",
}


def star(exports: Mapping[str, str]) -> list[str]:
    """Return the sorted names for `import *`. If torch is not installed, names that need torch are omitted."""
    has_torch = util.find_spec("torch") is not None
    return sorted(name for name, module in exports.items() if has_torch or not module.startswith(NEED_TORCH))


def load(package: str, exports: Mapping[str, str], name: str) -> Any:
    """Import the object behind a public name of a package and return it. For some names, this object is a module."""
    if package == "hookpoint.callbacks" and name in ALSO_CALLBACKS:
        exports = HOOKPOINT
    if name not in exports:
        where = f": {FOREIGN[name]}" if name in FOREIGN else ""
        raise AttributeError(f"{package} has no '{name}'{where}")
    try:
        with GcPause():
            module = import_module(f"hookpoint.{exports[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{package}.{name} needs PyTorch: pip install 'hookpoint[torch]'") from error
    return module if name in MODULES else getattr(module, name)
