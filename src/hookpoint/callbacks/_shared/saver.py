"""Saver: the base class of callbacks that request checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import PurePath
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.schedule_in_run import schedule_in
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.checkpoint.store import Keep
from hookpoint.core.errors import BadArgument, CompileError
from hookpoint.core.logger import logger
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment
from hookpoint.storage.checkpoint.manifest import EXCEPTION
from hookpoint.storage.retention import OWN_TAGS

FILES = (".ckpt", ".h5", ".hdf5", ".keras", ".npz", ".pkl", ".pt", ".pth", ".safetensors", ".zip")


class SaverOptions(Options, total=False):
    """The options that all savers accept."""

    async_save: bool


class Saver(Callback):
    """Request checkpoints under the saver's own tags. Subclasses decide when to save.

    A saver never requests two checkpoints with the same tag at the same moment.

    `rules` maps each tag to its retention rule, or to None to keep all checkpoints. `limits` names the tags whose rule also
    counts the checkpoint written at the end of the run. on_setup raises if two savers use the same tag, because they would
    delete each other's checkpoints. With `async_save`, checkpoints are written in the background. A saver runs on all ranks and
    ignores `ranks`: the store decides which ranks write. If an epoch that is cut short, for example with `break`, is
    not saved, the saver logs one warning.
    """

    saves = same_on_all_ranks = True
    limits: tuple[str, ...] = ()
    keeps: ClassVar[str] = "when the last checkpoint was saved"
    step_cost: ClassVar[str] = "nothing; with a step schedule, one integer comparison"

    def __init__(self, rules: Mapping[str, Keep | None], *, async_save: bool = True, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if EXCEPTION in rules:
            problem = f"the tag '{EXCEPTION}' is reserved: a run never resumes from a checkpoint with this tag"
            raise BadArgument(f"{type(self).__name__}: {problem}.", give="another tag, such as 'model'")
        for tag in OWN_TAGS.intersection(rules):
            problem = f"the tag '{tag}' is reserved: a run deletes its checkpoints with this tag when it has newer ones"
            raise BadArgument(f"{type(self).__name__}: {problem}.", give="another tag, such as 'model'")
        self.async_save = async_save
        self.ranks = "all"  # even if ranks="chief" is passed, because all ranks take part in a save
        self.rules = dict(rules)
        self._requested: dict[str, Moment] = {}
        self._unconfirmed: dict[str, Moment] = {}
        self._missed: int | None = None  # the previous epoch, if the saver was not triggered because the epoch was cut short
        self._has_warned = False

    def on_setup(self, run: Run) -> None:
        for entry in run.hooks.entries:
            rules = entry.subject.rules if isinstance(entry.subject, Saver) and entry.subject is not self else {}
            for tag in self.rules.keys() & rules.keys():
                savers = f"{self.name or type(self).__name__} and {entry.name}"
                give = "one of them another tag=, prefix= or filename="
                problem = f"{savers} both use the tag '{tag}' and would delete each other's checkpoints."
                raise CompileError(problem, keep="one of them", give=give)

    def claims(self, tag: str) -> bool:
        """Return whether this saver owns the checkpoints with a tag."""
        return tag in self.rules

    def on_run_begin(self, run: Run) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard the state of the previous run."""
        self._requested, self._unconfirmed = {}, {}
        self._missed, self._has_warned = None, False

    def on_epoch_begin(self, run: Run) -> None:
        if self._missed is not None and not self._has_warned and run.is_chief:
            self._has_warned = True
            line = "epoch %d was cut short, and %s saves only at the end of complete epochs; use .when(Every(steps=n))"
            logger.warning(line, self._missed, self.name or type(self).__name__)

    def on_epoch_end(self, run: Run) -> None:
        self._missed = None
        if not run.epoch_complete and run.stop_reason is None:
            schedule = schedule_in(run, self)
            is_saved = self.save_incomplete(run) if schedule is None else "iter" in schedule.moments()
            self._missed = None if is_saved else run.epoch

    def save_incomplete(self, run: Run) -> bool:
        """Handle the end of an epoch that was cut short. Return whether this saver saves such epochs. Default: no."""
        return False

    def request(self, run: Run, tag: str, *, measured: Mapping[str, Any] | None = None) -> None:
        """Request a checkpoint, unless this saver has already requested one with the same tag at the current moment.

        `measured` is the manifest entry for the metric value.
        """
        last, now = self._requested.get(tag), run.moment
        if last is None or not last.is_same(now):
            self._requested[tag] = self._unconfirmed[tag] = now
            run.save(tag, keep=self.rules[tag], in_background=self.async_save, measured=measured)

    def on_save(self, tags: Sequence[str]) -> None:
        self._unconfirmed = {tag: moment for tag, moment in self._unconfirmed.items() if tag not in tags}

    def take_results(self, run: Run) -> None:
        """Handle the results of a validation pass inside a training iteration. By default, do nothing."""

    def was_lost(self, run: Run, tag: str) -> bool:
        """Return whether writing the last requested checkpoint failed. Each failure is reported once.

        A request in the middle of an accumulation window is served at the next step. While a checkpoint is still being written
        in the background, this returns False.
        """
        moment = self._unconfirmed.get(tag)
        if moment is None or (run.step <= moment.step + 1 and run.epoch <= moment.epoch):
            return False
        if machine_of(run).saving.is_writing:
            return False
        del self._unconfirmed[tag]
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"asked": {tag: list(moment) for tag, moment in self._requested.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        epoch = 0 if self._run is None else self._run.epoch  # older checkpoints store only the step
        self._requested = {
            tag: Moment(epoch, None, at) if isinstance(at, int) else Moment(*at) for tag, at in state["asked"].items()
        }
        self._unconfirmed = {}


def measured(metric: str, mode: str, value: float, moment: Moment) -> dict[str, Any]:
    """Return the manifest entry for the metric value that a checkpoint is saved for."""
    return {"metric": metric, "mode": mode, "value": value, **moment.fields()}


def is_claimed(run: Run, tag: str, besides: Callback) -> bool:
    """Return whether another saver owns the checkpoints with a tag."""
    savers = [entry.subject for entry in run.hooks.entries if isinstance(entry.subject, Saver)]
    return any(saver.claims(tag) for saver in savers if saver is not besides)


def is_in_training(run: Run) -> bool:
    """Return whether a training pass is open. Another pass, such as validation, may be running inside it."""
    passes = machine_of(run).scopes.passes
    return bool(passes) and passes[0].mode == "train"


def handle_results(run: Run) -> None:
    """Let the savers handle new results of a validation pass inside a training iteration.

    Call this after the results are logged, because the next step changes the weights. A saver takes part under the same
    conditions as in its handler for on_val_epoch_end: wrappers such as EnableCallbackIf and `on_error` apply.
    """
    for entry in run.hooks.entries if is_in_training(run) else ():
        if isinstance(entry.subject, Saver) and all(gate.ready(run, None) for gate in entry.gates()):
            entry.contained(entry.subject.take_results, "on_val_epoch_end")(run)


def reject_path(owner: str, argument: str, path: object) -> None:
    """Raise if the user passes a path for checkpoints, because a run resumes only from checkpoints in its workdir."""
    if path is not None:
        leave = f"{argument} out, and pass workdir={_folder(path)!r} to the Runner or Loop"
        raise BadArgument(f"{owner}: {argument} is not supported; checkpoints are in the workdir.", leave=leave)


def _folder(path: object) -> str:
    """Return the folder part of a path, which may end with a file name or a template for file names."""
    plain = PurePath(*takewhile(lambda name: "{" not in name, PurePath(str(path)).parts))
    folder = plain.parent if plain.suffix in FILES else plain
    return "runs/mine" if folder == PurePath() else str(folder)
