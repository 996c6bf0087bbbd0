"""`hookpoint clean`: delete files that a run no longer needs."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from hookpoint.cli._clean_plan import Deletion, Plan, plan_deletions
from hookpoint.cli._output import Column, note, print_lines, table, width
from hookpoint.cli._run_argument import run_argument
from hookpoint.run_folder.command_error import IN_USE, NOT_WRITTEN, USAGE, CommandError
from hookpoint.run_folder.formatting import counted, shown, size
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, MANIFEST, PREVIOUS, is_leftover
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir import named_links
from hookpoint.storage.workdir.lock import NAME as LOCK
from hookpoint.storage.workdir.lock import WorkdirLock, holder_of

NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY)


@click.command()
@run_argument
@click.option("--logs", is_flag=True, help="Also delete scalars.jsonl, events.jsonl and TensorBoard's files.")
@click.option("--previous", is_flag=True, help="Also delete earlier runs, in previous/.")
@click.option("--all", "everything", is_flag=True, help="Delete the whole run.")
@click.option("--tag", "tags", multiple=True, help="Also delete checkpoints with this tag; repeatable.")
@click.option("-n", "--dry-run", is_flag=True, help="Only print what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def clean(
    run: RunFolder, logs: bool, previous: bool, everything: bool, tags: tuple[str, ...], dry_run: bool, yes: bool
) -> None:
    """Delete old checkpoints of RUN. First print what would be deleted and the space this frees, then ask for confirmation.

    The command keeps the newest valid checkpoint, which it verifies first. It also keeps the newest checkpoint with each
    best-... tag, and the best-... folders. It keeps checkpoints that are damaged or were saved after an exception. It keeps
    checkpoints without a tag, and checkpoints with a tag that no saver uses, such as "manual", unless --tag names the tag. It
    never deletes files that hookpoint did not create. The command fails if a process is writing to the run.

    \b
    Examples:
      hookpoint clean mine --dry-run
      hookpoint clean mine --previous --yes
      hookpoint clean mine --all
    """
    _refuse_running(run)

    def plan() -> Plan:
        fresh = RunFolder(run.path)
        return plan_deletions(fresh, logs=logs, previous=previous, everything=everything, tags=frozenset(tags))

    printed = plan()
    if not printed.deletions:
        kept = f"; {counted(len(printed.kept), 'checkpoint')} kept" if printed.kept else ""
        note(f"nothing to delete in {shown(run.path)}{kept}")
        return
    _print(printed)
    if dry_run:
        return
    if not yes and not _is_confirmed():
        note("nothing was deleted")
        return
    freed = printed.freed_bytes
    with _locked(run.path, delete=everything):
        deletions = [deletion for deletion in plan().deletions if deletion in printed.deletions]  # delete only what was printed
        not_empty = [path for deletion in deletions for path in _delete(deletion)]
        if not everything:
            named_links.remove_broken(run.path)
    note(f"deleted {counted(sum(len(deletion.files) for deletion in deletions), 'file')}, {size(freed)}")
    if not_empty:
        note(f"not deleted, because it contains other files: {', '.join(map(shown, not_empty[:5]))}")


def _refuse_running(run: RunFolder) -> None:
    holder = holder_of(run.path)
    if holder is not None:
        cure = f"wait until it ends, or delete {shown(run.path / LOCK)} if that process has ended"
        raise CommandError(f"{shown(holder)} is writing to {shown(run.path)}; {cure}", IN_USE)


def _print(plan: Plan) -> None:
    limit = width()
    columns, inner = [Column(min_width=20), Column(drop=1), Column(wraps=True)], None if limit is None else limit - 2
    deleted = [(shown(item.what), counted(len(item.files), "file"), shown(item.why)) for item in plan.deletions]
    kept = [(shown(name), "", shown(why)) for name, why in plan.kept]
    for title, rows in (("to delete:", deleted), ("to keep:", kept)):
        print_lines([title, *(f"  {line}" for line in table(columns, rows, inner))] if rows else [])
    print_lines([f"this frees {size(plan.freed_bytes)}"])


def _is_confirmed() -> bool:
    click.echo("delete? [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer:
        raise CommandError("no answer, so nothing was deleted; --yes deletes without asking", USAGE)
    return answer.strip().lower() in ("y", "yes")


def _delete(deletion: Deletion) -> list[Path]:
    """Delete files, then empty folders. Return the folders that are not empty."""
    not_empty: list[Path] = []
    try:
        files, folders = _hide(deletion)
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
                not_empty.append(folder)
    except OSError as error:
        raise CommandError(f"{shown(deletion.what)} could not be deleted: {error.strerror or error}", NOT_WRITTEN) from error
    return [folder for folder in not_empty if folder.name not in (PREVIOUS, CHECKPOINTS)]


def _hide(deletion: Deletion) -> tuple[Sequence[Path], Sequence[Path]]:
    """Rename a checkpoint before its files are deleted, so that no reader finds it half deleted. Return its files and folders.

    If the folder contains other files, rename only the manifest, so that the next `clean` recognizes the folder.
    """
    folder, files = deletion.checkpoint, list(deletion.files)
    if folder is None or is_leftover(folder.name) or not files:
        return files, deletion.folders
    if {path.name for path in files} == set(disk.names(folder)):
        new = folder.with_name(disk.hidden("deleting", folder.name))
        disk.rename(folder, new)
        disk.sync_folder(folder.parent)
        return [new / path.name for path in files], (new,)
    if files[0].name == MANIFEST:
        manifest = folder / disk.hidden("deleting", MANIFEST)
        disk.rename(files[0], manifest)
        disk.sync_folder(folder)
        files = [*files[1:], manifest]
    return files, deletion.folders


@contextmanager
def _locked(workdir: Path, *, delete: bool) -> Iterator[None]:
    """Lock the run against other processes. With `delete`, delete the run's folder on exit if the folder is empty."""
    had_lock = os.path.lexists(workdir / LOCK)
    lock = WorkdirLock(workdir)
    try:
        lock.acquire(warn=False)
    except OSError as error:
        raise CommandError(f"{shown(workdir)} cannot be written to: {error.strerror or error}", NOT_WRITTEN) from error
    try:
        yield
        if delete or not had_lock:
            (workdir / LOCK).unlink(missing_ok=True)
    finally:
        lock.release()
    if delete:
        with suppress(OSError):  # the folder contains other files
            workdir.rmdir()
