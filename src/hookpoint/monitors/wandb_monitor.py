"""WandbMonitor: send records to Weights & Biases."""

from __future__ import annotations

import html
import logging
import netrc
import os
import sys
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Literal, Unpack, cast
from urllib.parse import urlsplit

from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.records import Record
from hookpoint.core.text.secrets import masked
from hookpoint.monitors._chart_values import call_each, chart_scalars, finite, to_images
from hookpoint.monitors._tracker import RemoteRun, Tracker, event_lines

logger = logging.getLogger("hookpoint")

WandbMode = Literal["online", "offline"]
MODES = ("online", "offline")
EXIT_CODES = {"finished": 0, "failed": 1, "killed": 255}  # 255 is wandb's code for Ctrl-C
SERVICE = "WANDB_SERVICE"  # environment variable that wandb sets while its process is running
FLUSH_SECONDS = 1.0  # time between writes to wandb's file; a killed process loses the values since the last write
SETTINGS: dict[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "finish_timeout": 8.0,  # shorter than the time that an ending run waits for wandb to finish
    "init_timeout": 6.0,  # shorter than the time that an ending run waits for its records to be sent
    "silent": True,
    "symlink": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": FLUSH_SECONDS,
}

_warned: set[str] = set()


class WandbRun(RemoteRun):
    """A Weights & Biases run, on a wandb server or in a local folder.

    wandb stores one row per step and cannot add to an earlier row, so a resumed run does not send rows that wandb already has.
    The step of wandb's last row is read from wandb's server. In offline mode, it is read from `wandb.json` in the workdir.
    """

    monitor: WandbMonitor

    def first_id(self) -> str:
        return self.previous_id(None) or uuid.uuid4().hex[:12]

    def open(self, run_id: str | None) -> str:
        run_id = run_id or self.first_id()
        mode = self.monitor.current_mode()
        try:
            self._init(run_id, mode)
        except Exception as error:
            if mode == "offline":
                raise
            logger.warning("wandb is not reachable; writing this run to %s/wandb: %s", self.address, masked(str(error)))
            self._init(run_id, "offline")
        if self._run.resumed:
            self.sent_step = max(self.sent_step, self._run.starting_step - 1)
        self._first_step = self.sent_step + 1
        self._step: int | None = None
        self._unflushed: deque[tuple[float, int]] = deque()  # complete steps, each with the time of its last value
        return run_id

    def _init(self, run_id: str, mode: WandbMode) -> None:
        import wandb

        folder = Path(self.address) / "wandb"
        os.makedirs(folder.parent, mode=0o700, exist_ok=True)
        # wandb names a folder by the time in seconds. Without a suffix, two starts in the same second could share a folder.
        starts = len(list(folder.glob(f"*-{run_id}*")))
        suffix = str(starts + 1) if starts else ""
        self._owns_service = SERVICE not in os.environ
        hooks = sys.exit, sys.excepthook
        try:
            self._run: Any = wandb.init(
                id=run_id,
                name=self.name,
                dir=self.address,
                project=self.monitor.project or os.environ.get("WANDB_PROJECT") or "hookpoint",
                entity=self.monitor.entity,
                mode=mode,
                settings=wandb_settings({"x_sync_dir_suffix": suffix, **self.monitor.settings}),
                config={name: value for name, value in self.settings.items() if value is not None},
                resume="allow",
                reinit="create_new",
            )
        except BaseException:
            if self._owns_service:
                wandb.teardown()
            raise
        finally:
            sys.exit, sys.excepthook = hooks  # undo wandb's changes to these functions

    def send(self, records: list[Record]) -> None:
        call_each(self._send, records)
        while self._unflushed and self._unflushed[0][0] + 2 * FLUSH_SECONDS < monotonic():
            self.sent_step = self._unflushed.popleft()[1]

    def _send(self, record: Record) -> None:
        if record.kind == "event":
            for name, line in event_lines(record).items():
                self._run.summary.update({f"hookpoint/{name}": line})
        elif record.kind != "embedding" and record.step >= self._first_step:
            if self._step is not None and record.step != self._step:
                self._unflushed.append((monotonic(), self._step))
            self._step = record.step
            self._run.log(_values(record), step=record.step)

    def finish(self) -> None:
        import wandb

        try:
            self._run.summary.update({"hookpoint/ending": self.message or self.status})
            self._run.finish(exit_code=EXIT_CODES[self.status])
            self.sent_step = self.sent_step if self._step is None else self._step
        finally:
            if self._owns_service and wandb.run is None:
                wandb.teardown()


class WandbMonitor(Tracker):
    """Send scalars, settings, events, images, histograms and texts to Weights & Biases. A resumed run continues its wandb run.

    project, entity: As in wandb. The project defaults to the environment variable WANDB_PROJECT, then to "hookpoint".
    mode: "online" or "offline". Defaults to the environment variable WANDB_MODE, then to online if there is an API key. If
        there is no key, the mode is offline, and the monitor logs a warning once. Offline mode needs no account and no network:
        the run is written to `wandb/offline-run-...` in the workdir, and `wandb sync` can send it later.
    params: Settings to store in wandb's config, in addition to the optimizer's settings. Values that look like secrets are
        masked.
    settings: Additional wandb settings, such as `{"x_disable_stats": False}`.

    Names and the x axis are the same as in TFEventWriter: `loss` for log steps and `epoch/loss` for epochs, plotted against the
    step. The latest event of each kind is stored in the summary, under a name such as `hookpoint/stop`.
    `hookpoint/ending` says how the run ended. The exit code in wandb is 0, or 1 after an exception, or 255 after a signal.
    wandb prints nothing, and captures no output, no signals and no system information. wandb's process ends with the run,
    unless other wandb runs are open.

    A resumed run continues the wandb run whose id is stored in the checkpoint. If the checkpoint contains no id, the id is read
    from `wandb.json` in the workdir. A run that was killed before its first checkpoint also continues its wandb run when you
    start it again. A row that wandb already has is not sent again: if a step runs twice, the first row is kept. In offline
    mode, each start creates a new folder with the same run id. `kill -9` loses the rows of the last second or two. The resumed
    run sends these rows again, so a few rows may exist twice.

    A server that does not respond never blocks a step. If a run cannot be opened within 6 s, it is written offline. If the
    server fails later, unsent data stays in wandb's folder. If more than 1000 records are waiting, the oldest are dropped. When
    a run ends, it waits up to 10 s for the remaining records to be sent, and then up to 10 s for wandb to finish.

    >>> with Loop([WandbMonitor("mine", mode="offline")], workdir="mine") as run:
    ...     for epoch in run.epochs(1):
    ...         run.log(rate=0.5)
    >>> import os
    >>> [name.partition("-2")[0] for name in os.listdir("mine/wandb") if name.startswith("offline")]
    ['offline-run']
    """

    keeps = "the id of the wandb run"
    step_cost: ClassVar[str] = "nothing; at the start of a run, importing wandb takes half a second"

    service = "wandb"
    remote_class = WandbRun
    variables: ClassVar[Mapping[str, str]] = {"WANDB_ERROR_REPORTING": "false"}

    def __init__(
        self,
        project: str | None = None,
        *,
        mode: WandbMode | None = None,
        entity: str | None = None,
        params: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, {"project": project, "entity": entity}, **options)
        if mode is not None and mode not in MODES:
            raise BadArgument(f"WandbMonitor: unknown mode {mode!r}.", choose="'offline', 'online'")
        self.project, self.entity, self.mode = project, entity, mode
        self.settings = dict(settings or {})

    def prepare(self, workdir: Path | None) -> str | None:
        if workdir is None:
            logger.warning("WandbMonitor does nothing without a workdir, where wandb stores its data")
            return None
        if self.mode is None and os.environ.get("WANDB_MODE") == "disabled":
            return None
        wandb_settings(self.settings)  # imports wandb, which raises for unknown settings
        mode = self.current_mode()
        if mode == "online" and not self._has_key():
            raise BadArgument("WandbMonitor: wandb has no API key.", run="wandb login", write='mode="offline" instead')
        if mode == "offline" and self.mode is None and not os.environ.get("WANDB_MODE") and "offline" not in _warned:
            _warned.add("offline")
            logger.warning("WandbMonitor: no API key, writing to %s/wandb; `wandb sync` can upload the run later", workdir)
        return str(workdir.absolute())

    def current_mode(self) -> WandbMode:
        """Return the mode that the user has set with the argument `mode` or in WANDB_MODE.

        If it is not set, return "online" if there is an API key, otherwise "offline".
        """
        mode = self.mode or os.environ.get("WANDB_MODE")
        return cast(WandbMode, mode) if mode in MODES else "online" if self._has_key() else "offline"

    def _has_key(self) -> bool:
        """Return whether wandb has an API key.

        The key may be in wandb's settings, in an environment variable or in the file that `wandb login` writes.
        """
        settings, variables = self.settings, os.environ
        if settings.get("api_key") or variables.get("WANDB_API_KEY") or variables.get("WANDB_IDENTITY_TOKEN_FILE"):
            return True
        url = str(settings.get("base_url") or variables.get("WANDB_BASE_URL") or "https://api.wandb.ai")
        for path in filter(None, [variables.get("NETRC"), "~/.netrc", "~/_netrc"]):
            with suppress(OSError, netrc.NetrcParseError):
                if netrc.netrc(os.path.expanduser(path)).authenticators(str(urlsplit(url).hostname)):
                    return True
        return False


def wandb_settings(extra: Mapping[str, Any]) -> Any:
    """Return wandb's settings: our defaults that this version of wandb supports, and the user's settings."""
    import wandb

    known = wandb.Settings.model_fields
    return wandb.Settings(**{name: value for name, value in SETTINGS.items() if name in known} | dict(extra))


def _values(record: Record) -> dict[str, Any]:
    """Return a record's values, converted to wandb's types and keyed by name."""
    import wandb

    if record.kind == "scalars":
        return dict(chart_scalars(record))
    values: dict[str, Any] = {}
    for name, value in record.values.items():
        # wandb creates a file with this name, which must stay inside wandb's folder
        name = "/".join(part if part.strip(".") else "_" for part in name.replace("\\", "/").replace("\0", "_").split("/"))
        if record.kind == "image":
            images = [wandb.Image(image) for image in to_images(name, value)]
            values[name] = images if len(images) > 1 else images[0]
        elif record.kind == "histogram":
            numbers = finite(value)
            if numbers.size:
                values[name] = wandb.Histogram(numbers.ravel())
        elif record.kind == "text":
            values[name] = wandb.Html(f"<pre>{html.escape(str(value))}</pre>", inject=False)
    return values
