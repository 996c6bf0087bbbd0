"""`forget`: a command that the next start does not replay."""

from __future__ import annotations

import pytest

from hookpoint import control
from hookpoint.core.errors import NotApplied

ALPHA, MODE = "Tunable.alpha", "Tunable.mode"


def test_a_forgotten_command_is_not_replayed_and_the_others_are(steered, until):
    with steered() as live:
        ctl = control(live.workdir)
        ctl.set({ALPHA: 0.25})
        saved = ctl.save()
        ctl.set({ALPHA: 0.75})
        applied = ctl.set({MODE: "slow"})
        with pytest.raises(NotApplied, match=r"forget was refused: .* is in use by"):
            ctl.forget(2)
        live.fail()
    assert [(entry.number, entry.do) for entry in ctl.journal()] == [(1, "set"), (2, "set"), (3, "set")]
    assert ctl.saved_commands() == 1
    with pytest.raises(NotApplied, match=f"step-{saved.step:08d} already contains command 1"):
        ctl.forget(1)
    with pytest.raises(NotApplied, match="has no command 4"):
        ctl.forget(4)
    assert ctl.forget(2).args == {"values": {ALPHA: 0.75}}
    with pytest.raises(NotApplied, match="has no command 2"):
        ctl.forget(2)
    with steered() as again:
        until(lambda: len(again.tunable.alphas) > applied.iteration - saved.iteration)
    assert set(again.tunable.alphas) == {0.25}
    assert again.tunable.mode == "slow"
    assert [(event["number"], event["status"]) for event in live.events() if event.get("replayed")] == [(3, "applied")]


def test_the_numbers_of_forgotten_commands_are_not_used_again(steered):
    with steered() as live:
        ctl = control(live.workdir)
        ctl.save()
        ctl.set({ALPHA: 0.25})
        live.fail()
    ctl.forget(1)
    with steered() as again:
        assert control(again.workdir).set({ALPHA: 0.75}).number == 2
    assert set(again.tunable.alphas) == {0.5, 0.75}
