"""Gradient statistics are those that a step uses: accumulated, clipped and unscaled."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint import Every, Loop, Runner, on
from hookpoint.callbacks import EarlyStopping, GradientStats, ModelSaver
from hookpoint.core.errors import BadLoop
from hookpoint.core.loop.services import machine_of

QUIET = {"extra_callbacks": [], "monitors": []}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def data(number=5):
    torch.manual_seed(1)
    return [(torch.randn(4, 2), torch.randn(4, 1)) for _ in range(number)]


def make(model, *callbacks, monitors=(), log_every=1, optimizer=None, criterion=None, **options):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01) if optimizer is None else optimizer
    options = {"extra_callbacks": [], "monitors": monitors, "log_every": log_every, "device": "cpu", **options}
    return Runner(model, optimizer, criterion or nn.MSELoss(), callbacks=callbacks, **options)


def by_hand(accumulate, clip):
    """Return the gradients of each step of a plain loop, and the weights before and after the step."""
    model, steps = net(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = data()
    for number, (inputs, targets) in enumerate(batches):
        (nn.functional.mse_loss(model(inputs), targets) / accumulate).backward()
        if (number + 1) % accumulate == 0 or number + 1 == len(batches):
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            gradients = torch.cat([one.grad.flatten() for one in model.parameters()])
            before = torch.cat([one.detach().flatten() for one in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
            steps.append((gradients, before, torch.cat([one.detach().flatten() for one in model.parameters()])))
    return steps


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_statistics_match_those_of_a_plain_loop(recorder, accumulate, clip):
    monitor = recorder()
    stats = GradientStats(updates=True, every=1)
    make(net(), stats, monitors=[monitor], accumulate=accumulate, clip_grad_norm=clip).fit(data(), epochs=1)
    steps = by_hand(accumulate, clip)
    expected = {
        "norm": [float(gradients.norm()) for gradients, _, _ in steps],
        "max": [float(gradients.abs().max()) for gradients, _, _ in steps],
        "nonfinite": [0.0 for _ in steps],
        "update_ratio": [float((after - before).norm() / before.norm()) for _, before, after in steps],
    }
    for name, values in expected.items():
        assert monitor.of(f"gradient/{name}") == [(step, pytest.approx(value)) for step, value in enumerate(values, 1)]


def test_an_incomplete_last_window_of_a_loader_without_a_length_is_measured(recorder):
    monitor = recorder()
    make(net(), GradientStats(every=1), monitors=[monitor], accumulate=2, log_every=1).fit(Unsized(), epochs=1)
    steps = by_hand(2, None)
    assert [value for _, value in monitor.of("gradient/norm")] == pytest.approx([float(one.norm()) for one, _, _ in steps[:2]])


class Unsized:
    def __iter__(self):
        return iter(data())


def test_each_parameter_can_have_its_own_statistics():
    model = net()
    run = make(model, GradientStats("2.*", per_parameter=True, every=1)).fit(data(1), epochs=1)
    gradients = {name: one.grad for name, one in model.named_parameters()}
    for name in ("2.weight", "2.bias"):
        assert run.metrics[f"gradient/{name}/norm"] == pytest.approx(float(gradients[name].norm()))
        assert run.metrics[f"gradient/{name}/max"] == pytest.approx(float(gradients[name].abs().max()))
    both = torch.cat([gradients["2.weight"].flatten(), gradients["2.bias"]])
    assert run.metrics["gradient/norm"] == pytest.approx(float(both.norm()))
    assert not any("0.weight" in name for name in run.metrics)


def test_by_default_only_log_steps_are_measured(recorder):
    monitor = recorder()
    make(net(), GradientStats(), monitors=[monitor], log_every=2).fit(data(), epochs=1)
    steps = by_hand(1, None)
    expected = [(step, pytest.approx(float(steps[step - 1][0].norm()))) for step in (2, 4)]
    assert monitor.of("gradient/norm") == expected


def test_frozen_parameters_have_no_statistics():
    model = net()
    model[0].requires_grad_(False)
    run = make(model, GradientStats(every=1, per_parameter=True)).fit(data(1), epochs=1)
    assert {name.split("/")[1] for name in run.metrics if name.count("/") == 2} == {"2.weight", "2.bias"}


def test_the_share_of_nonfinite_gradients_is_logged():
    model = net()

    @on("on_backward_end")
    def spoil(run):
        model[2].bias.grad.fill_(float("nan"))

    run = make(model, spoil, GradientStats(every=1)).fit(data(1), epochs=1)
    assert run.metrics["gradient/nonfinite"] == pytest.approx(1 / 13)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("overflows", [False, True])
def test_scaled_gradients_are_measured_without_their_scale(recorder, fused, overflows):
    """A fused optimizer unscales and skips within its step; any other optimizer is not called when gradients overflow."""
    model, monitor = net(), recorder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    stats = GradientStats(every=1)
    with Loop([stats], model=model, optimizer=optimizer, extra_callbacks=[], monitors=[monitor], log_every=1) as run:
        for inputs, targets in run.batches(data(1)):
            scaler.scale(nn.functional.mse_loss(model(inputs), targets)).backward()
            if overflows:
                model[2].bias.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
    if not overflows:
        assert monitor.of("gradient/norm") == [(1, pytest.approx(float(by_hand(1, None)[0][0].norm())))]
    elif fused:
        assert monitor.of("gradient/nonfinite") == [(1, pytest.approx(1 / 13))]
    else:
        assert monitor.of("gradient/nonfinite") == []


def test_training_is_bitwise_the_same_as_without_statistics():
    models = [net(), net()]
    make(models[0], GradientStats(every=1, per_parameter=True, updates=True)).fit(data(), epochs=2)
    make(models[1]).fit(data(), epochs=2)
    assert all(map(torch.equal, models[0].state_dict().values(), models[1].state_dict().values()))


def test_step_ends_are_observed_only_for_updates():
    def listens(stats):
        return Loop([stats], **QUIET).hooks.dispatch("on_step_end", mode="train") is not None

    assert listens(GradientStats(updates=True))
    assert not listens(GradientStats())


def test_a_skipped_step_leaves_no_tensors_behind():
    stats = GradientStats(every=1, updates=True)

    @on("on_step_begin")
    def skip(run):
        run.skip_step()

    make(net(), stats, skip).fit(data(2), epochs=1)
    assert (stats._before, stats._parameters) == (None, {})


def test_a_compiled_model_keeps_its_parameter_names():
    torch.compiler.reset()
    model = torch.compile(net(), backend="eager")
    run = make(model, GradientStats("0.*", every=1, per_parameter=True)).fit(data(1), epochs=1)
    assert run.metrics["gradient/norm"] > 0
    assert "gradient/0.weight/norm" in run.metrics
    torch.compiler.reset()


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"GradientStats: every must be an integer >= 1, got True"):
        GradientStats(every=True)
    with pytest.raises(BadLoop, match=r"'0\.wieght' matches no parameter\.\n  similar   0\.weight"):
        make(net(), GradientStats("0.wieght")).fit(data(), epochs=1)
    unseen = r"needs an optimizer to measure gradients\.\n  give      optimizer="
    with pytest.raises(BadLoop, match=unseen), Loop([GradientStats()], model=net(), **QUIET):
        pass
    with pytest.raises(BadLoop, match="log_every=0 disables them"):
        make(net(), GradientStats(), log_every=0).fit(data(), epochs=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("precision", ["32", "fp16"])
def test_no_step_waits_for_a_gpu(recorder, precision):
    monitor, model = recorder(), net()
    stats = GradientStats(every=1, per_parameter=True, updates=True)
    optimizer = torch.optim.Adam(model.cuda().parameters(), lr=0.01, fused=True)
    options = {"device": "cuda", "precision": precision, "strict_sync": True, "log_every": 2}
    runner = make(model, stats, monitors=[monitor], optimizer=optimizer, criterion=small_loss, **options)
    runner.fit(data(), epochs=1)
    expected = [float(one.norm()) / 100 for one, _, _ in by_hand(1, None)]
    found = monitor.of("gradient/norm")
    assert found[0] == (2, pytest.approx((expected[0] + expected[1]) / 2, rel=0.05))


def small_loss(outputs, targets):
    return nn.functional.mse_loss(outputs, targets) / 100  # otherwise the initial scale of fp16 would overflow


def two_networks(*callbacks, order="ab", b_every=1, epochs=1, batches=4, log_every=1, given=dict, **options):
    """Train two networks whose gradients are 3 and 4 in the first step and grow by 10 per step. Return the run."""
    models = {name: nn.Linear(1, 1, bias=False) for name in "ab"}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.0) for name, model in models.items()}
    options = {"extra_callbacks": [], "log_every": log_every, **options}
    with Loop(callbacks, model=given(models), optimizer=given(optimizers), **options) as run:
        for batch in (batch for _ in range(epochs) for batch in run.batches(range(batches))):
            for name in order:
                if name == "b" and (batch + 1) % b_every:
                    continue
                models[name].zero_grad()
                factor = {"a": 3, "b": 4}[name] + 10 * batch
                (factor * models[name](torch.ones(1, 1))).sum().backward()
                optimizers[name].step()
    return run


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_each_optimizer_has_separate_metrics(recorder, order):
    monitor = recorder()
    two_networks(GradientStats(every=1, updates=True, per_parameter=True), order=order, batches=2, monitors=[monitor])
    assert monitor.of("gradient/norm") == monitor.of("gradient/a.weight/norm") == [(1, 3.0), (2, 13.0)]
    assert monitor.of("gradient/norm@b") == monitor.of("gradient/b.weight/norm") == [(1, 4.0), (2, 14.0)]
    assert monitor.of("gradient/update_ratio@b") == [(1, 0.0), (2, 0.0)]


def test_optimizers_in_a_list_are_named_by_index():
    run = two_networks(GradientStats(every=1), given=lambda pairs: list(pairs.values()), monitors=[])
    assert (run.metrics["gradient/norm"], run.metrics["gradient/norm@1"]) == (18.0, 19.0)


def test_a_metric_of_a_second_optimizer_may_be_logged_for_the_first_time_in_a_later_epoch():
    stopping = EarlyStopping("gradient/norm@b", mode="min")
    two_networks(GradientStats(every=6), stopping, epochs=3, monitors=[])
    assert stopping.best.value == 14.0


@pytest.mark.parametrize("options", [{"every": 2}, {"every": None, "log_every": 2}], ids=["every", "log steps"])
def test_every_nth_step_of_each_optimizer_is_measured(recorder, options):
    monitor, every = recorder(), options.pop("every")
    two_networks(GradientStats(every=every), b_every=3, batches=12, monitors=[monitor], **options)
    assert [value for _, value in monitor.of("gradient/norm@b")] == [54.0, 114.0]  # its second and fourth step


def test_log_steps_that_are_changed_during_the_run_apply_to_each_optimizer(recorder):
    @on("on_run_begin")
    def changes(run):
        machine_of(run).logbook.set_log_every(4, moves_next=True)

    monitor = recorder()
    two_networks(GradientStats(), changes, batches=8, monitors=[monitor])
    assert monitor.of("gradient/norm") == [(4, 33.0), (8, 73.0)]
    assert monitor.of("gradient/norm@b") == [(4, 34.0), (8, 74.0)]


def test_a_resumed_run_measures_the_same_steps_of_each_optimizer(tmp_path, recorder):
    @on("on_iter_begin")
    def fails(run):
        if run.iteration == 6:
            raise MemoryError

    stats, saver, monitor = GradientStats(every=4), ModelSaver().when(Every(steps=1)), recorder()
    with pytest.raises(MemoryError):
        two_networks(stats, saver, fails, batches=8, workdir=tmp_path, monitors=[])
    two_networks(stats, saver, batches=8, workdir=tmp_path, monitors=[monitor])
    assert monitor.of("gradient/norm") == [(8, 73.0)]
    assert monitor.of("gradient/norm@b") == [(8, 74.0)]
