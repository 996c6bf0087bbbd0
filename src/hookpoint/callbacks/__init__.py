"""The callbacks that come with hookpoint, monitors among them: `from hookpoint import callbacks as cb`.

Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.callbacks.activation_stats import ActivationStats
    from hookpoint.callbacks.backup_and_restore import BackupAndRestore
    from hookpoint.callbacks.binary_classification_stats import BinaryClassificationStats
    from hookpoint.callbacks.check_numerics import CheckNumerics
    from hookpoint.callbacks.checkpoint_config import CheckpointConfig
    from hookpoint.callbacks.classification_error import ClassificationError
    from hookpoint.callbacks.dump_tensor_as_image import DumpTensorAsImage
    from hookpoint.callbacks.dump_tensors import DumpTensors
    from hookpoint.callbacks.early_stopping import EarlyStopping
    from hookpoint.callbacks.estimated_time_left import EstimatedTimeLeft
    from hookpoint.callbacks.feature_tap import FeatureTap
    from hookpoint.callbacks.garbage_collector import GarbageCollector
    from hookpoint.callbacks.gpu_memory_tracker import GPUMemoryTracker
    from hookpoint.callbacks.gpu_utilization_tracker import GPUUtilizationTracker
    from hookpoint.callbacks.gradient_stats import GradientStats
    from hookpoint.callbacks.hook_trace import HookTrace
    from hookpoint.callbacks.host_memory_tracker import HostMemoryTracker
    from hookpoint.callbacks.human_hyper_param_setter import HumanHyperParamSetter
    from hookpoint.callbacks.hyper_param_setter_with_func import HyperParamSetterWithFunc
    from hookpoint.callbacks.inference_runner import InferenceRunner
    from hookpoint.callbacks.inferencer import Inferencer
    from hookpoint.callbacks.inject_shell import InjectShell
    from hookpoint.callbacks.learning_rate_scheduler import LearningRateScheduler
    from hookpoint.callbacks.loss_monitor import LossMonitor
    from hookpoint.callbacks.max_saver import MaxSaver
    from hookpoint.callbacks.max_steps import MaxSteps
    from hookpoint.callbacks.merge_all_summaries import MergeAllSummaries
    from hookpoint.callbacks.min_saver import MinSaver
    from hookpoint.callbacks.model_checkpoint import ModelCheckpoint
    from hookpoint.callbacks.model_saver import ModelSaver
    from hookpoint.callbacks.module_hooks import ModuleHooks
    from hookpoint.callbacks.moving_average_summary import MovingAverageSummary
    from hookpoint.callbacks.notify import Notify
    from hookpoint.callbacks.on_request_exit import OnRequestExit
    from hookpoint.callbacks.parameter_hooks import ParameterHooks
    from hookpoint.callbacks.process_tensors import ProcessTensors
    from hookpoint.callbacks.profiler_trace import ProfilerTrace
    from hookpoint.callbacks.progress_bar import ProgressBar
    from hookpoint.callbacks.reduce_lr_on_plateau import ReduceLROnPlateau
    from hookpoint.callbacks.run_op import RunOp
    from hookpoint.callbacks.run_update_ops import RunUpdateOps
    from hookpoint.callbacks.scalar_stats import ScalarStats
    from hookpoint.callbacks.scheduled_hyper_param_setter import ScheduledHyperParamSetter
    from hookpoint.callbacks.send_monitor_data import SendMonitorData
    from hookpoint.callbacks.send_stat import SendStat
    from hookpoint.callbacks.simple_moving_average import SimpleMovingAverage
    from hookpoint.callbacks.start_proc_or_thread import StartProcOrThread
    from hookpoint.callbacks.stat_monitor_param_setter import StatMonitorParamSetter
    from hookpoint.callbacks.step_timeout import StepTimeout
    from hookpoint.callbacks.step_too_slow import StepTooSlow
    from hookpoint.callbacks.stochastic_weight_averaging import StochasticWeightAveraging
    from hookpoint.callbacks.stop_at_threshold import StopAtThreshold
    from hookpoint.callbacks.stop_at_time import StopAtTime
    from hookpoint.callbacks.summary_collector import SummaryCollector
    from hookpoint.callbacks.swap_ema_weights import SwapEMAWeights
    from hookpoint.callbacks.tensor_printer import TensorPrinter
    from hookpoint.callbacks.terminate_on_nan import TerminateOnNaN
    from hookpoint.callbacks.throughput_tracker import ThroughputTracker
    from hookpoint.callbacks.time_monitor import TimeMonitor
    from hookpoint.callbacks.top_k_saver import TopKSaver

_WHERE = {
    "ActivationStats": "callbacks.activation_stats",
    "BackupAndRestore": "callbacks.backup_and_restore",
    "BinaryClassificationStats": "callbacks.binary_classification_stats",
    "CSVLogger": "monitors.csv_logger",
    "CheckNumerics": "callbacks.check_numerics",
    "CheckpointConfig": "callbacks.checkpoint_config",
    "ClassificationError": "callbacks.classification_error",
    "DumpTensorAsImage": "callbacks.dump_tensor_as_image",
    "DumpTensors": "callbacks.dump_tensors",
    "EarlyStopping": "callbacks.early_stopping",
    "EstimatedTimeLeft": "callbacks.estimated_time_left",
    "FeatureTap": "callbacks.feature_tap",
    "GPUMemoryTracker": "callbacks.gpu_memory_tracker",
    "GPUUtilizationTracker": "callbacks.gpu_utilization_tracker",
    "GarbageCollector": "callbacks.garbage_collector",
    "GradientStats": "callbacks.gradient_stats",
    "History": "monitors.history",
    "HookTrace": "callbacks.hook_trace",
    "HostMemoryTracker": "callbacks.host_memory_tracker",
    "HumanHyperParamSetter": "callbacks.human_hyper_param_setter",
    "HyperParamSetterWithFunc": "callbacks.hyper_param_setter_with_func",
    "InferenceRunner": "callbacks.inference_runner",
    "Inferencer": "callbacks.inferencer",
    "InjectShell": "callbacks.inject_shell",
    "JSONWriter": "monitors.json_writer",
    "LearningRateScheduler": "callbacks.learning_rate_scheduler",
    "LossMonitor": "callbacks.loss_monitor",
    "MLflowMonitor": "monitors.mlflow_monitor",
    "MaxSaver": "callbacks.max_saver",
    "MaxSteps": "callbacks.max_steps",
    "MergeAllSummaries": "callbacks.merge_all_summaries",
    "MinSaver": "callbacks.min_saver",
    "ModelCheckpoint": "callbacks.model_checkpoint",
    "ModelSaver": "callbacks.model_saver",
    "ModuleHooks": "callbacks.module_hooks",
    "MovingAverageSummary": "callbacks.moving_average_summary",
    "Notify": "callbacks.notify",
    "OnRequestExit": "callbacks.on_request_exit",
    "ParameterHooks": "callbacks.parameter_hooks",
    "ProcessTensors": "callbacks.process_tensors",
    "ProfilerTrace": "callbacks.profiler_trace",
    "ProgressBar": "callbacks.progress_bar",
    "ReduceLROnPlateau": "callbacks.reduce_lr_on_plateau",
    "RemoteMonitor": "monitors.remote_monitor",
    "RunOp": "callbacks.run_op",
    "RunUpdateOps": "callbacks.run_update_ops",
    "ScalarPrinter": "monitors.scalar_printer",
    "ScalarStats": "callbacks.scalar_stats",
    "ScheduledHyperParamSetter": "callbacks.scheduled_hyper_param_setter",
    "SendMonitorData": "callbacks.send_monitor_data",
    "SendStat": "callbacks.send_stat",
    "SimpleMovingAverage": "callbacks.simple_moving_average",
    "StartProcOrThread": "callbacks.start_proc_or_thread",
    "StatMonitorParamSetter": "callbacks.stat_monitor_param_setter",
    "StepTimeout": "callbacks.step_timeout",
    "StepTooSlow": "callbacks.step_too_slow",
    "StochasticWeightAveraging": "callbacks.stochastic_weight_averaging",
    "StopAtThreshold": "callbacks.stop_at_threshold",
    "StopAtTime": "callbacks.stop_at_time",
    "SummaryCollector": "callbacks.summary_collector",
    "SwapEMAWeights": "callbacks.swap_ema_weights",
    "TFEventWriter": "monitors.tf_event_writer",
    "TensorPrinter": "callbacks.tensor_printer",
    "TerminateOnNaN": "callbacks.terminate_on_nan",
    "ThroughputTracker": "callbacks.throughput_tracker",
    "TimeMonitor": "callbacks.time_monitor",
    "TopKSaver": "callbacks.top_k_saver",
    "WandbMonitor": "monitors.wandb_monitor",
}

# Monitors are a layer beside this one: type checkers see them in hookpoint.monitors.
__all__ = [
    "ActivationStats",
    "BackupAndRestore",
    "BinaryClassificationStats",
    "CSVLogger",
    "CheckNumerics",
    "CheckpointConfig",
    "ClassificationError",
    "DumpTensorAsImage",
    "DumpTensors",
    "EarlyStopping",
    "EstimatedTimeLeft",
    "FeatureTap",
    "GPUMemoryTracker",
    "GPUUtilizationTracker",
    "GarbageCollector",
    "GradientStats",
    "History",
    "HookTrace",
    "HostMemoryTracker",
    "HumanHyperParamSetter",
    "HyperParamSetterWithFunc",
    "InferenceRunner",
    "Inferencer",
    "InjectShell",
    "JSONWriter",
    "LearningRateScheduler",
    "LossMonitor",
    "MLflowMonitor",
    "MaxSaver",
    "MaxSteps",
    "MergeAllSummaries",
    "MinSaver",
    "ModelCheckpoint",
    "ModelSaver",
    "ModuleHooks",
    "MovingAverageSummary",
    "Notify",
    "OnRequestExit",
    "ParameterHooks",
    "ProcessTensors",
    "ProfilerTrace",
    "ProgressBar",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "RunOp",
    "RunUpdateOps",
    "ScalarPrinter",
    "ScalarStats",
    "ScheduledHyperParamSetter",
    "SendMonitorData",
    "SendStat",
    "SimpleMovingAverage",
    "StartProcOrThread",
    "StatMonitorParamSetter",
    "StepTimeout",
    "StepTooSlow",
    "StochasticWeightAveraging",
    "StopAtThreshold",
    "StopAtTime",
    "SummaryCollector",
    "SwapEMAWeights",
    "TFEventWriter",
    "TensorPrinter",
    "TerminateOnNaN",
    "ThroughputTracker",
    "TimeMonitor",
    "TopKSaver",
    "WandbMonitor",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"hookpoint.callbacks has no '{name}'")
    value = getattr(import_module(f"hookpoint.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
