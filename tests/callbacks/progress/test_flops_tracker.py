from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookpoint import Callback, Every, Runner
from hookpoint.callbacks import FlopsTracker, ModelSaver
from hookpoint.callbacks.progress import flops_tracker
from hookpoint.callbacks.progress._batch_signature import Flops, signature_of
from hookpoint.callbacks.progress._lap_timer import TrainingTime
from hookpoint.callbacks.progress._peak_flops import PEAK_TFLOPS, peak_flops
from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.core.loop.loop import Loop

FORWARD = 2 * 8 * 16 + 2 * 16 * 4  # per sample
STEP = FORWARD + 2 * 8 * 16 + 2 * 2 * 16 * 4  # the input needs no gradient


class Net(nn.Module):
    def __init__(self, recomputes=False):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.recomputes = recomputes

    def layers(self, batch):
        return self.second(self.first(batch).relu()).sum(1, keepdim=True).tanh()

    def forward(self, batch):
        return checkpoint(self.layers, batch, use_reentrant=False) if self.recomputes else self.layers(batch)


def fit(tracker, recorder, *, sizes=(4, 4, 4, 4), epochs=1, net=Net, callbacks=(), **options):
    torch.manual_seed(1)
    net = net()
    data = [(torch.randn(size, 8), torch.randn(size, 1)) for size in sizes]
    monitor = recorder()
    options = {"log_every": 2, "monitors": [monitor], "extra_callbacks": [], **options}
    runner = Runner(net, torch.optim.SGD(net.parameters(), lr=0.1), nn.MSELoss(), callbacks=[*tracker, *callbacks], **options)
    runner.fit(data, epochs=epochs)
    rows = [values for at, _, values in monitor.rows if at == "step"]
    return net, [{name: row.get(name) for name in ("model_flops", "mfu", "hfu")} for row in rows]


class Tick(Callback):
    """Let a second pass in each iteration."""

    def __init__(self, clock):
        self.clock = clock

    def on_train_iter_begin(self):
        self.clock.now += 1


def tracked(clock=None, **options):
    tracker = FlopsTracker(**{"peak_flops": 1000 * STEP, **options})
    if clock is not None:
        tracker.time = TrainingTime(clock)
    return tracker


def test_flops_of_a_step_and_the_utilization_are_logged(recorder, clock):
    _, rows = fit([tracked(clock)], recorder, callbacks=[Tick(clock)])
    # The first iteration is counted but not timed.
    assert rows == [{"model_flops": 4 * STEP, "mfu": 0.004, "hfu": 0.004}] * 2


def test_each_shape_is_counted_once(recorder, clock, monkeypatch):
    counted = []
    start = flops_tracker.FlopsTracker._start
    monkeypatch.setattr(FlopsTracker, "_start", lambda self, run: (counted.append(run.batch_idx), start(self, run)))
    _, rows = fit([tracked(clock)], recorder, sizes=(4, 2, 4, 2), epochs=2, callbacks=[Tick(clock)])
    assert counted == [0, 1]
    assert [row["model_flops"] for row in rows] == [3 * STEP] * 4
    assert [row["mfu"] for row in rows] == [None, *[0.003] * 3]


def test_flops_are_summed_only_at_log_steps(recorder, monkeypatch):
    added, plus = [], Flops.plus
    monkeypatch.setattr(Flops, "plus", lambda self, *args: added.append(args) or plus(self, *args))
    sums = []
    for sizes in ([4] * 8, [4] * 80):
        added.clear()
        _, [row] = fit([tracked()], recorder, sizes=sizes, log_every=len(sizes))
        assert row["model_flops"] == 4 * STEP
        sums.append(len(added))
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2, 3), torch.ones(3, 2)),
        ((torch.ones(2),), (torch.ones(2).int(),)),
        ({"x": torch.ones(2), "name": "a"}, {"x": torch.ones(3), "name": "a"}),
        ([torch.ones(2), [torch.ones(3)]], [torch.ones(2), [torch.ones(4)]]),
    ],
)
def test_a_signature_contains_nested_shapes_and_dtypes(one, other):
    assert signature_of(one) == signature_of(copy.deepcopy(one))
    assert signature_of(one) != signature_of(other)


def test_recomputation_counts_only_for_the_hardware(recorder, clock):
    _, rows = fit([tracked(clock)], recorder, net=lambda: Net(recomputes=True), callbacks=[Tick(clock)])
    assert [row["model_flops"] for row in rows] == [4 * STEP] * 2
    assert rows[1]["mfu"] == 0.004
    assert rows[1]["hfu"] == pytest.approx(0.004 * (STEP + FORWARD) / STEP)


def test_a_step_sums_the_flops_of_its_batches(recorder):
    _, rows = fit([tracked()], recorder, accumulate=2, log_every=1)
    assert [row["model_flops"] for row in rows] == [8 * STEP] * 2


def test_training_is_bitwise_the_same_with_a_tracker(recorder):
    (with_it, _), (without, _) = (fit(trackers, recorder, net=lambda: Net(recomputes=True)) for trackers in ([tracked()], []))
    assert all(torch.equal(one, other) for one, other in zip(with_it.parameters(), without.parameters(), strict=True))


def test_flops_are_counted_again_when_parameters_are_unfrozen(recorder):
    class Thaw(Callback):
        def on_epoch_begin(self, run):
            run.model.first.requires_grad_(run.epoch > 1)

    _, rows = fit([tracked()], recorder, epochs=2, callbacks=[Thaw()])
    frozen = FORWARD + 2 * 16 * 4
    assert [row["model_flops"] for row in rows] == [4 * frozen] * 2 + [4 * STEP] * 2


def test_a_skipped_iteration_is_not_counted(recorder):
    class Skip(Callback):
        may_skip = True

        def on_backward_begin(self, run):
            if run.batch_idx == 0:
                run.skip_backward()

    _, rows = fit([tracked()], recorder, callbacks=[Skip()], sizes=(4, 4, 4), log_every=1)
    assert [row["model_flops"] for row in rows] == [4 * STEP] * 2


def test_an_evaluation_within_an_iteration_does_not_count(recorder):
    class Evaluate(Callback):
        before = ("FlopsTracker",)

        def on_train_iter_end(self, run):
            if run.batch_idx == 0:
                run.evaluate([(torch.zeros(64, 8), torch.zeros(64, 1))])

    _, rows = fit([tracked()], recorder, callbacks=[Evaluate()], log_every=1)
    assert [row["model_flops"] for row in rows] == [None, *[4 * STEP] * 3]


def test_flops_of_further_shapes_are_estimated(recorder, monkeypatch):
    counted = []
    start = flops_tracker.FlopsTracker._start
    monkeypatch.setattr(FlopsTracker, "_start", lambda self, run: (counted.append(run.batch_idx), start(self, run)))
    monkeypatch.setattr(flops_tracker, "MAX_SIGNATURES", 2)
    _, rows = fit([tracked()], recorder, sizes=(4, 8, 6, 16), log_every=1)
    assert [row["model_flops"] for row in rows] == [4 * STEP, 8 * STEP, 6 * STEP, 16 * STEP]
    assert counted == [0, 1]


def test_nothing_is_left_behind_after_an_error(recorder):
    class Fails(Callback):
        def on_backward_begin(self):
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fit([tracked()], recorder, callbacks=[Fails()])
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []


def test_flops_are_tracked_in_your_own_loop(recorder):
    net, monitor = Net(), recorder()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Loop([tracked(), monitor], model=net, optimizer=optimizer, log_every=1) as run:
        for batch in run.batches([torch.ones(4, 8)] * 2):
            optimizer.zero_grad()
            net(batch).sum().backward()
            optimizer.step()
    assert [values["model_flops"] for at, _, values in monitor.rows if at == "step"] == [4 * STEP] * 2


def test_a_resumed_window_has_the_flops_of_both_parts(recorder, tmp_path):
    class Cut(Callback):
        def on_train_iter_begin(self, run):
            if run.step == 3:
                raise OSError("cut")

    given = {"workdir": tmp_path, "sizes": (4, 4, 4, 8), "log_every": 4}
    with pytest.raises(OSError, match="cut"):
        fit([tracked()], recorder, callbacks=[ModelSaver().when(Every(steps=3)), Cut()], **given)
    _, rows = fit([tracked()], recorder, callbacks=[ModelSaver().when(Every(steps=3))], **given)
    assert [row["model_flops"] for row in rows] == [5 * STEP]


def test_a_model_without_known_operators_is_reported_once(recorder, caplog):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(8))

        def forward(self, batch):
            return (batch * self.factor).sum(1, keepdim=True)

    _, rows = fit([tracked()], recorder, net=Scale, sizes=(4, 2, 4, 2))
    assert rows == [{"model_flops": None, "mfu": None, "hfu": None}] * 2
    assert caplog.text.count("torch counts no FLOPs in step 1") == 1


def test_without_a_known_peak_utilization_is_not_logged(recorder, caplog):
    caplog.set_level("INFO", "hookpoint")
    _, rows = fit([FlopsTracker()], recorder)
    assert rows == [{"model_flops": 4 * STEP, "mfu": None, "hfu": None}] * 2
    assert "FlopsTracker logs neither mfu nor hfu: the peak of 'cpu' is unknown. Pass peak_flops=..." in caplog.text


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10G", 70.0),
        ("Tesla V100-PCIE-16GB", 112.0),
        ("Tesla V100-SXM2-32GB", 125.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA GeForce RTX 3090", 71.0),
        ("NVIDIA RTX A4000", None),
        ("cpu", None),
    ],
)
def test_the_peak_depends_on_the_device(device, tflops):
    assert peak_flops(device) == (None if tflops is None else tflops * 1e12)


def test_every_device_in_the_table_is_found():
    assert {name: peak_flops(f"NVIDIA {name} 80GB") for name in PEAK_TFLOPS} == {n: t * 1e12 for n, t in PEAK_TFLOPS.items()}


def test_tracking_without_log_steps_raises(recorder):
    with pytest.raises(BadLoop, match="FlopsTracker logs at log steps, but log_every=0 disables them"):
        fit([tracked()], recorder, log_every=0)


@pytest.mark.parametrize("peak", [0, -1.0, float("inf"), "989"])
def test_a_peak_that_is_not_positive_raises(peak):
    with pytest.raises(BadArgument, match="FlopsTracker: peak_flops must be a number > 0"):
        FlopsTracker(peak_flops=peak)
