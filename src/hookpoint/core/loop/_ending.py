"""How a pass ends before its data is exhausted, and which exception the end of a run raises or suppresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import StopRun

if TYPE_CHECKING:
    from hookpoint.core.loop._passes import Pass
    from hookpoint.core.loop._saving import Saving
    from hookpoint.core.loop._scopes import Scopes
    from hookpoint.core.loop._signals import Signals
    from hookpoint.core.run.verdicts import Verdicts


def is_handled(
    error: BaseException | None, failure: BaseException | None, problems: list[Exception], ending: BaseException | None
) -> bool:
    """Return whether to suppress the exception from the loop's body, or raise the exception that replaces it.

    `failure` is the error that ended the run. `problems` are errors from on_run_end. `ending` is the exception to raise if a
    signal stopped the run.
    """
    if failure is not None:
        for problem in problems:
            failure.add_note(f"on_run_end failed too: {type(problem).__name__}: {problem}")
        if failure is not error:
            raise failure
        return False
    if ending is not None:
        for problem in problems:
            ending.add_note(f"on_run_end failed: {type(problem).__name__}: {problem}")
        raise ending
    if problems:
        raise problems[0] if len(problems) == 1 else ExceptionGroup("callbacks failed at on_run_end", problems)
    return isinstance(error, StopRun)


def errors_of(function: Callable[..., object], *arguments: Any) -> list[Exception]:
    """Call a function and return its error, if any, so that the caller can continue."""
    try:
        function(*arguments)
    except Exception as error:
        return [error]
    return []


class PassEnd:
    """The rules that end a pass before its data is exhausted."""

    def __init__(self, verdicts: Verdicts, signals: Signals, saving: Saving, scopes: Scopes) -> None:
        self._verdicts, self._signals, self._saving, self._scopes = verdicts, signals, saving, scopes

    def is_due(self, pass_: Pass, *, has_batch: bool = False) -> bool:
        """Return whether a verdict or a signal ends the pass here. With `has_batch`, a batch has been fetched but not used."""
        verdicts, signals = self._verdicts, self._signals
        # A signal ends every pass.
        stops = verdicts.stop and not ((pass_.is_side or pass_.opened_after_stop) and signals.received is None)
        if stops and signals.has_stopped and self._saving.saves:
            # A run cannot resume in the middle of a validation pass, or between fetching a batch and using it.
            # Therefore, finish the validation pass or the batch before the stop, unless the last checkpoint is already written.
            stops = self._saving.has_stopped or (pass_.is_train and not has_batch and not pass_.is_retrying)
        return stops or pass_.wants_end or (verdicts.stop_epoch and pass_.is_train)

    def prevents(self, pass_: Pass, *, has_host: bool) -> bool:
        """Return whether a stop request prevents a pass from opening.

        A host still runs its planned passes after a stop. Side passes and passes inside a training iteration still run too: the
        stop takes effect after the iteration.
        """
        if pass_.is_train and not self._scopes.epoch_is_open:
            self._verdicts.begin_epoch()  # the pass begins an epoch, so a request to stop an earlier epoch does not apply
        is_inside = any(not outer.is_closing for outer in self._scopes.passes[-1:])
        pass_.opened_after_stop = self._verdicts.stop and is_inside and not pass_.is_train
        if has_host or not self.is_due(pass_):
            return False
        pass_.was_cut = True
        if pass_.is_train:
            self._scopes.cut_short = True
            if self._scopes.epoch_is_open:
                self._saving.before_end_points()
        return True
