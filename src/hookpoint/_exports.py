"""The public names of hookpoint, hookpoint.callbacks and hookpoint.monitors, each with the module that defines it.

Names are loaded on first use, so that importing hookpoint does not import torch. The packages repeat the names under
`TYPE_CHECKING` for type checkers; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, util
from typing import Any

HOOKPOINT = {
    "After": "core.schedule.when",
    "AsyncSGD": "parallel.async_sgd.async_sgd",
    "At": "core.schedule.when",
    "Before": "core.schedule.when",
    "Between": "core.schedule.when",
    "Callback": "core.callback.callback",
    "CallbackFactory": "core.callback.callback_factory",
    "CallbackPipeline": "core.callback.pipeline",
    "DataParallel": "parallel.strategy.data_parallel",
    "EnableCallbackIf": "core.callback.periodic",
    "Every": "core.schedule.when",
    "HookedLoader": "engine.data.hooked_loader",
    "HookpointError": "core.errors",
    "HookpointWarning": "core.errors",
    "Hooks": "core.hooks.hooks",
    "HyperParam": "core.run.hyper",
    "If": "core.schedule.when",
    "LambdaCallback": "core.callback.lambda_callback",
    "Loop": "presets.loop",
    "MainCallBack": "core.callback.main_callback",
    "MainCallback": "core.callback.main_callback",
    "ObjAttrParam": "core.run.hyper",
    "Once": "core.schedule.when",
    "ParameterAveraging": "parallel.averaging.parameter_averaging",
    "PeriodicCallback": "core.callback.periodic",
    "PeriodicTrigger": "core.callback.periodic",
    "PipelineParallel": "parallel.pipeline.pipeline_parallel",
    "Point": "core.points",
    "Record": "core.log.records",
    "Replace": "core.callback.replace",
    "Run": "core.run.run",
    "Runner": "presets.runner",
    "SeededSamples": "engine.data.seeded_samples",
    "Sharded": "parallel.strategy.sharded",
    "StopRun": "core.errors",
    "Store": "core.checkpoint.store",
    "TensorParallel": "parallel.tensor.tensor_parallel",
    "When": "core.schedule.when",
    "callbacks": "callbacks",
    "current_run": "core.run.current_run",
    "declare": "core.points",
    "errors": "core.errors",
    "guard": "core.guard.guard",
    "guarding": "core.guard.guard",
    "install": "core.guard.guard",
    "load_weights": "storage.load_weights",
    "log": "core.callback.current",
    "on": "core.callback.on",
    "plot": "presets.plot",
    "points": "core.points",
    "prove": "presets.prove",
    "run_each": "core.guard.run_each",
    "save_checkpoint": "storage.save_checkpoint",
    "verify": "storage.verify",
}

CALLBACKS = {
    "ActivationStats": "callbacks.model_hooks.activation_stats",
    "BackupAndRestore": "callbacks.saving.backup_and_restore",
    "BinaryClassificationStats": "callbacks.inference.binary_classification_stats",
    "CSVLogger": "monitors.csv_logger",
    "CheckNumerics": "callbacks.stopping.check_numerics",
    "CheckpointConfig": "callbacks.saving.checkpoint_config",
    "ClassificationError": "callbacks.inference.classification_error",
    "DumpTensorAsImage": "callbacks.tensors.dump_tensor_as_image",
    "DumpTensors": "callbacks.tensors.dump_tensors",
    "EarlyStopping": "callbacks.stopping.early_stopping",
    "EstimatedTimeLeft": "callbacks.progress.estimated_time_left",
    "FeatureTap": "callbacks.model_hooks.feature_tap",
    "GPUMemoryTracker": "callbacks.system.gpu_memory_tracker",
    "GPUUtilizationTracker": "callbacks.system.gpu_utilization_tracker",
    "GarbageCollector": "callbacks.system.garbage_collector",
    "GradientStats": "callbacks.model_hooks.gradient_stats",
    "History": "monitors.history",
    "HookTrace": "callbacks.profiling.hook_trace",
    "HostMemoryTracker": "callbacks.system.host_memory_tracker",
    "HumanHyperParamSetter": "callbacks.hyper_params.human_hyper_param_setter",
    "HyperParamSetterWithFunc": "callbacks.hyper_params.hyper_param_setter_with_func",
    "InferenceRunner": "callbacks.inference.inference_runner",
    "Inferencer": "callbacks.inference.inferencer",
    "InjectShell": "callbacks.debug.inject_shell",
    "JSONWriter": "monitors.json_writer",
    "LearningRateScheduler": "callbacks.hyper_params.learning_rate_scheduler",
    "LossMonitor": "callbacks.stopping.loss_monitor",
    "MLflowMonitor": "monitors.mlflow_monitor",
    "MaxSaver": "callbacks.saving.max_saver",
    "MaxSteps": "callbacks.stopping.max_steps",
    "MergeAllSummaries": "callbacks.summaries.merge_all_summaries",
    "MinSaver": "callbacks.saving.min_saver",
    "ModelCheckpoint": "callbacks.saving.model_checkpoint",
    "ModelSaver": "callbacks.saving.model_saver",
    "ModuleHooks": "callbacks.model_hooks.module_hooks",
    "MovingAverageSummary": "callbacks.summaries.moving_average_summary",
    "Notify": "callbacks.notify.notify",
    "OnRequestExit": "callbacks.stopping.on_request_exit",
    "ParameterHooks": "callbacks.model_hooks.parameter_hooks",
    "ProcessTensors": "callbacks.tensors.process_tensors",
    "ProfilerTrace": "callbacks.profiling.profiler_trace",
    "ProgressBar": "callbacks.progress.progress_bar",
    "ReduceLROnPlateau": "callbacks.hyper_params.reduce_lr_on_plateau",
    "RemoteMonitor": "monitors.remote_monitor",
    "RunOp": "callbacks.summaries.run_op",
    "RunUpdateOps": "callbacks.summaries.run_update_ops",
    "ScalarPrinter": "monitors.scalar_printer",
    "ScalarStats": "callbacks.inference.scalar_stats",
    "ScheduledHyperParamSetter": "callbacks.hyper_params.scheduled_hyper_param_setter",
    "SendMonitorData": "callbacks.notify.send_monitor_data",
    "SendStat": "callbacks.notify.send_stat",
    "SimpleMovingAverage": "callbacks.tensors.simple_moving_average",
    "StartProcOrThread": "callbacks.debug.start_proc_or_thread",
    "StatMonitorParamSetter": "callbacks.hyper_params.stat_monitor_param_setter",
    "StepTimeout": "callbacks.profiling.step_timeout",
    "StepTooSlow": "callbacks.profiling.step_too_slow",
    "StochasticWeightAveraging": "callbacks.weights.stochastic_weight_averaging",
    "StopAtThreshold": "callbacks.stopping.stop_at_threshold",
    "StopAtTime": "callbacks.stopping.stop_at_time",
    "SummaryCollector": "callbacks.summaries.summary_collector",
    "SwapEMAWeights": "callbacks.weights.swap_ema_weights",
    "TFEventWriter": "monitors.tf_event_writer",
    "TensorPrinter": "callbacks.tensors.tensor_printer",
    "TerminateOnNaN": "callbacks.stopping.terminate_on_nan",
    "ThroughputTracker": "callbacks.progress.throughput_tracker",
    "TimeMonitor": "callbacks.progress.time_monitor",
    "TopKSaver": "callbacks.saving.top_k_saver",
    "WandbMonitor": "monitors.wandb_monitor",
}

MONITORS = {name: module for name, module in CALLBACKS.items() if module.startswith("monitors.")}
MONITORS["read_scalars"] = "monitors.json_writer"

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
