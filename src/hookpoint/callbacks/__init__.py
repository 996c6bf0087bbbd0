"""The callbacks that come with hookpoint, including the monitors: `from hookpoint import callbacks as cb`.

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint._exports import CALLBACKS, load

if TYPE_CHECKING:
    from hookpoint.callbacks.debug.inject_shell import InjectShell as InjectShell
    from hookpoint.callbacks.debug.start_proc_or_thread import StartProcOrThread as StartProcOrThread
    from hookpoint.callbacks.hyper_params.human_hyper_param_setter import HumanHyperParamSetter as HumanHyperParamSetter
    from hookpoint.callbacks.hyper_params.hyper_param_setter_with_func import (
        HyperParamSetterWithFunc as HyperParamSetterWithFunc,
    )
    from hookpoint.callbacks.hyper_params.learning_rate_scheduler import LearningRateScheduler as LearningRateScheduler
    from hookpoint.callbacks.hyper_params.reduce_lr_on_plateau import ReduceLROnPlateau as ReduceLROnPlateau
    from hookpoint.callbacks.hyper_params.scheduled_hyper_param_setter import (
        ScheduledHyperParamSetter as ScheduledHyperParamSetter,
    )
    from hookpoint.callbacks.hyper_params.stat_monitor_param_setter import StatMonitorParamSetter as StatMonitorParamSetter
    from hookpoint.callbacks.inference.binary_classification_stats import BinaryClassificationStats as BinaryClassificationStats
    from hookpoint.callbacks.inference.classification_error import ClassificationError as ClassificationError
    from hookpoint.callbacks.inference.inference_runner import InferenceRunner as InferenceRunner
    from hookpoint.callbacks.inference.inferencer import Inferencer as Inferencer
    from hookpoint.callbacks.inference.scalar_stats import ScalarStats as ScalarStats
    from hookpoint.callbacks.model_hooks.activation_stats import ActivationStats as ActivationStats
    from hookpoint.callbacks.model_hooks.feature_tap import FeatureTap as FeatureTap
    from hookpoint.callbacks.model_hooks.gradient_stats import GradientStats as GradientStats
    from hookpoint.callbacks.model_hooks.module_hooks import ModuleHooks as ModuleHooks
    from hookpoint.callbacks.model_hooks.parameter_hooks import ParameterHooks as ParameterHooks
    from hookpoint.callbacks.notify.notify import Notify as Notify
    from hookpoint.callbacks.notify.send_monitor_data import SendMonitorData as SendMonitorData
    from hookpoint.callbacks.notify.send_stat import SendStat as SendStat
    from hookpoint.callbacks.profiling.hook_trace import HookTrace as HookTrace
    from hookpoint.callbacks.profiling.profiler_trace import ProfilerTrace as ProfilerTrace
    from hookpoint.callbacks.profiling.step_timeout import StepTimeout as StepTimeout
    from hookpoint.callbacks.profiling.step_too_slow import StepTooSlow as StepTooSlow
    from hookpoint.callbacks.progress.estimated_time_left import EstimatedTimeLeft as EstimatedTimeLeft
    from hookpoint.callbacks.progress.flops_tracker import FlopsTracker as FlopsTracker
    from hookpoint.callbacks.progress.progress_bar import ProgressBar as ProgressBar
    from hookpoint.callbacks.progress.throughput_tracker import ThroughputTracker as ThroughputTracker
    from hookpoint.callbacks.progress.time_monitor import TimeMonitor as TimeMonitor
    from hookpoint.callbacks.saving.backup_and_restore import BackupAndRestore as BackupAndRestore
    from hookpoint.callbacks.saving.checkpoint_config import CheckpointConfig as CheckpointConfig
    from hookpoint.callbacks.saving.max_saver import MaxSaver as MaxSaver
    from hookpoint.callbacks.saving.min_saver import MinSaver as MinSaver
    from hookpoint.callbacks.saving.mirror import Mirror as Mirror
    from hookpoint.callbacks.saving.model_checkpoint import ModelCheckpoint as ModelCheckpoint
    from hookpoint.callbacks.saving.model_saver import ModelSaver as ModelSaver
    from hookpoint.callbacks.saving.top_k_saver import TopKSaver as TopKSaver
    from hookpoint.callbacks.stopping.check_numerics import CheckNumerics as CheckNumerics
    from hookpoint.callbacks.stopping.early_stopping import EarlyStopping as EarlyStopping
    from hookpoint.callbacks.stopping.loss_monitor import LossMonitor as LossMonitor
    from hookpoint.callbacks.stopping.max_steps import MaxSteps as MaxSteps
    from hookpoint.callbacks.stopping.on_request_exit import OnRequestExit as OnRequestExit
    from hookpoint.callbacks.stopping.stop_at_threshold import StopAtThreshold as StopAtThreshold
    from hookpoint.callbacks.stopping.stop_at_time import StopAtTime as StopAtTime
    from hookpoint.callbacks.stopping.terminate_on_nan import TerminateOnNaN as TerminateOnNaN
    from hookpoint.callbacks.summaries.embedding_collector import EmbeddingCollector as EmbeddingCollector
    from hookpoint.callbacks.summaries.merge_all_summaries import MergeAllSummaries as MergeAllSummaries
    from hookpoint.callbacks.summaries.moving_average_summary import MovingAverageSummary as MovingAverageSummary
    from hookpoint.callbacks.summaries.run_op import RunOp as RunOp
    from hookpoint.callbacks.summaries.run_update_ops import RunUpdateOps as RunUpdateOps
    from hookpoint.callbacks.summaries.summary_collector import SummaryCollector as SummaryCollector
    from hookpoint.callbacks.system.garbage_collector import GarbageCollector as GarbageCollector
    from hookpoint.callbacks.system.gpu_memory_tracker import GPUMemoryTracker as GPUMemoryTracker
    from hookpoint.callbacks.system.gpu_utilization_tracker import GPUUtilizationTracker as GPUUtilizationTracker
    from hookpoint.callbacks.system.host_memory_tracker import HostMemoryTracker as HostMemoryTracker
    from hookpoint.callbacks.tensors.dump_tensor_as_image import DumpTensorAsImage as DumpTensorAsImage
    from hookpoint.callbacks.tensors.dump_tensors import DumpTensors as DumpTensors
    from hookpoint.callbacks.tensors.process_tensors import ProcessTensors as ProcessTensors
    from hookpoint.callbacks.tensors.simple_moving_average import SimpleMovingAverage as SimpleMovingAverage
    from hookpoint.callbacks.tensors.tensor_printer import TensorPrinter as TensorPrinter
    from hookpoint.callbacks.weights.check_replicas import CheckReplicas as CheckReplicas
    from hookpoint.callbacks.weights.loss_landscape import LossLandscape as LossLandscape
    from hookpoint.callbacks.weights.stochastic_weight_averaging import StochasticWeightAveraging as StochasticWeightAveraging
    from hookpoint.callbacks.weights.swap_ema_weights import SwapEMAWeights as SwapEMAWeights
    from hookpoint.core.callback.callback import Callback as Callback
    from hookpoint.core.callback.callback_factory import CallbackFactory as CallbackFactory
    from hookpoint.core.callback.lambda_callback import LambdaCallback as LambdaCallback
    from hookpoint.core.callback.main_callback import MainCallback as MainCallback
    from hookpoint.core.callback.periodic import EnableCallbackIf as EnableCallbackIf
    from hookpoint.core.callback.periodic import PeriodicCallback as PeriodicCallback
    from hookpoint.core.callback.periodic import PeriodicTrigger as PeriodicTrigger
    from hookpoint.core.callback.pipeline import CallbackPipeline as CallbackPipeline
    from hookpoint.core.callback.proxy_callback import ProxyCallback as ProxyCallback
    from hookpoint.monitors.csv_logger import CSVLogger as CSVLogger
    from hookpoint.monitors.history import History as History
    from hookpoint.monitors.json_writer import JSONWriter as JSONWriter
    from hookpoint.monitors.mlflow_monitor import MLflowMonitor as MLflowMonitor
    from hookpoint.monitors.remote_monitor import RemoteMonitor as RemoteMonitor
    from hookpoint.monitors.scalar_printer import ScalarPrinter as ScalarPrinter
    from hookpoint.monitors.tf_event_writer import TFEventWriter as TFEventWriter
    from hookpoint.monitors.wandb_monitor import WandbMonitor as WandbMonitor

__all__ = sorted(CALLBACKS)


def __getattr__(name: str) -> Any:
    value = globals()[name] = load("hookpoint.callbacks", CALLBACKS, name)
    return value


def __dir__() -> list[str]:
    return __all__
