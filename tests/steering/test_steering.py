"""Commands to a run are applied at a boundary, answered once, and never crash the run."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

import hookpoint
from hookpoint import Callback, Knob, errors
from hookpoint import callbacks as cb
from hookpoint.core.loop.host import Host
from hookpoint.core.loop.host_driver import HostDriver
from hookpoint.core.loop.services import machine_of
from hookpoint.steering.control_command import ControlCommand, new_id
from hookpoint.steering.control_folder import ControlFolder
from hookpoint.steering.steering_option import steering_for


def set_to(**values):
    return ("set", {"values": values})


# What commands do


def test_a_setting_changes_right_after_the_step(fit):
    trained = fit({5: [set_to(lr=0.01)]})
    assert [rate for _, rate, _ in trained.steps] == [0.1] * 5 + [0.01] * 7
    (answer,) = trained.answers()
    assert (answer.status, answer.step, answer.was, answer.now) == ("applied", 5, {"lr": 0.1}, {"lr": 0.01})
    assert (answer.number, answer.ranks) == (1, 1)
    (event,) = trained.events()
    assert (event["id"], event["status"], event["by"], event["now"]) == (answer.id, "applied", "test", {"lr": 0.01})


def test_a_command_has_the_same_effect_as_code(fit):
    def lower(run):
        run.hyper["lr"] = 0.01

    commanded, coded = fit({5: [set_to(lr=0.01)]}), fit({5: [lower]}, name="coded")
    assert all(one.equal(other) for one, other in zip(commanded.weights, coded.weights, strict=True))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"lr": -1.0}, "lr must be >= 0"),
        ({"lr": "much"}, "must be a finite number"),
        ({"lr": 1e39}, "float32"),
        ({"lrr": 0.1}, "there is no setting 'lrr'. Known: dampening, log_every, lr, momentum, weight_decay"),
        ({"Nobody.alpha": 1}, "there is no setting 'Nobody.alpha'. Known: dampening, log_every, lr, "),
        ({"lr": 0.01, "learning_rate": 0.02}, "lr and learning_rate are the same setting"),
        ({"log_every": 0}, "log_every must be >= 1"),
        ({"log_every": True}, "log_every must be an int"),
        ({}, "no values"),
        ({"lr": 0.01, "momentum": -1}, "momentum must be >= 0"),
    ],
)
def test_an_invalid_value_is_refused_and_changes_nothing(fit, values, reason):
    trained = fit({5: [("set", {"values": values})]})
    (answer,) = trained.answers()
    assert answer.status == "refused"
    assert reason in answer.reason
    assert {(rate, momentum) for _, rate, momentum in trained.steps} == {(0.1, 0.5)}
    assert len(trained.steps) == 12


def test_set_is_refused_if_the_value_is_not_the_expected_one(fit):
    trained = fit({5: [(*set_to(lr=0.01), {"expect": {"lr": 0.1}}), (*set_to(lr=0.02), {"expect": {"lr": 0.1}})]})
    first, second = trained.answers()
    assert (first.status, second.status) == ("applied", "refused")
    assert "lr is 0.01, not 0.1 as expected" in second.reason


def test_expect_compares_lists_with_tuples(tmp_path):
    model, answers = torch.nn.Linear(1, 1), []
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.999))

    @hookpoint.on("on_epoch_begin")
    def send(run):
        for betas in ([0.9, 0.99], [0.9, 0.999]):
            values = {"values": {"betas": [0.8, 0.9]}}
            answers.append(hookpoint.control(tmp_path).send("set", values, expect={"betas": betas}))

    with hookpoint.Loop([send], optimizer=adam, workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            machine_of(run).control.submit(ControlCommand("resume", {}, machine_of(run).control.attempt))
            list(run.batches([1]))
    refused, applied = (order.wait() for order in answers)
    assert (refused.status, refused.reason) == ("refused", "betas is [0.9, 0.999], not [0.9, 0.99] as expected.")
    assert (applied.status, adam.param_groups[0]["betas"]) == ("applied", (0.8, 0.9))


def test_a_scheduler_that_sets_the_rate_again_is_named(fit):
    setter = cb.ScheduledHyperParamSetter("learning_rate", [(2, 0.5)])
    (answer,) = fit({5: [set_to(learning_rate=0.01)]}, callbacks=[setter]).answers()
    assert "ScheduledHyperParamSetter(learning_rate) may set learning_rate again" in answer.note


def test_log_every_changes_the_log_steps(fit, recorder):
    monitor = recorder()
    fit({5: [("log-every", {"steps": 5})]}, monitors=[monitor])
    assert [step for step, _ in monitor.steps] == [2, 4, 10]


def test_validate_logs_and_answers_with_the_metrics(fit, recorder):
    monitor = recorder()
    trained = fit({5: [("validate", {})]}, monitors=[monitor])
    (answer,) = trained.answers()
    assert answer.values.keys() == {"val_loss"}
    assert ("epoch", 5, answer.values) in monitor.rows


def test_validate_without_data_is_refused(fit):
    (answer,) = fit({5: [("validate", {})]}, val=False).answers()
    assert (answer.status, "no validation data" in answer.reason) == ("refused", True)


def test_a_failed_validation_does_not_end_the_run(fit):
    class Fails(Callback):
        def on_val_iter_end(self, run):
            if run.step == 5:
                raise ValueError("bad sample")

    trained = fit({5: [("validate", {}), set_to(lr=0.01)]}, callbacks=[Fails()])
    assert [answer.status for answer in trained.answers()] == ["refused", "applied"]
    assert "ValueError: bad sample" in trained.answers()[0].reason
    assert trained.run.step == 12


def test_save_answers_with_the_path(fit):
    (answer,) = fit({5: [("save", {"tag": "mine"})]}).answers()
    assert Path(answer.path).name == "step-00000005"
    assert Path(answer.path, "manifest.json").exists()


@pytest.mark.parametrize("tag", ["../x", "", "a\nb", 3, "x" * 200])
def test_an_invalid_tag_is_refused(fit, tag):
    (answer,) = fit({5: [("save", {"tag": tag})]}).answers()
    assert answer.status == "refused"


def test_trace_answers_once_the_file_is_written(fit):
    (answer,) = fit({5: [("trace", {"steps": 2})]}).answers()
    assert (answer.status, answer.step) == ("applied", 7)
    assert json.loads(Path(answer.path).read_text())["traceEvents"]


def test_a_trace_is_written_if_the_run_ends_early(fit):
    (answer,) = fit({11: [("trace", {"steps": 100})]}).answers()
    assert (answer.status, answer.note) == ("applied", "the run ended after 1 steps")
    assert Path(answer.path).exists()


def test_stop_ends_the_run_with_its_reason(fit):
    trained = fit({5: [("stop", {"reason": "enough"})]})
    assert (trained.run.step, trained.run.stop_reason) == (5, "enough")
    assert trained.answers()[0].status == "applied"


def test_commands_wait_for_the_end_of_an_accumulation_window(fit):
    trained = fit({5: [set_to(lr=0.01)]}, accumulate=4)
    assert [rate for _, rate, _ in trained.steps] == [0.1] * 8 + [0.01] * 4
    assert trained.answers()[0].iteration == 8


def test_a_command_at_the_end_of_an_epoch_applies_there(fit):
    class AtTheEnd(Callback):
        def on_epoch_end(self, run):
            if run.epoch == 2:
                sender = next(one.subject for one in run.hooks.entries if type(one.subject).__name__ == "Sends")
                sender.send(run, set_to(lr=0.01))

    trained = fit({99: []}, callbacks=[AtTheEnd()])
    assert [rate for _, rate, _ in trained.steps] == [0.1] * 8 + [0.01] * 4


# Callbacks


class MixUp(Callback):
    knobs = (Knob("alpha", float, low=0.0, high=1.0, about="strength"), Knob("kind", str, choices=("a", "b")))
    actions = ("double",)

    def __init__(self):
        self.alpha, self.kind, self.seen = 0.5, "a", []

    def on_train_iter_end(self, run):
        self.seen.append(self.alpha)

    def on_knob(self, name, was, value):
        if value == 0.75:
            raise ValueError("not this one")

    def double(self):
        """Double the strength."""
        self.alpha *= 2


def test_commands_set_knobs_and_call_actions_of_callbacks(fit):
    mix = MixUp()
    trained = fit(
        {3: [("set", {"values": {"MixUp.alpha": 0.25, "MixUp.kind": "b"}})], 6: [("call", {"action": "MixUp.double"})]},
        callbacks=[mix],
    )
    assert [answer.status for answer in trained.answers()] == ["applied", "applied"]
    assert mix.seen == [0.5] * 3 + [0.25] * 3 + [0.5] * 6
    assert mix.kind == "b"
    with ControlFolder(trained.workdir) as folder:
        live = folder.live()
    assert {row["name"]: row for row in live.knobs}["MixUp.alpha"] == {
        "name": "MixUp.alpha", "type": "float", "value": 0.5, "low": 0.0, "high": 1.0, "about": "strength",
    }  # fmt: skip
    assert list(live.actions) == [{"name": "MixUp.double", "about": "Double the strength."}]


def test_reasons_name_the_known_actions_and_callbacks(fit):
    two = [cb.EarlyStopping("val_loss", patience=99), cb.EarlyStopping("loss", patience=99)]
    named = {"ReduceLROnPlateau.factor": 0.1, "ReduceLROnPlateau(loss).factor": 0.2}
    commands = [
        ("call", {"action": "x"}),
        ("set", {"values": {"EarlyStopping.patience": 3}}),
        ("set", {"values": named}),
    ]
    callbacks = [MixUp(), cb.ReduceLROnPlateau("loss"), *two]
    assert [answer.reason for answer in fit({3: commands}, callbacks=callbacks).answers()] == [
        "there is no action 'x'. Known: MixUp.double",
        "EarlyStopping is the class of 2 callbacks. Choose: EarlyStopping(val_loss), EarlyStopping(loss)",
        "ReduceLROnPlateau.factor and ReduceLROnPlateau(loss).factor are the same setting.",
    ]


def test_all_values_are_restored_if_on_knob_raises(fit):
    mix = MixUp()
    trained = fit({3: [("set", {"values": {"MixUp.kind": "b", "MixUp.alpha": 0.75, "lr": 0.01}})]}, callbacks=[mix])
    (answer,) = trained.answers()
    assert (answer.status, answer.reason) == ("refused", "ValueError: not this one")
    assert (mix.alpha, mix.kind) == (0.5, "a")
    assert trained.steps[-1] == (12, 0.1, 0.5)
    with ControlFolder(trained.workdir) as folder:
        assert folder.journal.entries() == []


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"knobs": ("alpha",)}, "expected a Knob"),
        ({"knobs": (Knob("alpha"),)}, "no attribute"),
        ({"knobs": (Knob("alpha"), Knob("alpha")), "alpha": 1.0}, "two knobs"),
        ({"actions": ("go",)}, "'go' is not a method"),
    ],
)
def test_invalid_knobs_raise_before_the_run(members, problem):
    kind = type("Bad", (Callback,), {**members, "on_epoch_end": lambda self: None})
    with pytest.raises(errors.CompileError, match=problem):
        hookpoint.Hooks([kind()])


def test_on_knob_is_not_a_point():
    assert [call.point for call in hookpoint.Hooks([MixUp()]).calls("on_knob")] == []
    assert "on_knob" not in hookpoint.Hooks([MixUp()]).explain()


def test_a_class_name_refers_to_its_only_callback(fit):
    stopping = cb.EarlyStopping("val_loss", patience=99)
    trained = fit({3: [("set", {"values": {"EarlyStopping.patience": 7}})]}, callbacks=[stopping])
    assert trained.answers()[0].status == "applied"
    assert stopping.patience == 7


def test_a_command_can_change_max_to_keep(fit):
    trained = fit({6: [("set", {"values": {"ModelSaver.max_to_keep": 1}})]}, save_every=1)
    assert len(list((trained.workdir / "checkpoints").glob("step-*"))) == 1


# Pauses


def test_a_pause_stops_the_clocks_until_the_run_resumes(fit):
    seen = {}

    def later(run):
        clocks, steering = machine_of(run).clocks, machine_of(run).control

        def act():
            while not clocks.is_paused:
                time.sleep(0.01)
            before = run.elapsed
            save = ControlCommand("save", {"tag": "paused"}, steering.attempt)
            validate, resume = (ControlCommand(do, {}, steering.attempt) for do in ("validate", "resume"))
            with ControlFolder(run.workdir) as folder:
                seen["live"] = folder.live().paused
                for command in (validate, save):
                    folder.send(command)
                while (answer := folder.answer(save.id)) is None or not answer.is_final:
                    time.sleep(0.01)
                seen["save"], seen["validate"] = answer, folder.answer(validate.id)
                seen["elapsed"], seen["paused"] = run.elapsed - before, clocks.paused_seconds()
                folder.send(resume)
            seen["ids"] = [save.id, validate.id, resume.id]

        seen["thread"] = threading.Thread(target=act)
        seen["thread"].start()

    trained = fit({4: [("pause", {}), later]})
    seen["thread"].join()
    trained.ids += seen["ids"]
    assert [answer.status for answer in trained.answers()] == ["applied"] * 4
    assert seen["live"] is True
    assert seen["save"].step == 4
    assert (seen["validate"].status, trained.answers()[2].step) == ("seen", 4)
    assert seen["elapsed"] == 0.0
    assert seen["paused"] > 0.0
    assert trained.run.step == 12


def test_a_second_pause_or_resume_has_no_effect(fit):
    commands = {4: [("pause", {}), ("pause", {}), ("resume", {}), ("resume", {})]}
    answers = fit(commands).answers()
    assert [answer.note for answer in answers] == [None, "the run was already paused", None, "the run was not paused"]


def test_commands_waiting_for_the_end_of_a_pause_are_applied_in_order(fit):
    commands = [("pause", {}), ("validate", {}), ("trace", {"steps": 2}), ("resume", {}), set_to(lr=0.01)]
    trained = fit({4: commands})
    assert [(answer.status, answer.step) for answer in trained.answers()] == [
        ("applied", 4),
        ("applied", 4),
        ("applied", 6),
        ("applied", 4),
        ("applied", 4),
    ]
    assert [event["do"] for event in trained.events()] == ["pause", "resume", "validate", "set", "trace"]
    assert json.loads(Path(trained.answers()[2].path).read_text())["traceEvents"]


def test_commands_waiting_for_the_end_of_a_pause_are_lost_on_stop(fit):
    trained = fit({4: [("pause", {}), ("validate", {}), ("trace", {"steps": 2}), ("stop", {})]})
    assert [answer.status for answer in trained.answers()] == ["applied", "lost", "lost", "applied"]
    assert trained.run.step == 4


def test_throughput_ignores_pauses(fit):
    clock = {"now": 0.0}
    timer = cb.ThroughputTracker()
    timer.time.clock = lambda: clock["now"]

    class Ticks(Callback):
        def on_train_iter_end(self, run):
            clock["now"] += 1.0

    def paused(run):
        clocks = machine_of(run).clocks
        clocks.pause()
        clock["now"] += 1000.0
        clocks._paused_at -= 1000.0
        clocks.resume()

    seen = []
    rows = cb.LambdaCallback(on_epoch_end=lambda run: seen.append(run.metrics["Throughput (steps/sec)"]))
    fit({2: [paused]}, callbacks=[Ticks(), timer, rows], epochs=1, val=False)
    assert seen[0] == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_pause_saves_and_ends_the_run(fit, number):
    def send(run):
        clocks = machine_of(run).clocks

        def act():
            while not clocks.is_paused:
                time.sleep(0.01)
            os.kill(os.getpid(), number)

        threading.Thread(target=act).start()

    with pytest.raises(SystemExit if number == signal.SIGTERM else KeyboardInterrupt):
        fit({5: [("pause", {}), send]}, save_every=100)
    resumed = fit(save_every=100)
    assert [iteration for iteration, *_ in resumed.steps] == list(range(6, 13))


# Answers in all cases


def test_a_withdrawn_command_is_never_applied(fit):
    kept = {}

    def withdraw(run):
        steering = machine_of(run).control
        command = ControlCommand("set", {"values": {"lr": 9.0}}, steering.attempt)
        steering.submit(command)
        with ControlFolder(run.workdir) as folder:
            assert folder.withdraw(command.id)
        kept["id"] = command.id

    trained = fit({5: [withdraw]})
    trained.ids = [kept["id"]]
    assert trained.answers()[0].status == "withdrawn"
    assert {rate for _, rate, _ in trained.steps} == {0.1}
    assert [event["status"] for event in trained.events()] == ["withdrawn"]


def test_an_expired_command_is_withdrawn(fit):
    (answer,) = fit({5: [(*set_to(lr=0.01), {"seconds": -1.0})]}).answers()
    assert answer.status == "withdrawn"


def test_a_command_sent_after_the_last_step_is_lost(fit):
    class Late(Callback):
        def on_run_end(self, run):
            sender = next(one.subject for one in run.hooks.entries if type(one.subject).__name__ == "Sends")
            with ControlFolder(run.workdir) as folder:
                command = ControlCommand("set", {"values": {"lr": 1.0}}, folder.live().attempt)
                folder.send(command)
            sender.trained.ids.append(command.id)

    first = fit(callbacks=[Late()], epochs=1, save_every=1)
    assert first.answers() == [None]
    second = fit(epochs=2, save_every=1)
    second.ids = first.ids
    assert second.answers()[0].status == "lost"
    assert [event["status"] for event in second.events()] == ["lost"]
    assert {rate for _, rate, _ in second.steps} == {0.1}


def test_hostile_files_are_refused_and_do_not_end_the_run(fit, tmp_path):
    ids = {}

    def attack(run):
        steering, inbox = machine_of(run).control, Path(run.workdir) / ".control" / "inbox"

        def good(command_id, **change):
            command = ControlCommand("set", {"values": {"lr": 9.0}}, steering.attempt, command_id)
            return json.dumps({**command.encoded(), **change})

        def path(name):
            ids[name] = new_id()
            return inbox / f"{ids[name]}.json"

        path("torn").write_text("")
        (inbox / f"{ids['torn']}.json").write_text(good(ids["torn"])[:50])
        path("earlier").write_text(good(ids["earlier"], attempt="0" * 32))
        path("other id").write_text(good("x" * 29))
        path("nested").write_text("[" * 60000)
        path("oversized").write_text(" " * 100_000)
        path("infinite").write_text(good(ids["infinite"], args={"values": {"lr": float("inf")}}))
        path("link").symlink_to("/etc/passwd")
        os.mkfifo(path("pipe"))
        path("folder").mkdir()
        path("second name").write_text(good(ids["second name"]))
        os.link(inbox / f"{ids['second name']}.json", tmp_path / "first name")
        (inbox / "README").touch()
        with ControlFolder(run.workdir) as folder:
            done = ControlCommand("set", {"values": {"momentum": 0.25}}, steering.attempt)
            folder.send(done)
        ids["good"] = done.id

    def replay(run):
        inbox = Path(run.workdir) / ".control" / "inbox"
        command = ControlCommand("set", {"values": {"lr": 9.0}}, machine_of(run).control.attempt, ids["good"])
        (inbox / f"{ids['good']}.json").write_text(json.dumps(command.encoded()))

    look = lambda run: machine_of(run).control.submit(ControlCommand("resume", {}, machine_of(run).control.attempt))  # noqa: E731
    trained = fit({3: [attack, look], 6: [replay, look]})
    statuses = {}
    with ControlFolder(trained.workdir) as folder:
        statuses = {name: folder.answer(command_id).status for name, command_id in ids.items()}
        assert (folder.waiting(), folder.taken()) == ([], [])
    assert statuses.pop("good") == "applied"
    assert statuses.pop("earlier") == "lost"
    assert set(statuses.values()) == {"refused"}
    assert [rate for _, rate, _ in trained.steps] == [0.1] * 12
    assert [momentum for *_, momentum in trained.steps] == [0.5] * 3 + [0.25] * 9
    by_id = [event["id"] for event in trained.events()]
    assert sorted(set(by_id)) == sorted(by_id)
    assert set(ids.values()) <= set(by_id)


def test_control_files_that_cannot_be_written_do_not_end_the_run(fit, caplog):
    def break_files(run):
        control = Path(run.workdir) / ".control"
        (control / "journal.jsonl").mkdir()  # writing to it fails, as on a full disk
        (control / "answers").rename(control / "gone")
        (control / "gone").chmod(0o500)
        (control / "live.json").unlink()
        (control / "live.json").mkdir()

    trained = fit({5: [break_files, set_to(lr=0.01), ("log-every", {"steps": 3}), ("save", {"tag": "x"})]})
    assert {rate for _, rate, _ in trained.steps} == {0.1}
    assert trained.run.step == 12
    assert [event["status"] for event in trained.events()] == ["refused", "refused", "applied"]
    assert "cannot be written to the journal" in trained.events()[0]["reason"]
    assert "live.json could not be written" in caplog.text


@pytest.mark.parametrize("when", ["during the run", "at its end"])
def test_an_answer_that_could_not_be_written_is_written_later(fit, when):
    def path(run):
        return Path(run.workdir) / ".control" / "answers" / f"{ids[0]}.json"

    def send(run):
        command = ControlCommand("set", {"values": {"lr": 0.01}}, machine_of(run).control.attempt)
        ids.append(command.id)
        machine_of(run).control.submit(command)
        path(run).unlink()  # "seen"
        path(run).mkdir()  # an answer cannot replace it

    def free(run):
        with ControlFolder(run.workdir) as folder:
            assert folder.taken() == ids
            path(run).rmdir()
            while when == "during the run" and folder.taken():
                time.sleep(0.01)

    ids = []
    with ControlFolder(fit({5: [send], 8: [free]}).workdir) as folder:
        answer = folder.answer(ids[0])
    assert (answer.status, answer.step, answer.now) == ("applied", 5, {"lr": 0.01})


def test_non_finite_values_are_answered_as_text(fit):
    class Diverges(Callback):
        def on_val_iter_end(self, run):
            run.log(score=float("nan"))

    (answer,) = fit({5: [("validate", {})]}, callbacks=[Diverges()]).answers()
    assert answer.values["val_score"] == "nan"


# Off


@pytest.mark.parametrize("way", ["argument", "environment", "no workdir"])
def test_control_can_be_turned_off(tmp_path, monkeypatch, way):
    if way == "environment":
        monkeypatch.setenv("HOOKPOINT_CONTROL", "0")
    workdir = None if way == "no workdir" else tmp_path
    options = {"control": False} if way == "argument" else {}
    with hookpoint.Loop(workdir=workdir, extra_callbacks=[], monitors=[], **options) as run:
        for _ in run.batches([1]):
            pass
    assert not (tmp_path / ".control").exists()


def test_a_folder_that_others_can_write_to_turns_control_off(fit, caplog):
    first = fit(epochs=1, save_every=1)
    (first.workdir / ".control").chmod(0o770)
    trained = fit({5: [lambda run: None]}, save_every=1)
    assert trained.run.step == 12
    warnings = [record.message for record in caplog.records if "does not accept commands" in record.message]
    assert len(warnings) == 1
    assert "others can write to it" in warnings[0]


def test_live_json_says_when_the_run_has_ended(fit):
    trained = fit()
    with ControlFolder(trained.workdir) as folder:
        live = folder.live()
    assert (live.ended, live.is_running, live.world_size) == (True, False, 1)
    assert {"lr", "momentum", "weight_decay", "log_every"} <= {row["name"] for row in live.knobs}


def test_costs_are_in_run_json(fit):
    slow = cb.LambdaCallback(on_epoch_end=lambda run: None, name="mine")
    trained = fit(callbacks=[slow])
    costs = json.loads((trained.workdir / "run.json").read_text())["costs"]
    assert {"callback": "mine", "point": "on_epoch_end", "calls": 3}.items() <= next(
        row for row in costs if row["callback"] == "mine"
    ).items()


def test_costs_are_in_run_json_during_the_run(fit):
    seen = []

    def read(run):
        costs = json.loads((Path(run.workdir) / "run.json").read_text()).get("costs", [])
        seen.append([row["calls"] for row in costs if (row["callback"], row["point"]) == ("mine", "on_epoch_end")])

    fit(callbacks=[cb.LambdaCallback(on_epoch_begin=read, on_epoch_end=lambda run: None, name="mine")], epochs=2)
    assert seen == [[], [1]]


# Under a host


def test_a_host_accepts_only_the_commands_that_it_supports(tmp_path):
    saved, ids, rates = [], {}, []
    driver = HostDriver(
        [cb.JSONWriter(), Callback()],
        Host("theirs"),
        save=lambda tags, step: saved.append((tuple(tags), step)) or "there",
        workdir=tmp_path,
        control=steering_for(tmp_path, control=True),
    )
    driver.start_run(epochs=1, optimizer=type("O", (), {"param_groups": [{"lr": 0.1}]})())
    driver.start_epoch()
    driver.start_pass("train", total=6)
    for number in range(6):
        if driver.wants_stop:
            break
        driver.start_iteration([1])
        if number == 2:
            for do, args in (
                set_to(lr=0.01),
                ("save", {}),
                ("validate", {}),
                ("trace", {"steps": 1}),
                ("stop", {"reason": "enough"}),
            ):
                steering = machine_of(driver.run).control
                command = ControlCommand(do, args, steering.attempt)
                ids[do] = command.id
                steering.submit(command)
        driver.start_step()
        driver.finish_step()
        driver.finish_iteration(loss=1.0)
        rates.append(driver.run.hyper["lr"])
    driver.finish_pass()
    driver.finish_epoch(complete=False)
    driver.finish_run()
    with ControlFolder(tmp_path) as folder:
        answers = {do: folder.answer(command_id) for do, command_id in ids.items()}
        cannot = folder.live().cannot
    statuses = {do: answer.status for do, answer in answers.items()}
    assert statuses == {"set": "applied", "save": "applied", "validate": "refused", "trace": "refused", "stop": "applied"}
    assert "theirs runs validation itself" in answers["validate"].reason
    assert cannot.keys() == {"validate", "trace"}
    assert (rates, saved) == ([0.1, 0.1, 0.01], [(("manual",), 3)])


def test_a_host_with_several_ranks_accepts_no_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    driver = HostDriver([Callback()], Host("theirs"), workdir=tmp_path, control=steering_for(tmp_path, control=True))
    driver.start_run(epochs=1)
    with ControlFolder(tmp_path) as folder:
        assert list(folder.live().commands) == []
        assert "2 ranks" in folder.live().cannot["set"]
    driver.finish_run()
