"""Saver: what the callbacks that ask for checkpoints have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any, Unpack

from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.checkpoint.store import Keep
from hookpoint.core.errors import BadArgument, CompileError
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment

FILES = (".ckpt", ".h5", ".hdf5", ".keras", ".npz", ".pkl", ".pt", ".pth", ".safetensors", ".zip")


class Saver(Callback):
    """Ask for checkpoints with tags of its own, once per moment; derived classes say when.

    `rules` has each tag, with the rule of which checkpoints stay, or None where all do; `limits` the tags among them whose rule
    counts the checkpoint of the run's end, too. Two savers with one tag would delete each other's checkpoints: that is refused
    at on_setup. Keeps the moments it last asked at in the checkpoint. Runs on all ranks, whatever `ranks` says: whether one or
    all of them write is for the store to know.
    """

    saves = same_on_all_ranks = True
    limits: tuple[str, ...] = ()

    def __init__(self, rules: Mapping[str, Keep | None], **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.ranks = "all"  # also where the chief is asked for: it writes what all of them have saved together
        self.rules = dict(rules)
        self._asked: dict[str, Moment] = {}
        self._awaited: dict[str, Moment] = {}

    def on_setup(self, run: Run) -> None:
        own = self.name or type(self).__name__
        for entry in run.hooks.entries:
            others = entry.subject.rules if isinstance(entry.subject, Saver) and entry.subject is not self else {}
            for tag in self.rules.keys() & others.keys():
                raise CompileError(
                    f"{own} and {entry.name} both keep '{tag}', and would delete each other's checkpoints.",
                    keep="one of them",
                    give="or the other one another tag=, prefix= or filename=, whichever it takes",
                )

    def claims(self, tag: str) -> bool:
        """Say whether checkpoints with this tag are this saver's."""
        return tag in self.rules

    def on_run_begin(self, run: Run) -> None:
        if not run.resuming:
            self.reset()

    def reset(self) -> None:
        """Forget the run before."""
        self._asked, self._awaited = {}, {}

    def ask(self, run: Run, tag: str, *, in_background: bool = False, measured: Mapping[str, Any] | None = None) -> None:
        """Ask for a checkpoint of this moment, unless that was done; `measured` is the value it is for."""
        last, now = self._asked.get(tag), run.moment
        if last is None or not last.is_same(now):
            self._asked[tag] = now
            if not in_background:
                self._awaited[tag] = now
            run.save(tag, keep=self.rules[tag], in_background=in_background, measured=measured)

    def on_save(self, tags: Sequence[str]) -> None:
        self._awaited = {tag: moment for tag, moment in self._awaited.items() if tag not in tags}

    def was_lost(self, run: Run, tag: str) -> bool:
        """Say, once, whether the checkpoint that was asked for last could not be written."""
        asked_at = self._awaited.get(tag)
        if asked_at is None or not _has_passed(asked_at, run):
            return False
        del self._awaited[tag]
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"asked": {tag: list(moment) for tag, moment in self._asked.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        epoch = 0 if self._run is None else self._run.epoch  # older checkpoints have the step only
        self._asked = {
            tag: Moment(epoch, None, at) if isinstance(at, int) else Moment(*at) for tag, at in state["asked"].items()
        }
        self._awaited = {}


def _has_passed(asked_at: Moment, run: Run) -> bool:
    """Say whether what was asked for must have been written: in the middle of a window that is with the next step."""
    return run.step > asked_at.step + 1 or run.epoch > asked_at.epoch


def measured(metric: str, mode: str, value: float, moment: Moment) -> dict[str, Any]:
    """Return what the manifest of a checkpoint says of the value that it was saved for."""
    return {"metric": metric, "mode": mode, "value": value, **moment.fields()}


def is_claimed(run: Run, tag: str, besides: Callback) -> bool:
    """Say whether checkpoints with this tag are another saver's."""
    savers = [entry.subject for entry in run.hooks.entries if isinstance(entry.subject, Saver)]
    return any(one.claims(tag) for one in savers if one is not besides)


def is_in_training(run: Run) -> bool:
    """Say whether the pass that is ending now was made inside a training pass, as in the body of an iteration."""
    passes = machine_of(run).scopes.passes
    return bool(passes) and passes[0].mode == "train"


def refuse_place(owner: str, argument: str, given: object) -> None:
    """Refuse to be told a folder: all checkpoints of a run are in one place, where a resume finds them."""
    if given is not None:
        raise BadArgument(
            f"{owner}({argument}={given!r}): checkpoints are in the checkpoints/ folder of the run's workdir.",
            leave=f"{argument} out, and give the Runner or Loop workdir={_folder(given)!r}",
        )


def _folder(given: object) -> str:
    """Return the folder that was meant: of a file, or of a template for the names of files, the one that it is in."""
    parts = PurePath(str(given)).parts
    plain = PurePath(*takewhile(lambda part: "{" not in part, parts))
    folder = plain.parent if plain.suffix in FILES else plain
    return "runs/mine" if folder == PurePath() else str(folder)


def named(owner: str, argument: str, given: Any) -> str:
    """Return a name, or refuse what is none."""
    if not isinstance(given, str) or not given:
        raise BadArgument(f"{owner}({argument}={given!r}) is no name.", give="a string that is not empty")
    return given


def positive(owner: str, argument: str, given: Any, *, kind: type = int, **cures: str) -> Any:
    """Return a number above 0, or refuse it."""
    is_number = isinstance(given, int if kind is int else int | float) and not isinstance(given, bool)
    if not is_number or not 0 < given < float("inf"):
        what = "an integer ≥ 1" if kind is int else "a number > 0"
        raise BadArgument(f"{owner}: {argument} must be {what}, got {given!r}.", **cures)
    return given
