"""hookpoint: everything else in training, one line at a time.

Importing this imports nothing else: names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookpoint._version import __version__

if TYPE_CHECKING:
    from hookpoint import callbacks
    from hookpoint.core import errors
    from hookpoint.core.callback import Callback
    from hookpoint.core.callback_factory import CallbackFactory
    from hookpoint.core.current import current_run, log
    from hookpoint.core.errors import HookpointError, HookpointWarning, StopRun
    from hookpoint.core.guard import guard, guarding, install
    from hookpoint.core.hooks import Hooks
    from hookpoint.core.hyper import HyperParam, ObjAttrParam
    from hookpoint.core.lambda_callback import LambdaCallback
    from hookpoint.core.main_callback import MainCallBack, MainCallback
    from hookpoint.core.on import on
    from hookpoint.core.periodic import EnableCallbackIf, PeriodicCallback, PeriodicTrigger
    from hookpoint.core.pipeline import CallbackPipeline
    from hookpoint.core.points import Point, declare, points
    from hookpoint.core.records import Record
    from hookpoint.core.replace import Replace
    from hookpoint.core.routine import run_each
    from hookpoint.core.run import Run
    from hookpoint.core.store import Store
    from hookpoint.core.when import After, At, Before, Between, Every, If, Once, When
    from hookpoint.engine.hooked_loader import HookedLoader
    from hookpoint.engine.seeded_samples import SeededSamples
    from hookpoint.parallel.async_sgd import AsyncSGD
    from hookpoint.parallel.data_parallel import DataParallel
    from hookpoint.parallel.parameter_averaging import ParameterAveraging
    from hookpoint.parallel.pipeline_parallel import PipelineParallel
    from hookpoint.parallel.sharded import Sharded
    from hookpoint.parallel.tensor_parallel import TensorParallel
    from hookpoint.presets.loop import Loop
    from hookpoint.presets.plot import plot
    from hookpoint.presets.prove import prove
    from hookpoint.presets.runner import Runner
    from hookpoint.storage.load_weights import load_weights
    from hookpoint.storage.verify import verify

_WHERE = {  # the module of each name, and the package it is in where that is not the core
    "After": "when",
    "AsyncSGD": "parallel.async_sgd",
    "At": "when",
    "Before": "when",
    "Between": "when",
    "Callback": "callback",
    "CallbackFactory": "callback_factory",
    "CallbackPipeline": "pipeline",
    "DataParallel": "parallel.data_parallel",
    "EnableCallbackIf": "periodic",
    "Every": "when",
    "HookedLoader": "engine.hooked_loader",
    "HookpointError": "errors",
    "HookpointWarning": "errors",
    "Hooks": "hooks",
    "HyperParam": "hyper",
    "If": "when",
    "LambdaCallback": "lambda_callback",
    "Loop": "presets.loop",
    "MainCallBack": "main_callback",
    "MainCallback": "main_callback",
    "ObjAttrParam": "hyper",
    "Once": "when",
    "ParameterAveraging": "parallel.parameter_averaging",
    "PeriodicCallback": "periodic",
    "PeriodicTrigger": "periodic",
    "PipelineParallel": "parallel.pipeline_parallel",
    "Point": "points",
    "Record": "records",
    "Replace": "replace",
    "Run": "run",
    "Runner": "presets.runner",
    "SeededSamples": "engine.seeded_samples",
    "Sharded": "parallel.sharded",
    "StopRun": "errors",
    "Store": "store",
    "TensorParallel": "parallel.tensor_parallel",
    "When": "when",
    "callbacks": "callbacks",
    "current_run": "current",
    "declare": "points",
    "errors": "errors",
    "guard": "guard",
    "guarding": "guard",
    "install": "guard",
    "load_weights": "storage.load_weights",
    "log": "current",
    "on": "on",
    "plot": "presets.plot",
    "points": "points",
    "prove": "presets.prove",
    "run_each": "routine",
    "verify": "storage.verify",
}

__all__ = [
    "After",
    "AsyncSGD",
    "At",
    "Before",
    "Between",
    "Callback",
    "CallbackFactory",
    "CallbackPipeline",
    "DataParallel",
    "EnableCallbackIf",
    "Every",
    "HookedLoader",
    "HookpointError",
    "HookpointWarning",
    "Hooks",
    "HyperParam",
    "If",
    "LambdaCallback",
    "Loop",
    "MainCallBack",
    "MainCallback",
    "ObjAttrParam",
    "Once",
    "ParameterAveraging",
    "PeriodicCallback",
    "PeriodicTrigger",
    "PipelineParallel",
    "Point",
    "Record",
    "Replace",
    "Run",
    "Runner",
    "SeededSamples",
    "Sharded",
    "StopRun",
    "Store",
    "TensorParallel",
    "When",
    "__version__",
    "callbacks",
    "current_run",
    "declare",
    "errors",
    "guard",
    "guarding",
    "install",
    "load_weights",
    "log",
    "on",
    "plot",
    "points",
    "prove",
    "run_each",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"hookpoint has no '{name}'")
    where = _WHERE[name]
    package = "hookpoint" if "." in where or name == "callbacks" else "hookpoint.core"
    try:
        module = import_module(f"{package}.{where}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"hookpoint.{name} needs PyTorch: pip install 'hookpoint[torch]'") from error
    value = module if name in ("callbacks", "errors") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
