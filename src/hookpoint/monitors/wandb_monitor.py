"""WandbMonitor: what was logged, for Weights & Biases."""

from __future__ import annotations

import logging
import netrc
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from hookpoint.core.errors import BadArgument
from hookpoint.core.text.secrets import masked
from hookpoint.monitors._tracking.tracked import Facts, Kept, Tracked
from hookpoint.monitors._tracking.tracker import Tracker
from hookpoint.monitors._tracking.wandb_run import WandbRun, settings

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options

logger = logging.getLogger("hookpoint")

WandbMode = Literal["online", "offline"]
MODES = ("online", "offline")

_said: set[str] = set()


class WandbMonitor(Tracker):
    """Send scalars, settings, events, images, histograms and texts to Weights & Biases, as one wandb run, also after a resume.

    `mode` is "online" or "offline". Without it the variable WANDB_MODE says it, else it is online where there is an API key,
    and offline where there is none, which is said once. Offline needs no account and no network: what is logged is in
    `wandb/offline-run-...` of the workdir, and `wandb sync` sends it whenever one likes. `project` and `entity` are wandb's;
    `params` go to its config besides the settings of the optimizer, with what looks like a secret masked; `settings` are more
    of wandb's own, such as `{"x_disable_stats": False}`.

    Names and the x axis are those of TFEventWriter: `loss` of log steps, `epoch/loss` of epochs, by step. What happened is in
    the summary, such as `hookpoint/stop`, of each kind the latest, and how the run ended is in `hookpoint/ending`; wandb's
    exit code is 0, 1 after an exception, 255 after a signal. wandb shows nothing, takes no output of the script, no signals
    and no facts of the machine, and its process is gone when the run is over, unless runs of one's own are open in it.

    A resumed run goes on with the wandb run that its checkpoint names, or else `wandb.json` in the workdir, and so does one
    that was killed before its first checkpoint. A row that wandb has is not sent again: of a step that runs twice the first
    stands. Offline, each start writes a folder of its own under the one id. A kill with -9 loses what is younger than a second
    or two; those rows are sent by the resumed run, and a few may then be there twice.

    A server that does not answer never holds up a step: a run that cannot be opened within six seconds is written offline,
    and what wandb could not send later stays in its folder. When 1000 records wait, the oldest are dropped; the end of a run
    waits ten seconds for records and ten for wandb.

    Listens to on_setup, on_run_begin, on_records, on_exception and on_run_end. Keeps the id of the wandb run in the
    checkpoint. Runs on the chief. A step pays nothing; the start of a run pays for the import, half a second.

    >>> with Loop([WandbMonitor("mine", mode="offline")], workdir="mine") as run:
    ...     for epoch in run.epochs(1):
    ...         run.log(rate=0.5)
    >>> import os
    >>> [name.partition("-2")[0] for name in os.listdir("mine/wandb") if name.startswith("offline")]
    ['offline-run']
    """

    service = "wandb"
    package = "wandb"
    extra = "wandb"
    file_name = "wandb.json"
    environment: Mapping[str, str] = {"WANDB_ERROR_REPORTING": "false"}

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
        super().__init__(params, **options)
        for name, value in (("project", project), ("entity", entity)):
            if value is not None and not (isinstance(value, str) and value.strip()):
                raise BadArgument(f"WandbMonitor({name}={value!r}) is no name.", give='"mine"')
        if mode is not None and mode not in MODES:
            raise BadArgument(f"WandbMonitor(mode={mode!r}) is none of wandb's ways.", choose="'offline', 'online'")
        self.project, self.entity, self.mode = project, entity, mode
        self.settings = dict(settings or {})

    def where(self, workdir: Path | None) -> str | None:
        return None if workdir is None or self._is_off() else str(workdir.absolute())

    def prepare(self, workdir: Path | None) -> None:
        if workdir is None:
            logger.warning("WandbMonitor does nothing without a workdir, where wandb keeps what it sends")
            return
        if self._is_off():
            return
        settings(**self.settings)  # which imports wandb, and refuses what it does not know
        if self._mode() == "online" and not _has_key(self.settings):
            raise BadArgument("WandbMonitor finds no API key of wandb.", run="wandb login", give='or mode="offline"')
        if self.mode is None and not os.environ.get("WANDB_MODE") and self._mode() == "offline" and "offline" not in _said:
            _said.add("offline")
            logger.warning("WandbMonitor finds no API key, and writes to %s/wandb; `wandb sync` sends it later", workdir)

    def open_run(self, facts: Facts, kept: Kept | None) -> Tracked:
        where = self.where(facts.workdir)
        assert where is not None
        assert facts.workdir is not None
        os.makedirs(facts.workdir, mode=0o700, exist_ok=True)
        run_id = uuid.uuid4().hex[:12] if kept is None else kept.run_id
        given = {
            "project": self.project or os.environ.get("WANDB_PROJECT") or "hookpoint",
            "entity": self.entity,
            "mode": self._mode(),
            "settings": settings(**{"x_sync_dir_suffix": _suffix(facts.workdir, run_id), **self.settings}),
        }
        try:
            return WandbRun(run_id, facts, kept, where, given)
        except Exception as error:
            if given["mode"] == "offline":
                raise
            logger.warning("wandb cannot be reached, so this run is written to %s/wandb: %s", where, masked(str(error)))
            return WandbRun(run_id, facts, kept, where, {**given, "mode": "offline"})

    def _mode(self) -> WandbMode:
        said = self.mode or os.environ.get("WANDB_MODE")
        if said in MODES:
            return cast(WandbMode, said)
        return "online" if _has_key(self.settings) else "offline"

    def _is_off(self) -> bool:
        return self.mode is None and os.environ.get("WANDB_MODE") == "disabled"


def _suffix(workdir: Path, run_id: str) -> str:
    """Return what sets a folder apart from those of earlier starts: wandb names them by the second, and writes over them."""
    number = len(list((workdir / "wandb").glob(f"*-{run_id}*")))
    return str(number + 1) if number else ""


def _has_key(given: Mapping[str, Any]) -> bool:
    """Say whether wandb would find an API key: in its settings, a variable or the file that `wandb login` writes."""
    if given.get("api_key") or os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(str(given.get("base_url") or os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")).hostname
    for path in filter(None, [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]):
        try:
            if netrc.netrc(os.path.expanduser(path)).authenticators(str(host)):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
