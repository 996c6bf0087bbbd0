"""CheckpointConfig: how often ModelCheckpoint saves, and which checkpoints it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookpoint.callbacks._shared.arguments import integer, positive
from hookpoint.callbacks.saving._append_info import AppendInfo
from hookpoint.core.checkpoint.store import Keep
from hookpoint.core.errors import BadArgument
from hookpoint.core.schedule.when import Every, When
from hookpoint.storage.retention import KeepAny, KeepEvery, KeepNewest


class CheckpointConfig:
    """Set how often ModelCheckpoint saves and which checkpoints it keeps, as in MindSpore. 0 or None disables a rule.

    Saves every `save_checkpoint_steps` optimizer steps or `save_checkpoint_seconds` of training, whichever comes first. If you
    pass seconds only, the default of one step does not apply. Keeps the newest `keep_checkpoint_max` checkpoints, including the
    one at the end of the run. In each interval of `keep_checkpoint_per_n_minutes` minutes of training, the first checkpoint is
    kept permanently. If both of these retention rules are disabled, only the newest checkpoint is kept. With
    `async_save=False`, training waits until each checkpoint is on disk. With `exception_save`, a run that ends with an
    exception is also saved.

    `append_info` is stored in each checkpoint's manifest; see `ModelCheckpoint`.

    A checkpoint always contains the complete state, with checksums. Therefore `integrated_save`, `saved_network`, `enc_key`,
    `enc_mode`, `incremental` and `enable_redundance` must keep their default values, and `crc_check` has no effect. To encrypt
    checkpoints, pass `checkpoint_key` to the Runner or Loop.

    >>> config = CheckpointConfig(save_checkpoint_steps=500, save_checkpoint_seconds=600, keep_checkpoint_max=3)
    >>> config.schedule, config.keep
    ((Every(steps=500) | Every(seconds=600)), KeepNewest(number=3))
    """

    def __init__(
        self,
        save_checkpoint_steps: int | None = 1,
        save_checkpoint_seconds: float | None = 0,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_per_n_minutes: float | None = 0,
        integrated_save: bool = True,
        async_save: bool = True,
        saved_network: Any = None,
        append_info: Any = None,
        enc_key: Any = None,
        enc_mode: str = "AES-GCM",
        exception_save: bool = False,
        crc_check: bool = False,
        *,
        incremental: bool = False,
        enable_redundance: bool = False,
    ) -> None:
        _refuse("integrated_save", integrated_save, True, "checkpoints are never split")
        _refuse("saved_network", saved_network, None, "the run's model is saved")
        _refuse("enc_key", enc_key, None, "do not write a key in code; write Runner(checkpoint_key=PATH_OF_KEY_FILE)")
        _refuse("enc_mode", enc_mode, "AES-GCM", "checkpoints are encrypted with AES-GCM only")
        _refuse("incremental", incremental, False, "every checkpoint is complete")
        _refuse("enable_redundance", enable_redundance, False, "every checkpoint is complete")
        self.schedule = _schedule(save_checkpoint_steps or 0, save_checkpoint_seconds or 0)
        self.keep = _keep(keep_checkpoint_max or 0, keep_checkpoint_per_n_minutes or 0)
        AppendInfo("CheckpointConfig", append_info)
        self.append_info = (
            [] if append_info is None else [append_info] if isinstance(append_info, str | Mapping) else list(append_info)
        )
        self.async_save = async_save
        self.exception_save = exception_save


def _schedule(steps: int, seconds: float) -> When:
    rules: list[When] = []
    if steps and not (steps == 1 and seconds):
        rules.append(Every(steps=integer("CheckpointConfig", "save_checkpoint_steps", steps, least=1)))
    if seconds:
        rules.append(Every(seconds=positive("CheckpointConfig", "save_checkpoint_seconds", seconds)))
    if not rules:
        raise BadArgument("CheckpointConfig never saves.", set="save_checkpoint_steps or save_checkpoint_seconds above 0")
    return rules[0] if len(rules) == 1 else rules[0] | rules[1]


def _keep(number: int, minutes: float) -> Keep:
    rules: list[Keep] = []
    if number or not minutes:
        rules.append(KeepNewest(integer("CheckpointConfig", "keep_checkpoint_max", number or 1, least=1)))
    if minutes:
        rules.append(KeepEvery(positive("CheckpointConfig", "keep_checkpoint_per_n_minutes", minutes)))
    return rules[0] if len(rules) == 1 else KeepAny(*rules)


def _refuse(argument: str, value: Any, default: Any, why: str) -> None:
    if value is not default and value != default:
        raise BadArgument(f"CheckpointConfig: {argument} is not supported: {why}.", leave=f"{argument} out")
