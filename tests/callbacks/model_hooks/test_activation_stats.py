"""Activation statistics are those of the outputs, and only measured steps have any."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookpoint import Callback, Every, Loop, Runner
from hookpoint.callbacks import ActivationStats, GradientStats, JSONWriter, ModelSaver
from hookpoint.core.errors import BadLoop
from hookpoint.monitors import read_scalars


def activations(monitor):
    """Return (step, name, value) of each activation statistic that the monitor received."""
    return [
        (step, name, value)
        for step, scalars in monitor.steps
        for name, value in scalars.items()
        if name.startswith("activation/")
    ]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten())
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Twice(Net):
    def forward(self, x):
        return super().forward(x) + super().forward(2 * x)


class Checkpointed(Net):
    reentrant = False

    def forward(self, x):
        return self.head(checkpoint(self.body, x.requires_grad_(), use_reentrant=self.reentrant))


class Reentrant(Checkpointed):
    reentrant = True


def data(number=6):
    torch.manual_seed(1)
    return [(torch.randn(4, 1, 6, 6), torch.randint(0, 2, (4,))) for _ in range(number)]


def made(kind=Net):
    torch.manual_seed(0)
    return kind()


def make(model, *callbacks, monitors=(), log_every=2, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"extra_callbacks": [], "monitors": monitors, "log_every": log_every, "device": "cpu", **options}
    return Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, **options)


def outputs_of(kind, name, **options):
    """Return the outputs of a module in each training step, recorded by a plain forward hook."""
    model, outputs = made(kind), []
    module = model.get_submodule(name)

    def keep(module, args, output):
        if module.training and torch._C._current_graph_task_id() == -1:
            outputs.append(output.detach().clone())

    module.register_forward_hook(keep)
    make(model, **options).fit(data(), data(1), epochs=2)
    return outputs


def expected(outputs):
    numbers = torch.cat([one.flatten() for one in outputs]).double()
    values = (numbers.mean(), numbers.std(correction=0), (numbers == 0).double().mean(), numbers.abs().max())
    return dict(zip(("mean", "std", "zeros", "max"), map(float, values), strict=True))


@pytest.mark.parametrize("name", ["body.0", "body.1", "head"])
@pytest.mark.parametrize("kind", [Net, Twice, Checkpointed, Reentrant])
def test_statistics_match_those_of_plain_forward_hooks(recorder, kind, name, hooked_modules):
    monitor, model = recorder(), made(kind)
    make(model, ActivationStats(name), monitors=[monitor]).fit(data(), data(1), epochs=2)
    outputs = outputs_of(kind, name)
    calls = len(outputs) // 12
    for stat in ("mean", "std", "zeros", "max"):
        found = monitor.of(f"activation/{name}/{stat}")
        assert [step for step, _ in found] == [2, 4, 6, 8, 10, 12]
        at_steps = [expected(outputs[calls * (step - 1) : calls * step])[stat] for step, _ in found]
        assert [value for _, value in found] == pytest.approx(at_steps, rel=1e-4, abs=1e-6)
    assert hooked_modules(model) == []


def test_with_every_values_are_means_over_each_nth_step(recorder):
    monitor = recorder()
    run = make(made(), ActivationStats("head", every=2, stats=["mean"]), monitors=[monitor], log_every=4).fit(data(), epochs=2)
    outputs = [float(one.mean()) for one in outputs_of(Net, "head")]
    means = [(outputs[step - 3] + outputs[step - 1]) / 2 for step in (4, 8, 12)]
    assert monitor.of("activation/head/mean") == [
        (4, pytest.approx(means[0])),
        (8, pytest.approx(outputs[7])),
        (12, pytest.approx(means[2])),
    ]
    assert [name for name in run.metrics if name.startswith("activation")] == ["activation/head/mean"]


def test_all_batches_of_an_accumulated_step_are_measured(recorder):
    monitor = recorder()
    make(made(), ActivationStats("head", stats="mean"), monitors=[monitor], accumulate=2).fit(data(), epochs=2)
    outputs = [float(one.mean()) for one in outputs_of(Net, "head", accumulate=2)]
    assert monitor.of("activation/head/mean") == [
        (2, pytest.approx((outputs[2] + outputs[3]) / 2)),
        (4, pytest.approx((outputs[6] + outputs[7]) / 2)),
        (6, pytest.approx((outputs[10] + outputs[11]) / 2)),
    ]


def test_hooks_are_registered_only_in_measured_iterations(hooked_modules):
    class Looks(Callback):
        def __init__(self):
            self.found = []

        def on_backward_end(self, run):
            self.found.append(hooked_modules(run.model))

    looks = Looks()
    make(made(), ActivationStats("body.*", every=3), looks).fit(data(), epochs=1)
    names = ["body.0", "body.1", "body.2"]
    assert looks.found == [[], [], names, [], [], names]


def test_passes_within_an_iteration_are_not_measured(recorder):
    class Looks(Callback):
        def on_train_iter_begin(self, run):
            run.evaluate([(9 * torch.ones(4, 1, 6, 6), torch.zeros(4, dtype=torch.long))])

    for callbacks in ([ActivationStats("head", every=1), Looks()], [ActivationStats("head", every=1)]):
        model, monitor = made(), recorder()
        make(model, *callbacks, monitors=[monitor]).fit(data(), epochs=1)
        values = [value for _, value in monitor.of("activation/head/max")]
        if len(callbacks) == 2:
            with_passes = values
    assert values == with_passes


def test_a_skipped_batch_is_not_measured(recorder, hooked_modules):
    class Skips(Callback):
        def on_backward_begin(self, run):
            if run.batch_idx == 1:
                run.skip_batch()

    monitor, model = recorder(), made()
    make(model, ActivationStats("head", every=2, stats="mean"), Skips(), monitors=[monitor]).fit(data(3), epochs=1)
    assert [step for step, _ in monitor.of("activation/head/mean")] == [2]
    assert hooked_modules(model) == []


def test_no_hook_is_left_after_an_exception(hooked_modules):
    class Fails(Callback):
        def on_backward_end(self, run):
            raise RuntimeError("enough")

    stats, model = ActivationStats("*", every=1), made()
    with pytest.raises(RuntimeError, match="enough"):
        make(model, stats, Fails()).fit(data(), epochs=1)
    assert hooked_modules(model) == []
    make(model, stats).fit(data(1), epochs=1)
    assert hooked_modules(model) == []


def test_activations_are_measured_in_your_own_loop(recorder):
    model, monitor = made(), recorder()
    with Loop([ActivationStats("head")], model=model, extra_callbacks=[], monitors=[monitor], log_every=2) as run:
        for x, _ in run.batches(data(3)):
            model(x)
    assert [step for step, _ in monitor.of("activation/head/std")] == [2]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiled_model_is_measured(recorder, in_place, hooked_modules):
    torch.compiler.reset()
    plain, monitor, model = recorder(), recorder(), made()
    make(made(), ActivationStats(["body.1", "head"]), monitors=[plain]).fit(data(), epochs=1)
    compiled = model if in_place else torch.compile(model, backend="eager")
    if in_place:
        model.compile(backend="eager")
    compiled(data(1)[0][0])
    make(compiled, ActivationStats(["body.1", "head"]), monitors=[monitor]).fit(data(), epochs=1)
    values, expected = activations(monitor), activations(plain)
    assert [one[:2] for one in values] == [one[:2] for one in expected]
    assert [one[2] for one in values] == pytest.approx([one[2] for one in expected], rel=1e-4)
    assert len(values) == 3 * 8
    assert hooked_modules(model) == []
    torch.compiler.reset()


def test_a_resumed_run_logs_the_same_values(cut_off, tmp_path):
    class Cuts(Callback):
        def on_train_iter_begin(self, run):
            if run.iteration == 8:
                raise cut_off

    def fit(workdir, *others):
        stats = [ActivationStats("*", every=2), GradientStats(every=3, updates=True)]
        callbacks = [*stats, ModelSaver().when(Every(steps=5)), *others]
        return make(made(), *callbacks, monitors=[JSONWriter()], log_every=4, workdir=workdir).fit(data(), epochs=2)

    def logged(workdir):
        chosen = ("activation/", "gradient/")
        return [
            (record["step"], name, value)
            for record in read_scalars(workdir / "scalars.jsonl")
            for name, value in record.items()
            if name.startswith(chosen)
        ]

    fit(tmp_path / "whole")
    with pytest.raises(cut_off):
        fit(tmp_path / "cut", Cuts())
    fit(tmp_path / "cut")
    assert len(logged(tmp_path / "whole")) > 50
    assert logged(tmp_path / "cut") == logged(tmp_path / "whole")


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"ActivationStats: stats must be 'mean', 'std', 'zeros' or 'max', got 'median'"):
        ActivationStats("*", stats=["median"])
    with pytest.raises(ValueError, match=r"ActivationStats: every must be an integer >= 1, got 0"):
        ActivationStats("*", every=0)
    with pytest.raises(BadLoop, match=r"'haed' matches no module\.\n  similar   head"):
        make(made(), ActivationStats("haed")).fit(data(), epochs=1)
    with pytest.raises(
        BadLoop, match=r"measures at log steps, but log_every=0 disables them\.\n  give      ActivationStats\(every=100\)"
    ):
        make(made(), ActivationStats("head"), log_every=0).fit(data(), epochs=1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_step_waits_for_a_gpu(recorder):
    monitor = recorder()
    make(made(), ActivationStats("*", every=1), monitors=[monitor], device="cuda", strict_sync=True).fit(data(), epochs=2)
    assert [step for step, _ in monitor.of("activation/body.1/zeros")] == [2, 4, 6, 8, 10, 12]
