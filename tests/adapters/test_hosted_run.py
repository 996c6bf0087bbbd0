"""HostedRun, the shared part of all adapters, tested with a small trainer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hookpoint import Callback, Every, ObjAttrParam, adapters, on
from hookpoint import callbacks as cb
from hookpoint.adapters._hosted_run import NO_SKIPS, UNAVAILABLE, ErrorsFromWith, HostedRun, guarded
from hookpoint.core.errors import BadArgument, DamagedCheckpoint, NotSaveable, WorkdirInUse
from hookpoint.core.loop.host import Host, NotUnderHost
from hookpoint.core.loop.services import machine_of
from hookpoint.steering.control_command import ControlCommand
from hookpoint.steering.control_folder import ControlFolder

HOST = Host("Tiny", {**UNAVAILABLE, **NO_SKIPS})
FRAMEWORKS = ["accelerate", "fastai", "ignite", "keras", "lightning", "tensorflow", "torch", "transformers"]


class Tiny:
    """A trainer that calls methods of its callback, and has a method that an adapter may wrap."""

    def __init__(self, callback, fail_at=None):
        self.callback, self.fail_at, self.stop, self.step = callback, fail_at, False, 0

    def compute(self, batch):
        if self.step == self.fail_at:
            raise ValueError("the host fails")
        return batch / 10

    def fit(self, epochs, *, first=1):
        callback = self.callback
        callback.begin(self, first, epochs)
        for _ in range(first, epochs + 1):
            callback.epoch_begin(self)
            for batch in (1.0, 2.0, 3.0):
                callback.batch_begin(self, batch)
                loss = self.compute(batch)
                self.step += 1
                callback.batch_end(self, loss)
            callback.epoch_end(self)
            if self.stop:
                break
        callback.end(self)


class TinyAdapter(ErrorsFromWith):
    """An adapter, written like those for real trainers."""

    def __init__(self, callbacks, save=None, **options):
        self.hosted = HostedRun(callbacks, HOST, options, save=save)
        self.driver, self.state, self.computed = self.hosted.driver, None, []

    @guarded
    def begin(self, trainer, first, epochs):
        clocks = {"epoch": first - 1, "epochs_done": first - 1} if self.state is None else None
        self.hosted.start(state=self.state, epochs=epochs, clocks=clocks)
        compute = trainer.compute
        self.hosted.wrap(trainer, "compute", lambda batch: self.computed.append(batch) or compute(batch))

    @guarded
    def epoch_begin(self, trainer):
        self.driver.start_epoch()
        self.driver.start_pass("train", total=3)

    @guarded
    def batch_begin(self, trainer, batch):
        self.driver.start_iteration([batch])

    @guarded
    def batch_end(self, trainer, loss):
        self.driver.finish_step()
        self.driver.finish_iteration(loss=loss)

    @guarded
    def epoch_end(self, trainer):
        self.driver.finish_pass()
        self.driver.finish_epoch()
        trainer.stop = self.driver.wants_stop

    @guarded
    def end(self, trainer):
        self.state = self.hosted.state()
        self.hosted.finish()


class Points(Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_run_begin(self):
        self.seen.append("begin")

    def on_epoch_end(self, run):
        self.seen.append((run.epoch, run.step))

    def on_exception(self, error):
        self.seen.append(str(error).partition("\n")[0])

    def on_run_end(self):
        self.seen.append("end")


def test_a_run_fires_its_points_and_restores_the_trainer():
    points = Points()
    adapter = TinyAdapter([points])
    trainer = Tiny(adapter)
    trainer.fit(2)
    assert points.seen == ["begin", (1, 3), (2, 6), "end"]
    assert adapter.computed == [1.0, 2.0, 3.0] * 2
    assert "compute" not in vars(trainer)
    assert not adapter.hosted.is_running


def test_a_wrapped_instance_method_is_restored():
    trainer = Tiny(TinyAdapter([]))
    trainer.compute = own = lambda batch: 0.0
    trainer.fit(1)
    assert trainer.compute is own


def test_a_second_fit_is_a_second_run():
    points = Points()
    trainer = Tiny(TinyAdapter([points]))
    trainer.fit(1)
    trainer.callback.state = None
    trainer.fit(1)
    assert points.seen == ["begin", (1, 3), "end"] * 2


def test_a_callback_error_fires_on_exception_once_and_propagates():
    points = Points()

    def fail(run):
        if run.iteration == 2:
            raise ValueError("a callback fails")

    adapter = TinyAdapter([points, on("on_train_iter_end")(fail)])
    trainer = Tiny(adapter)
    with adapter, pytest.raises(ValueError, match="a callback fails") as caught:
        trainer.fit(2)
    assert caught.type is ValueError
    assert points.seen == ["begin", "a callback fails", "end"]
    assert "compute" not in vars(trainer)


def test_a_host_error_reaches_the_callbacks_in_a_with_statement():
    points = Points()
    with pytest.raises(ValueError, match="the host fails"), TinyAdapter([points]) as adapter:
        trainer = Tiny(adapter, fail_at=1)
        trainer.fit(2)
    assert points.seen == ["begin", "the host fails", "end"]
    assert "compute" not in vars(trainer)


def test_an_abandoned_run_ends_when_the_next_run_starts():
    points = Points()
    adapter = TinyAdapter([points])
    left = Tiny(adapter, fail_at=1)
    with pytest.raises(ValueError, match="the host fails"):
        left.fit(2)
    assert points.seen == ["begin"]
    Tiny(adapter).fit(1)
    assert points.seen == ["begin", "Tiny ended the last run without an event.", "end", "begin", (1, 3), "end"]
    assert "compute" not in vars(left)


def test_an_error_at_the_end_of_a_failed_run_becomes_a_note():
    class Failing(Callback):
        def on_run_end(self):
            raise KeyError("at the end")

    with pytest.raises(ValueError, match="the host fails") as caught, TinyAdapter([Failing()]) as adapter:
        Tiny(adapter, fail_at=1).fit(1)
    assert any("at the end" in note for note in caught.value.__notes__)


def stopping():
    return cb.EarlyStopping("loss", min_delta=10.0, patience=3)


def test_the_state_of_callbacks_is_restored(tmp_path):
    first, points = TinyAdapter([stopping()]), Points()
    Tiny(first).fit(2)
    again = TinyAdapter([stopping(), points])
    again.state = first.state
    Tiny(again).fit(9, first=3)
    assert points.seen == ["begin", (3, 9), (4, 12), "end"]
    assert again.driver.host.name == "Tiny"


def test_a_host_that_continues_without_state_keeps_its_epoch_number():
    points = Points()
    Tiny(TinyAdapter([points])).fit(6, first=6)
    assert points.seen == ["begin", (6, 3), "end"]


def test_a_damaged_state_raises():
    first = TinyAdapter([stopping()])
    Tiny(first).fit(1)
    for state, why in ((first.state[:-1], "differs from what was written"), (b"\x80\x04N.", "is not a hookpoint state")):
        again = TinyAdapter([stopping()])
        again.state = state
        with pytest.raises(DamagedCheckpoint, match=f"the state in the checkpoint {why}"):
            Tiny(again).fit(2)


def test_state_that_cannot_be_saved_raises_before_the_first_step():
    class Keeps(Callback):
        def state_dict(self):
            return {"lock": object()}

        def load_state_dict(self, state): ...

    trainer = Tiny(TinyAdapter([Keeps()]))
    with pytest.raises(NotSaveable, match="Keeps"):
        trainer.fit(1)
    assert trainer.step == 0


def test_the_run_folder_is_written_continued_and_moved(tmp_path):
    options = {"workdir": tmp_path / "mine", "monitors": [cb.JSONWriter()]}
    adapter = TinyAdapter([], **options, name="tiny", log_every=1, config={"rate": 0.1})
    Tiny(adapter).fit(2)
    facts = json.loads((tmp_path / "mine" / "run.json").read_text())
    assert (facts["name"], facts["status"], facts["epochs_done"], facts["config"]) == ("tiny", "finished", 2, {"rate": 0.1})
    rows = [json.loads(line) for line in (tmp_path / "mine" / "scalars.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows if row["at"] == "step"] == [0.1, 0.2, 0.3] * 2
    again = TinyAdapter([], **options)
    again.state = adapter.state
    Tiny(again).fit(3, first=3)
    rows = [json.loads(line) for line in (tmp_path / "mine" / "scalars.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if row["at"] == "epoch"] == [1, 2, 3]
    Tiny(TinyAdapter([], **options)).fit(1)  # a new run: the earlier run is moved
    assert (tmp_path / "mine" / "previous" / "001" / "run.json").exists()


def test_only_one_run_at_a_time_writes_to_a_workdir(tmp_path):
    class Inner(Callback):
        def on_epoch_end(self):
            Tiny(TinyAdapter([], workdir=tmp_path, monitors=[])).fit(1)

    with pytest.raises(WorkdirInUse):
        Tiny(TinyAdapter([Inner()], workdir=tmp_path, monitors=[])).fit(1)
    Tiny(TinyAdapter([], workdir=tmp_path, monitors=[])).fit(1)  # the lock is released


def test_savers_save_through_the_host():
    written = []

    def save(tags, step):
        written.append((list(tags), step, len(adapter.hosted.state()) > 0))
        return "there"

    adapter = TinyAdapter([cb.ModelSaver().when(Every(steps=2))], save=save)
    Tiny(adapter).fit(1)
    assert written == [(["model"], 2, True), (["end"], 3, True)]
    with pytest.raises(NotUnderHost, match="ModelSaver saves checkpoints, which Tiny does not support"):
        TinyAdapter([cb.ModelSaver()])


def test_defaults_can_be_replaced(tmp_path):
    def names(**options):
        return [entry.name for entry in TinyAdapter([], **options).driver.hooks.entries]

    assert names() == ["MovingAverageSummary", "MergeAllSummaries", "RunUpdateOps"]
    assert names(workdir=tmp_path)[3:] == ["TFEventWriter", "JSONWriter"]
    assert names(workdir=tmp_path, monitors=[], extra_callbacks=[cb.TimeMonitor()]) == ["TimeMonitor"]


def test_an_unknown_option_raises():
    with pytest.raises(BadArgument, match="the adapter for Tiny has no option 'work_dir'"):
        TinyAdapter([], work_dir="runs")


def test_the_learning_rate_of_the_host_has_both_names():
    class Rate:
        name, value = "learning_rate", 0.5

        def get_value(self):
            return self.value

        def set_value(self, value):
            self.value = value

    rate, hosted = Rate(), HostedRun([], HOST, {})
    hosted.start(settings=[rate])
    assert (hosted.driver.run.hyper["learning_rate"], hosted.driver.run.hyper["lr"]) == (0.5, 0.5)
    hosted.driver.run.hyper["lr"] = 0.25
    assert rate.value == 0.25
    hosted.finish()


def test_importing_hookpoint_and_its_callbacks_imports_no_framework():
    code = (
        "import sys, hookpoint; from hookpoint import adapters, callbacks as cb; dir(adapters);"
        "[cb.EarlyStopping('loss'), cb.ModelSaver(), cb.ScheduledHyperParamSetter('lr', [(1, 0.1)])];"
        f"print(sorted(set(sys.modules) & set({FRAMEWORKS!r})))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_adapters_are_listed():
    assert dir(adapters) == adapters.__all__ == sorted(adapters.__all__)
    with pytest.raises(AttributeError, match=r"hookpoint\.adapters has no 'kera'"):
        adapters.kera  # noqa: B018


def test_commands_are_applied_under_a_host(tmp_path):
    rates = []

    @on("on_train_iter_end")
    def command(run):
        rates.append(run.hyper["drop"])
        if run.iteration == 2:
            steering = machine_of(run).control
            for do, args in (("set", {"values": {"drop": 0.25}}), ("validate", {}), ("stop", {"reason": "enough"})):
                steering.submit(ControlCommand(do, args, steering.attempt))

    class Drops(Callback):
        drop = 0.5

        def on_setup(self, run):
            run.hyper.register(ObjAttrParam(self, "drop"))

    drops = Drops()
    trainer = Tiny(TinyAdapter([drops, command], workdir=tmp_path))
    trainer.fit(3)
    with ControlFolder(tmp_path) as folder:
        statuses = [folder.answer(command_id).status for command_id in folder.answers()]
        assert (folder.live().ended, statuses) == (True, ["applied", "refused", "applied"])
    assert (rates[:2], drops.drop) == ([0.5, 0.5], 0.25)


def test_without_control_no_control_folder_is_created(tmp_path):
    Tiny(TinyAdapter([Callback()], workdir=tmp_path, control=False)).fit(1)
    assert not (tmp_path / ".control").exists()


@pytest.mark.parametrize("save", [None, lambda tags, step: "there"])
def test_mirror_raises_because_the_trainer_writes_its_own_checkpoints(tmp_path, save):
    with pytest.raises(NotUnderHost, match="Mirror copies hookpoint's checkpoints, but Tiny writes its own"):
        TinyAdapter([cb.Mirror(f"file://{tmp_path}/there")], workdir=tmp_path / "here", save=save)
