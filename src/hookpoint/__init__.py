"""hookpoint: a callback library for training loops.

Public names are loaded on first use, so `import hookpoint` does not import torch or any other third-party package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint._exports import HOOKPOINT, load, star
from hookpoint._version import __version__ as __version__

if TYPE_CHECKING:
    from hookpoint import adapters as adapters
    from hookpoint import callbacks as callbacks
    from hookpoint.core import errors as errors
    from hookpoint.core.callback.callback import Callback as Callback
    from hookpoint.core.callback.callback_factory import CallbackFactory as CallbackFactory
    from hookpoint.core.callback.current import log as log
    from hookpoint.core.callback.knob import Knob as Knob
    from hookpoint.core.callback.lambda_callback import LambdaCallback as LambdaCallback
    from hookpoint.core.callback.main_callback import MainCallBack as MainCallBack
    from hookpoint.core.callback.main_callback import MainCallback as MainCallback
    from hookpoint.core.callback.on import on as on
    from hookpoint.core.callback.periodic import EnableCallbackIf as EnableCallbackIf
    from hookpoint.core.callback.periodic import PeriodicCallback as PeriodicCallback
    from hookpoint.core.callback.periodic import PeriodicTrigger as PeriodicTrigger
    from hookpoint.core.callback.pipeline import CallbackPipeline as CallbackPipeline
    from hookpoint.core.callback.proxy_callback import ProxyCallback as ProxyCallback
    from hookpoint.core.callback.replace import Replace as Replace
    from hookpoint.core.checkpoint.store import Store as Store
    from hookpoint.core.errors import HookpointError as HookpointError
    from hookpoint.core.errors import HookpointWarning as HookpointWarning
    from hookpoint.core.errors import StopRun as StopRun
    from hookpoint.core.guard.guard import guard as guard
    from hookpoint.core.guard.guard import guarding as guarding
    from hookpoint.core.guard.guard import install as install
    from hookpoint.core.guard.run_each import run_each as run_each
    from hookpoint.core.hooks.hooks import Hooks as Hooks
    from hookpoint.core.log.records import Record as Record
    from hookpoint.core.points import Point as Point
    from hookpoint.core.points import declare as declare
    from hookpoint.core.points import points as points
    from hookpoint.core.run.current_run import current_run as current_run
    from hookpoint.core.run.hyper import HyperParam as HyperParam
    from hookpoint.core.run.hyper import ObjAttrParam as ObjAttrParam
    from hookpoint.core.run.run import Run as Run
    from hookpoint.core.schedule.when import After as After
    from hookpoint.core.schedule.when import At as At
    from hookpoint.core.schedule.when import Before as Before
    from hookpoint.core.schedule.when import Between as Between
    from hookpoint.core.schedule.when import Every as Every
    from hookpoint.core.schedule.when import If as If
    from hookpoint.core.schedule.when import Once as Once
    from hookpoint.core.schedule.when import When as When
    from hookpoint.engine.data.hooked_loader import HookedLoader as HookedLoader
    from hookpoint.engine.data.seeded_samples import SeededSamples as SeededSamples
    from hookpoint.parallel.async_sgd.async_sgd import AsyncSGD as AsyncSGD
    from hookpoint.parallel.averaging.parameter_averaging import ParameterAveraging as ParameterAveraging
    from hookpoint.parallel.pipeline.pipeline_parallel import PipelineParallel as PipelineParallel
    from hookpoint.parallel.strategy.data_parallel import DataParallel as DataParallel
    from hookpoint.parallel.strategy.sharded import Sharded as Sharded
    from hookpoint.parallel.tensor.tensor_parallel import TensorParallel as TensorParallel
    from hookpoint.presets.build import build as build
    from hookpoint.presets.build import register as register
    from hookpoint.presets.loop import Loop as Loop
    from hookpoint.presets.plot import plot as plot
    from hookpoint.presets.prove import prove as prove
    from hookpoint.presets.runner import Runner as Runner
    from hookpoint.steering.controller import control as control
    from hookpoint.storage.load_info import load_info as load_info
    from hookpoint.storage.load_weights import load_weights as load_weights
    from hookpoint.storage.save_checkpoint import save_checkpoint as save_checkpoint
    from hookpoint.storage.verify import verify as verify


def __getattr__(name: str) -> Any:
    if name == "__all__":  # only `import *` reads __all__; `import *` must work without torch
        return sorted([*star(HOOKPOINT), "__version__"])
    value = globals()[name] = load("hookpoint", HOOKPOINT, name)
    return value


def __dir__() -> list[str]:
    return sorted([*HOOKPOINT, "__version__"])
