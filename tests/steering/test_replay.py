"""A resume replays the commands given after its checkpoint, at the same iteration."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import hookpoint
from hookpoint import Callback, Knob
from hookpoint.cli.main import main
from hookpoint.core.loop.services import machine_of
from hookpoint.steering.control_folder import ControlFolder


def set_to(**values):
    return ("set", {"values": values})


class Strength(Callback):
    knobs = (Knob("alpha", float),)

    def __init__(self):
        self.alpha, self.seen = 0.5, []

    def on_train_iter_end(self, run):
        self.seen.append((run.iteration, self.alpha))


def same(one, other):
    return all(a.equal(b) for a, b in zip(one.weights, other.weights, strict=True))


COMMANDS = {
    "set": [set_to(lr=0.01, momentum=0.25)],
    "validate": [("validate", {})],
    "log-every": [("log-every", {"steps": 3})],
    "all": [set_to(lr=0.01), ("validate", {}), ("log-every", {"steps": 3}), set_to(momentum=0.1)],
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("cut", [6, 8, 11])
def test_a_resumed_run_equals_the_uninterrupted_run(fit, cuts, cut_off, name, cut, recorder):
    commands = {5: COMMANDS[name]}
    whole, parts = recorder(), recorder()
    expected = fit(commands, name="whole", save_every=4, monitors=[whole])
    with pytest.raises(cut_off):
        fit(commands, save_every=4, callbacks=[cuts(cut)], monitors=[parts])
    resumed_rows = recorder()
    resumed = fit(save_every=4, monitors=[resumed_rows])
    first = 5 if cut <= 8 else 9
    assert resumed.steps == [row for row in expected.steps if row[0] >= first]
    assert same(expected, resumed)
    assert [row for row in resumed_rows.rows if row[1] > cut] == [row for row in whole.rows if row[1] > cut]


def test_a_replay_is_printed_and_logged_as_an_event(fit, cuts, cut_off, capsys):
    with pytest.raises(cut_off):
        fit({5: [set_to(lr=0.01)], 6: [("save", {"tag": "x"}), ("validate", {})]}, save_every=100, callbacks=[cuts(7)])
    capsys.readouterr()
    resumed = fit({}, save_every=100)
    said = capsys.readouterr().err
    assert "Replaying 1 command given after the checkpoint (2: validate at iteration 6)" in said
    assert [(event["do"], event["iteration"], event.get("replayed")) for event in resumed.events()] == [
        ("set", 5, None),
        ("save", 6, None),
        ("validate", 6, None),
        ("validate", 6, True),
    ]


def test_the_replay_message_says_how_to_forget_a_command(fit, cuts, cut_off, capsys, tmp_path):
    with pytest.raises(cut_off):
        fit({7: [set_to(lr=0.01)]}, save_every=4, callbacks=[cuts(8)])
    capsys.readouterr()
    fit({6: [("stop", {})]}, save_every=4)  # the stop saves a checkpoint
    advice = f"stop the run before that iteration, run 'hookpoint ctl {tmp_path / 'mine'} forget 1', and restart."
    assert f"(1: set at iteration 7). To leave one out, {advice}" in capsys.readouterr().err
    assert CliRunner().invoke(main, ["ctl", str(tmp_path / "mine"), "forget", "1"]).exit_code == 0
    resumed = fit(save_every=4)
    assert resumed.steps == [(iteration, 0.1, 0.5) for iteration in range(7, 13)]


def test_a_command_in_the_checkpoint_is_not_replayed(fit, cuts, cut_off, capsys):
    with pytest.raises(cut_off):
        fit({3: [set_to(lr=0.01)]}, save_every=4, callbacks=[cuts(6)])
    capsys.readouterr()
    resumed = fit(save_every=4)
    assert "Replaying" not in capsys.readouterr().err
    assert {rate for _, rate, _ in resumed.steps} == {0.01}


def test_a_command_is_replayed_after_each_kill(fit, cuts, cut_off):
    expected = fit({5: [set_to(lr=0.01)], 10: [set_to(lr=0.02)]}, name="whole", save_every=4)
    with pytest.raises(cut_off):
        fit({5: [set_to(lr=0.01)]}, save_every=4, callbacks=[cuts(6)], name="again")
    with pytest.raises(cut_off):
        fit(save_every=100, callbacks=[cuts(7)], name="again")
    resumed = fit({10: [set_to(lr=0.02)]}, save_every=4, name="again")
    assert resumed.steps == [row for row in expected.steps if row[0] > 4]
    assert same(expected, resumed)


def test_a_new_command_before_a_replayed_one_keeps_both(fit, cuts, cut_off):
    with pytest.raises(cut_off):
        fit({7: [set_to(lr=0.01)]}, save_every=4, callbacks=[cuts(8)])
    with pytest.raises(cut_off):
        fit({5: [set_to(momentum=0.1), ("save", {"tag": "x"})]}, save_every=100, callbacks=[cuts(6)])
    resumed = fit(save_every=100)
    assert resumed.steps[0] == (6, 0.1, 0.1)
    assert resumed.steps[-1] == (12, 0.01, 0.1)


def test_a_command_right_after_a_checkpoint_is_replayed_before_the_next_step(fit, cuts, cut_off):
    commands = {6: [("save", {"tag": "x"}), set_to(lr=0.01)]}
    expected = fit(commands, name="whole")
    with pytest.raises(cut_off):
        fit(commands, callbacks=[cuts(8)])
    resumed = fit()
    assert resumed.steps == [row for row in expected.steps if row[0] > 6]
    assert same(expected, resumed)


def test_a_command_at_the_end_of_an_epoch_is_replayed_there(fit, cuts, cut_off):
    class AtTheEnd(Callback):
        def on_epoch_end(self, run):
            sender = next(one.subject for one in run.hooks.entries if type(one.subject).__name__ == "Sends")
            if run.epoch == 1 and not machine_of(run).control.journalled():
                sender.send(run, ("validate", {}))

    with pytest.raises(cut_off):
        fit(save_every=3, callbacks=[AtTheEnd(), cuts(5)])
    with ControlFolder(fit(save_every=3, callbacks=[AtTheEnd()]).workdir) as folder:
        (entry,) = folder.journal.entries()
    assert (entry.iteration, entry.epochs) == (4, 1)


def test_knobs_are_restored_and_replayed(fit, cuts, cut_off):
    commands = {3: [("set", {"values": {"Strength.alpha": 0.25}})], 5: [("set", {"values": {"Strength.alpha": 0.125}})]}
    with pytest.raises(cut_off):
        fit(commands, save_every=4, callbacks=[Strength(), cuts(7)])
    strength = Strength()
    fit(save_every=4, callbacks=[strength])
    assert strength.seen == [(5, 0.25), *((iteration, 0.125) for iteration in range(6, 13))]


def test_a_registered_setting_is_restored(fit, cuts, cut_off):
    class Dropout(Callback):
        def __init__(self):
            self.dropout, self.seen = 0.5, []

        def on_setup(self, run):
            run.hyper.register(hookpoint.ObjAttrParam(self, "dropout"))

        def on_train_iter_end(self, run):
            self.seen.append(self.dropout)

    with pytest.raises(cut_off):
        fit({3: [set_to(dropout=0.25)]}, save_every=4, callbacks=[Dropout(), cuts(6)])
    dropout = Dropout()
    fit(save_every=4, callbacks=[dropout])
    assert dropout.seen == [0.25] * 8


@pytest.mark.parametrize("resume", ["never", "path"])
def test_a_start_that_does_not_resume_the_workdir_replays_nothing(fit, cuts, cut_off, resume, tmp_path):
    with pytest.raises(cut_off):
        fit({5: [set_to(lr=0.01)]}, save_every=4, callbacks=[cuts(7)])
    path = tmp_path / "mine" / "checkpoints" / "step-00000004"
    resumed = fit(save_every=4, resume="never" if resume == "never" else path)
    assert {rate for _, rate, _ in resumed.steps} == {0.1}
    assert (tmp_path / "mine" / "previous" / "001" / ".control" / "journal.jsonl").exists()


def test_commands_are_replayed_by_step_after_a_new_batch_size(fit, cuts, cut_off):
    with pytest.raises(cut_off):
        fit({6: [set_to(lr=0.01)]}, save_every=4, callbacks=[cuts(7)])
    resumed = fit(save_every=4, batch_size=2, accumulate=2)
    assert [rate for _, rate, _ in resumed.steps] == [0.1] * 4 + [0.01] * 12


def test_a_removed_setting_is_named_and_the_run_continues(fit, cuts, cut_off, caplog):
    with pytest.raises(cut_off):
        fit({5: [("set", {"values": {"Strength.alpha": 0.25}})]}, save_every=4, callbacks=[Strength(), cuts(7)])
    assert fit(save_every=4).run.step == 12
    assert "command 1 (set) is not replayed" in caplog.text
