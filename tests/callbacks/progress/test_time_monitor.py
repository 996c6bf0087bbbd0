from __future__ import annotations

import re

import pytest
import torch

from hookpoint import Callback, Every, Runner
from hookpoint import Loop as WholeLoop
from hookpoint.callbacks import InferenceRunner, ModelSaver, ThroughputTracker, TimeMonitor
from hookpoint.callbacks.progress._lap_timer import TrainingTime
from hookpoint.core.loop.loop import Loop


class Slow:
    """Slow data."""

    def __init__(self, clock, seconds, batches=4):
        self.clock, self.seconds, self.batches = clock, seconds, batches

    def __len__(self):
        return self.batches

    def __iter__(self):
        for number in range(self.batches):
            self.clock.now += self.seconds
            yield number


def measured(*args, clock, **options):
    monitor = TimeMonitor(*args, **options)
    monitor.time = TrainingTime(clock)
    return monitor


def test_the_epoch_time_is_printed_like_in_mindspore_and_logged(train_timed, clock, capsys):
    run = train_timed([measured(clock=clock)], epochs=2)
    assert capsys.readouterr().err.splitlines() == ["Train epoch time: 2000.000 ms, per step time: 500.000 ms"] * 2
    assert run.monitors.get_history("epoch_seconds") == [(4, 2.0), (8, 2.0)]
    assert run.monitors.get_history("step_seconds") == [(4, 0.5), (8, 0.5)]


def test_log_steps_log_the_time_per_step_since_the_last_log_step(recorder, clock):
    monitor = recorder()
    with Loop([measured(clock=clock), monitor], log_every=2) as run:
        for seconds in run.batches([1.0, 3.0, 5.0, 7.0]):
            clock.now += seconds
    assert [row for row in monitor.rows if row[0] == "step"] == [
        ("step", 2, {"step_seconds": 2.0}),
        ("step", 4, {"step_seconds": 6.0}),
    ]


def test_data_size_prints_a_line_every_n_steps(train_timed, clock, capsys):
    train_timed([measured(3, clock=clock)], epochs=2)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("Train")]
    assert lines == ["epoch: 1 step: 3, per step time: 500.000 ms", "epoch: 2 step: 2, per step time: 500.000 ms"]


def test_data_time_is_measured_separately(train_timed, clock, capsys):
    run = train_timed([measured(data_time=True, clock=clock)], batches=Slow(clock, 0.25))
    assert capsys.readouterr().err == "Train epoch time: 3000.000 ms, per step time: 750.000 ms (data time: 250.000 ms)\n"
    assert run.metrics["data_seconds"] == 0.25


def test_validation_does_not_count_and_prints_a_separate_line(train_timed, clock, capsys):
    def forward(batch):
        clock.now += 10
        return [batch]

    infer = InferenceRunner([1, 2], metrics={"x": lambda outputs, targets: outputs[0]}, forward=forward).when(Every(steps=2))
    run = train_timed([measured(clock=clock), infer])
    assert run.metrics["epoch_seconds"] == 2.0
    assert capsys.readouterr().err.splitlines() == [
        "Eval epoch time: 20000.000 ms, per step time: 10000.000 ms",
        "Eval epoch time: 20000.000 ms, per step time: 10000.000 ms",
        "Train epoch time: 2000.000 ms, per step time: 500.000 ms",
    ]


def test_validation_in_your_own_loop_does_not_count(clock):
    with Loop([measured(clock=clock)]) as run:
        for _ in run.batches(range(2)):
            clock.now += 1
            for _ in run.batches(range(3), mode="val"):
                clock.now += 7
    assert run.metrics["epoch_seconds"] == 2.0


def test_validation_time_is_not_among_its_results(clock):
    with Loop([measured(clock=clock)]) as run:
        passes = run.batches(range(3), mode="val")
        for _ in passes:
            run.log(loss=1.0)
    assert set(passes.results) == {"val_loss"}


def test_a_failed_validation_leaves_the_epoch_time_unknown(train_timed, clock, capsys, caplog):
    def forward(batch):
        raise OSError("gone")

    infer = InferenceRunner([1], metrics={"x": lambda o, t: 1.0}, forward=forward, on_error="warn").when(Every(steps=3))
    run = train_timed([measured(clock=clock), infer])
    assert "epoch_seconds" not in run.metrics
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("at", [2, 4])
def test_the_time_of_a_checkpoint_does_not_count(train_timed, saves, clock, disk, at):
    run = train_timed([measured(clock=clock), saves(at, clock=clock)], store=disk)
    assert disk.saved[0][0] == at
    assert run.metrics["epoch_seconds"] == 2.0


def test_a_background_checkpoint_counts_only_while_training_waits(saves, clock, disk, monkeypatch):
    written, write, waiting = [], disk.write, []

    def write_later(state, **given):
        waiting.append(write(state, **given))

    def collect(*, wait=False):
        done, waiting[:] = list(waiting), []
        written.extend(done)
        return done

    monkeypatch.setattr(disk, "write", write_later)
    monkeypatch.setattr(disk, "collect", collect)
    with Loop([measured(clock=clock), saves(2, clock=clock, seconds=0.125, in_background=True)], store=disk) as run:
        for _ in run.batches(range(4)):
            assert len(written) == (run.current_iteration > 3)
            clock.now += 0.5
    assert run.metrics["epoch_seconds"] == 2.125


def test_a_resumed_epoch_counts_as_a_whole(train_timed, cut_off, saves, recorder, clock, disk):
    with pytest.raises(cut_off):
        train_timed([measured(clock=clock), saves(2, clock=clock)], cut_at=3, seconds=1.0, store=disk)
    clock.now += 5000
    second = measured(clock=clock)
    rows = recorder()
    run = train_timed([second, saves(99, clock=clock), rows], seconds=2.0, store=disk)
    assert run.metrics["epoch_seconds"] == 1.0 + 1.0 + 2.0 + 2.0
    assert run.metrics["step_seconds"] == 1.5
    assert ("step", 4, {"step_seconds": 2.0}) in rows.rows


def test_a_callback_added_to_a_resumed_run_counts_what_it_has_seen(train_timed, cut_off, saves, clock, disk):
    with pytest.raises(cut_off):
        train_timed([saves(2, clock=clock)], cut_at=3, store=disk)
    run = train_timed([measured(clock=clock), saves(99, clock=clock)], store=disk)
    assert run.metrics["epoch_seconds"] == 1.0
    assert run.metrics["step_seconds"] == 0.5


def test_an_epoch_cut_short_is_divided_by_its_steps(clock):
    with Loop([measured(clock=clock)]) as run:
        for _ in run.epochs(1):
            for number in run.batches(range(100)):
                clock.now += 1
                if number == 2:
                    break
    assert run.metrics["step_seconds"] == 1.0
    assert run.metrics["epoch_seconds"] == 3.0


def test_optimizer_steps_are_counted(clock, capsys):
    model = torch.nn.Linear(1, 1)
    data = [(torch.ones(1, 1), torch.ones(1, 1))] * 4
    monitor = measured(1, clock=clock)

    class Takes(Callback):
        def on_train_iter_begin(self):
            clock.now += 1

    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.MSELoss(),
        callbacks=[monitor, Takes()],
        accumulate=2,
        monitors=[],
        extra_callbacks=[],
    )
    runner.fit(data, epochs=1)
    assert capsys.readouterr().err.splitlines() == [
        "epoch: 1 step: 2, per step time: 2000.000 ms",
        "epoch: 1 step: 4, per step time: 2000.000 ms",
        "Train epoch time: 4000.000 ms, per step time: 2000.000 ms",
    ]


def test_validation_of_a_runner_prints_a_line(capsys):
    model = torch.nn.Linear(1, 1)
    data = [(torch.ones(1, 1), torch.ones(1, 1))] * 4
    runner = Runner(model, None, torch.nn.MSELoss(), callbacks=[TimeMonitor()], monitors=[], extra_callbacks=[])
    assert set(runner.validate(data)) == {"val_loss"}
    assert re.fullmatch(r"Eval epoch time: [\d.]+ ms, per step time: [\d.]+ ms\n", capsys.readouterr().err)


def test_real_time_is_measured():
    with Loop([TimeMonitor()]) as run:
        for _ in run.batches(range(3)):
            pass
    assert 0 < run.metrics["step_seconds"] < run.metrics["epoch_seconds"]


def test_points_of_a_step_are_used_only_if_requested():
    assert Loop([TimeMonitor()]).hooks.dispatch("on_train_iter_end", "on_iter_end", mode="train") is None
    assert Loop([TimeMonitor()]).hooks.dispatch("on_batch_fetch_begin") is None
    assert Loop([TimeMonitor(5)]).hooks.dispatch("on_train_iter_end", "on_iter_end", mode="train") is not None
    assert Loop([TimeMonitor(data_time=True)]).hooks.dispatch("on_batch_fetch_begin") is not None


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "3"])
def test_an_invalid_data_size_raises(size):
    with pytest.raises(ValueError, match="data_size must be an integer >= 1"):
        TimeMonitor(size)


def test_a_monitor_works_together_with_a_saver(tmp_path, clock):
    with WholeLoop([measured(clock=clock), ModelSaver()], extra_callbacks=[], monitors=[], workdir=tmp_path) as run:
        for _ in run.epochs(2):
            for _ in run.batches(range(3)):
                clock.now += 1
    assert run.monitors.get_history("epoch_seconds") == [(3, 3.0), (6, 3.0)]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
def test_gpu_work_counts_in_the_pass_that_launched_it():
    numbers = torch.rand(4096, 4096, device="cuda")

    def work(times):
        began, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        for _ in range(times):
            numbers @ numbers
        done.record()
        return began, done

    work(10)
    torch.cuda.synchronize()
    trained, validated = [], []
    with Loop([TimeMonitor()]) as run:
        for _ in run.batches(range(3)):
            trained.append(work(20))
            validated += [work(100) for _ in run.batches(range(1), mode="val")]
    train_seconds, val_seconds = (sum(a.elapsed_time(b) for a, b in done) / 1000 for done in (trained, validated))
    assert 0.9 * train_seconds < run.metrics["epoch_seconds"] < val_seconds


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_step_waits_for_a_gpu(tmp_path):
    model = torch.nn.Linear(4, 1)
    data = [(torch.ones(2, 4), torch.ones(2, 1))] * 8
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.MSELoss(),
        callbacks=[TimeMonitor(2, data_time=True), ThroughputTracker(), ModelSaver()],
        device="cuda",
        strict_sync=True,
        workdir=tmp_path,
        monitors=[],
        extra_callbacks=[],
    )
    runner.fit(data, data, epochs=2, validate_every=Every(steps=3))
