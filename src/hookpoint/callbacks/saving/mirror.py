"""Mirror: a copy of the run folder in remote storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import positive, string
from hookpoint.callbacks._shared.workdir import require_workdir
from hookpoint.callbacks.saving._mirror_thread import MirrorThread
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.on import OnError, Ranks
from hookpoint.core.checkpoint.store import Resume
from hookpoint.core.errors import BadArgument, BadLoop, CannotResume
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.core.text.secrets import masked
from hookpoint.core.text.terminal import say
from hookpoint.storage.checkpoint.layout import Place
from hookpoint.storage.remote.remote_folder import RemoteFolder, is_url
from hookpoint.storage.remote.restore import restore
from hookpoint.storage.remote.upload import Upload, newest_complete
from hookpoint.storage.run_file import NAME, parse_run_file, read_run_file
from hookpoint.storage.workdir import quarantine
from hookpoint.storage.workdir.catalog import places
from hookpoint.storage.workdir.lock import holder_of


class Mirror(Callback):
    """Mirror the run folder to remote storage in the background, and resume from there on a fresh machine.

        url: A folder that only this run uses, such as "s3://bucket/runs/mine". S3 needs `pip install 'hookpoint[remote]'`;
            other storage needs the fsspec package for its scheme.
        every_seconds: How often logs are uploaded.
        storage_options: Options for fsspec, such as `{"endpoint_url": "http://127.0.0.1:9000"}`. Leave out credentials: the
            client finds them in the environment or its configuration files. Options are never logged or saved.
        final_wait_seconds: How long the run waits for the last upload when it ends.

    After each save, the checkpoint is uploaded: its files first, its manifest last. A checkpoint without a manifest is ignored,
    so if the process is killed during an upload, the earlier checkpoints remain usable. Checkpoints that retention rules delete
    locally are also deleted in the mirror.

    With `resume="auto"` or `"must"`, the run resumes from the mirror if the workdir has no checkpoints, or if the mirror has
    newer checkpoints from the same run. Before the run starts, Mirror downloads the newest intact checkpoint, the logs and the
    best checkpoints. Raises if the mirror contains another run.

    If the storage fails during the run, training continues. Mirror logs one warning and retries the uploads.

    >>> mirror = Mirror("s3://bucket/runs/mine", every_seconds=30)
    """

    on_error: OnError = "warn"
    ranks: Ranks = "chief"
    copies_checkpoints = True  # not allowed in other libraries' trainers, which write their own checkpoints
    step_cost = "nothing; each save takes a microsecond more, and uploads run in a thread"

    def __init__(
        self,
        url: str,
        *,
        every_seconds: float = 60.0,
        storage_options: Mapping[str, Any] | None = None,
        final_wait_seconds: float = 600.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self._url = string("Mirror", "url", url)
        if not is_url(url):
            raise BadArgument(f"Mirror: {url!r} is not a URL.", give='Mirror("s3://bucket/runs/mine")')
        self.every_seconds = positive("Mirror", "every_seconds", every_seconds)
        self.final_wait_seconds = positive("Mirror", "final_wait_seconds", final_wait_seconds)
        self._options = dict(storage_options or {})
        self._remote: RemoteFolder | None = None
        self._thread: MirrorThread | None = None
        self._check_later: Callable[[], None] | None = None  # set if the storage could not be reached at the start

    # The loop calls begin_workdir before the run and end_workdir after it; see core/checkpoint/workdir_callbacks.py

    def begin_workdir(self, run: Run, resume: Resume) -> None:
        """Download the newest checkpoint if the workdir lacks it, before the run searches for one to resume from."""
        owner = str(self.name or "Mirror")
        require_workdir(owner, run)
        workdir = Path(run.workdir)
        self._check_later = None
        self._remote = remote = RemoteFolder(self._url, self._options)
        if holder_of(workdir) is not None:  # another process uses the workdir; an error is raised later
            return
        local = max((place for place, _ in places(workdir)), default=None)
        check = partial(self._check_owner, remote, workdir, resume, has_checkpoints=local is not None)
        try:
            newest = newest_complete(remote)
            if newest is not None:
                check()
                if resume in ("auto", "must") and (local is None or newest > local):
                    if local is None:
                        quarantine.move_run(workdir)
                    self._restore(remote, workdir, local)
            self._upload(remote, workdir).heartbeat()
        except (BadLoop, CannotResume):
            raise
        except Exception as error:  # each storage client raises its own exception classes
            text = remote.without_secrets(f"{type(error).__name__}: {error}")
            if local is not None:
                logger.warning("%s cannot use %s at the moment (%s); resuming from %s", owner, remote.url, text, workdir)
                self._check_later = check
                return
            cures = {"check": "the URL, the credentials and the network", "train": "without Mirror"}
            raise CannotResume(f"{owner} cannot use {remote.url}: {text}", **cures) from None

    def _restore(self, remote: RemoteFolder, workdir: Path, local: Place | None) -> None:
        found = restore(remote, workdir, after=local)
        if found is not None:
            say(f"Downloaded {found.name} from {remote.url}.")
        elif local is None:
            cures = {"start": "over with another URL", "restore": "the files from a backup"}
            raise CannotResume(f"all checkpoints in {remote.url} are damaged.", **cures)

    def _check_owner(self, remote: RemoteFolder, workdir: Path, resume: Resume, *, has_checkpoints: bool) -> None:
        """Raise if the mirror contains another run, so that the checkpoints of two runs are never mixed."""
        theirs, ours = parse_run_file(remote.read(NAME) or b""), read_run_file(workdir)
        is_same = all(theirs.get(name) == ours.get(name) for name in ("id", "started"))
        if has_checkpoints and resume != "never" and is_same:
            return
        if not has_checkpoints and resume in ("auto", "must"):
            return
        since = theirs.get("started", "at an unknown time")
        raise BadLoop(
            f"{self.name or 'Mirror'}: {remote.url} contains another run, started {since}.",
            give="each run its own URL",
            resume='that run with resume="auto" and an empty workdir',
        )

    def end_workdir(self) -> None:
        """Upload the remaining files. When this is called, the workdir no longer changes."""
        thread, self._thread, self._remote = self._thread, None, None
        missing = "" if thread is None else thread.finish(self.final_wait_seconds)
        if missing:
            text = "%s is not complete, because %s. Start the script again to upload the remaining files"
            logger.warning(text, masked(self._url), missing)

    def on_run_begin(self, run: Run) -> None:
        owner, workdir = str(self.name or "Mirror"), run.workdir
        assert self._remote is not None
        assert workdir is not None
        self._thread = MirrorThread(self._upload(self._remote, Path(workdir)), owner, self._remote.without_secrets)
        self._thread.start()

    def on_save(self) -> None:
        if self._thread is not None:
            self._thread.saved()

    def _upload(self, remote: RemoteFolder, workdir: Path) -> Upload:
        return Upload(remote, workdir, every_seconds=self.every_seconds, check=self._check_later)
