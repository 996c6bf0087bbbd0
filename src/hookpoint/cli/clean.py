"""`hookpoint clean`: delete what a run no longer needs."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from hookpoint.cli.clean_plan import Deletion, Plan, planned
from hookpoint.cli.output import note, put, width
from hookpoint.cli.run_argument import run_argument
from hookpoint.cli.table import Column, table
from hookpoint.core.errors import WorkdirInUse
from hookpoint.run_folder.command_error import IN_USE, NOT_WRITTEN, USAGE, CommandError
from hookpoint.run_folder.formatting import counted, shown, size
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, MANIFEST, PREVIOUS, is_leftover
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir.lock import NAME as LOCK
from hookpoint.storage.workdir.lock import WorkdirLock, holder_of

NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY)


@click.command()
@run_argument
@click.option("--logs", is_flag=True, help="Delete scalars.jsonl, events.jsonl and TensorBoard's files too.")
@click.option("--previous", is_flag=True, help="Delete earlier runs that were moved aside, in previous/, too.")
@click.option("--all", "everything", is_flag=True, help="Delete everything of the run.")
@click.option("--tag", "tags", multiple=True, help="Checkpoints with this tag may go, too; may be given more than once.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def clean(
    run: RunFolder, logs: bool, previous: bool, everything: bool, tags: tuple[str, ...], dry_run: bool, yes: bool
) -> None:
    """Delete old checkpoints of RUN, after saying what and how much that frees.

    The newest checkpoint that is good stays, which is verified first; so do the newest of each best-..., the best-... folders,
    what was damaged or is of an exception, and every checkpoint with a tag that is not of a saver, such as "manual". Nothing
    is deleted of a run that a process is writing to, nor any file that is not hookpoint's.

    \b
    Examples:
      hookpoint clean mine --dry-run
      hookpoint clean mine --previous --yes
      hookpoint clean mine --all
    """
    _refuse_running(run)

    def plan() -> Plan:
        fresh = RunFolder(run.path)
        return planned(fresh, checkpoints=True, logs=logs, previous=previous, everything=everything, tags=frozenset(tags))

    first = plan()
    if not first.deletions:
        note(f"nothing to delete in {shown(run.path)}" + _kept_words(first))
        return
    _tell(first)
    if dry_run:
        return
    if not yes and not _is_confirmed():
        note("nothing was deleted")
        return
    freed = first.freed_bytes
    with _held(run.path, and_gone=everything):
        sure = [one for one in plan().deletions if one in first.deletions]  # what is new since then was not shown
        left = [path for one in sure for path in _delete(one)]
    note(f"deleted {counted(sum(len(one.files) for one in sure), 'file')}, {size(freed)}")
    if left:
        note(f"left, with files that are not hookpoint's: {', '.join(shown(path) for path in left[:5])}")


def _refuse_running(run: RunFolder) -> None:
    holder = holder_of(run.path)
    if holder is not None:
        gone = f", or delete {shown(run.path / LOCK)} if that process does not run any more"
        raise CommandError(f"{shown(run.path)} is being written to by {shown(holder)}; wait until it ends{gone}", IN_USE)


def _tell(plan: Plan) -> None:
    rows = [(shown(one.what), counted(len(one.files), "file"), shown(one.why)) for one in plan.deletions]
    put(["to delete:"])
    put(
        f"  {line}"
        for line in table([Column("", least=20), Column("", goes=1), Column("", flows=True)], rows, _inner(), head=False)
    )
    if plan.kept:
        put(["to keep:"])
        rows_kept = [(shown(name), shown(why)) for name, why in plan.kept]
        put(f"  {line}" for line in table([Column("", least=20), Column("", flows=True)], rows_kept, _inner(), head=False))
    put([f"this frees {size(plan.freed_bytes)}"])


def _inner() -> int | None:
    limit = width()
    return None if limit is None else limit - 2


def _kept_words(plan: Plan) -> str:
    return f"; {counted(len(plan.kept), 'checkpoint')} kept" if plan.kept else ""


def _is_confirmed() -> bool:
    click.echo("delete? [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer:
        raise CommandError("nobody answered, and nothing was deleted; --yes deletes without asking", USAGE)
    return answer.strip().lower() in ("y", "yes")


def _delete(one: Deletion) -> list[Path]:
    """Delete files and folders that are empty then; return the folders that are not."""
    left: list[Path] = []
    try:
        files, folders = _hidden(one)
        for path in files:
            path.unlink(missing_ok=True)
        for folder in folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in NOT_EMPTY:
                    raise
                left.append(folder)
    except OSError as error:
        raise CommandError(f"{shown(one.what)} could not be deleted: {error.strerror or error}", NOT_WRITTEN) from error
    return [folder for folder in left if folder.name not in (PREVIOUS, CHECKPOINTS)]


def _hidden(one: Deletion) -> tuple[Sequence[Path], Sequence[Path]]:
    """Rename what is about to be deleted, so that a kill leaves nothing that looks like a checkpoint; return files and folders.

    Where files of others are in the folder, it keeps its name, and the manifest gets one by which the next `clean` knows it.
    """
    folder, files = one.checkpoint, list(one.files)
    if folder is None or is_leftover(folder.name) or not files:
        return files, one.folders
    if {path.name for path in files} == set(disk.names(folder)):
        new = folder.with_name(disk.hidden("deleting", folder.name))
        disk.rename(folder, new)
        disk.sync_folder(folder.parent)
        return [new / path.name for path in files], (new,)
    if files[0].name == MANIFEST:
        mark = folder / disk.hidden("deleting", MANIFEST)
        disk.rename(files[0], mark)
        disk.sync_folder(folder)
        files = [*files[1:], mark]
    return files, one.folders


@contextmanager
def _held(workdir: Path, *, and_gone: bool) -> Iterator[None]:
    """Hold the run against every process that would start it now, and delete its folder at the end if that is to go."""
    had_lock = os.path.lexists(workdir / LOCK)
    lock = WorkdirLock(workdir)
    logger = logging.getLogger("hookpoint")
    was_disabled, logger.disabled = logger.disabled, True  # that a killed run left its lock is known
    try:
        lock.acquire()
    except WorkdirInUse:
        raise
    except OSError as error:
        raise CommandError(f"{shown(workdir)} cannot be written to: {error.strerror or error}", NOT_WRITTEN) from error
    finally:
        logger.disabled = was_disabled
    try:
        yield
        if and_gone or not had_lock:
            (workdir / LOCK).unlink(missing_ok=True)
    finally:
        lock.release()
    if and_gone:
        try:
            workdir.rmdir()
        except OSError:  # something else is in it, or somebody stands in it
            pass
