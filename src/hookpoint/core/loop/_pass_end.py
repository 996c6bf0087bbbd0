"""PassEnd: whether a verdict or a signal ends a pass."""

from __future__ import annotations

from hookpoint.core.loop._saving import Saving
from hookpoint.core.loop._signals import Signals
from hookpoint.core.loop.passes import Pass
from hookpoint.core.loop.scopes import Scopes
from hookpoint.core.run.verdicts import Verdicts


class PassEnd:
    """The rules that end a pass before its data does."""

    def __init__(self, verdicts: Verdicts, signals: Signals, saving: Saving, scopes: Scopes) -> None:
        self._verdicts, self._signals, self._saving, self._scopes = verdicts, signals, saving, scopes

    def is_due(self, pass_: Pass, *, has_batch: bool = False) -> bool:
        """Return whether a verdict or a signal ends a pass here; with `has_batch`, before a batch that was fetched."""
        verdicts, signals = self._verdicts, self._signals
        # A side pass started after a stop request still runs; a signal ends every pass.
        stops = verdicts.stop and not (pass_.is_side and signals.received is None)
        if stops and signals.has_stopped and self._saving.saves:
            # A run cannot resume in the middle of a validation, nor before a fetched batch: these are completed.
            stops = self._scopes.cut_short or (pass_.is_train and not has_batch)
        return stops or pass_.wants_end or (verdicts.stop_epoch and pass_.is_train)

    def prevents(self, pass_: Pass, *, has_host: bool) -> bool:
        """Return whether a stop keeps a pass from opening. A host that stops still makes the passes it has planned."""
        if has_host or not self.is_due(pass_):
            return False
        pass_.was_cut = True
        if pass_.is_train:
            self._scopes.cut_short = True
            if self._scopes.epoch_is_open:
                self._saving.before_end_points()
        return True
