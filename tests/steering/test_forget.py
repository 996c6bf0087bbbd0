"""`forget` removes a command from the journal, so the next start does not replay it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hookpoint import control
from hookpoint.cli.main import main
from hookpoint.core.errors import NotApplied

ALPHA, MODE = "Tunable.alpha", "Tunable.mode"


def test_all_commands_but_the_forgotten_one_are_replayed(steered, until):
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


def test_numbers_of_forgotten_commands_are_not_reused(steered):
    with steered() as live:
        ctl = control(live.workdir)
        ctl.save()
        ctl.set({ALPHA: 0.25})
        live.fail()
    ctl.forget(1)
    with steered() as again:
        assert control(again.workdir).set({ALPHA: 0.75}).number == 2
    assert set(again.tunable.alphas) == {0.5, 0.75}


def test_a_command_missing_from_the_newest_checkpoint_can_be_forgotten(fit, cuts, cut_off, tmp_path):
    with pytest.raises(cut_off):
        fit({7: [("set", {"values": {"lr": 0.01}})]}, save_every=4, callbacks=[cuts(8)])
    commands = [("set", {"values": {"momentum": 0.1}}), ("save", {"tag": "x"})]
    with pytest.raises(cut_off):
        fit({5: commands}, save_every=100, callbacks=[cuts(6)])
    ctl = control(tmp_path / "mine")
    listed = CliRunner().invoke(main, ["ctl", str(ctl.path)]).stdout.split("journal\n")[1]
    assert [" ".join(line.split()) for line in listed.splitlines()] == [
        "1 step 7 set lr=0.01 replayed by a resume test",
        "2 step 5 set momentum=0.1 in a checkpoint test",
    ]
    rows = json.loads(CliRunner().invoke(main, ["ctl", str(ctl.path), "--json"]).stdout)["journal"]
    assert [(row["number"], row["saved"]) for row in rows] == [(1, False), (2, True)]
    with pytest.raises(NotApplied, match="step-00000005 already contains command 2"):
        ctl.forget(2)
    assert ctl.forget(1).args == {"values": {"lr": 0.01}}
    resumed = fit(save_every=100)
    assert {(rate, momentum) for _, rate, momentum in resumed.steps} == {(0.1, 0.1)}
