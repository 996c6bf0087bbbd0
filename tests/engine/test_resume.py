from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hookpoint import Every, callbacks, on
from hookpoint.core.errors import CannotResume, NotFinite, NothingToSaveTo, NotSaveable
from hookpoint.engine.data.seeded_samples import SeededSamples
from hookpoint.engine.runner import Runner
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.workdir.find_checkpoint import newest_good


class Gone(BaseException):
    """Raised to interrupt the run, as if the process had ended."""


class Noisy(Dataset):
    """Samples with noise that is drawn on each read."""

    def __init__(self, size=22):
        self.inputs = torch.randn(size, 4, generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index] + torch.randn(4) / 10, self.inputs[index].sum(0, keepdim=True)


class Counts:
    """A metric that accumulates over a pass."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.total, self.number = torch.zeros(()), 0

    def update(self, outputs, targets):
        self.total = self.total + (outputs - targets).abs().sum()
        self.number += len(targets)

    def compute(self):
        return self.total / self.number


def train(workdir, gone_at=None, *, epochs=3, workers=0, when=None, fit=None, saver=None, **options):
    """Train with every kind of state; return weights, optimizer, generators and metrics at the end."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.25), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = SeededSamples(Noisy(), seed=1) if workers else Noisy()
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)
    runner = Runner(
        model,
        optimizer,
        nn.MSELoss(),
        metrics={"error": Counts(), "mean": lambda outputs, targets: outputs.mean()},
        callbacks=[saver or callbacks.ModelSaver().when(Every(steps=2) if when is None else when)],
        workdir=workdir,
        log_every=3,
        **{"lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), **options},
    )

    @runner.on("on_train_iter_end")
    def leave(run):
        if gone_at is not None and run.iteration >= gone_at:
            raise Gone

    run = runner.fit(loader, DataLoader(Noisy(6), batch_size=4), epochs=epochs, **(fit or {}))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    return state, dict(run.metrics), run


def assert_same(one, other):
    assert one[1] == other[1]
    assert_equal(one[0], other[0])
    clocks = [{key: value for key, value in run._clocks.state_dict().items() if key != "elapsed"} for run in (one[2], other[2])]
    assert clocks[0] == clocks[1]


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        for mine, its in zip(one, other, strict=True):
            assert_equal(mine, its)
    else:
        assert one == other


@pytest.mark.thin(3)
@pytest.mark.parametrize("accumulate", [1, 4], ids=lambda number: f"accumulate {number}")
@pytest.mark.parametrize("precision", ["32", "bf16", "fp16"])
@pytest.mark.parametrize("when", [Every(steps=1), Every(epochs=1)], ids=["each step", "each epoch"])
def test_an_interrupted_run_ends_with_the_same_result(tmp_path, precision, accumulate, when, spread):
    options = {"precision": precision, "accumulate": accumulate, "when": when, "lr_scheduler_on": "step"}
    whole = train(tmp_path / "whole", **options)
    for number, gone_at in enumerate(spread([1, 5, 6, 7, 10, 15, 18], 3)):
        workdir = tmp_path / str(number)
        with pytest.raises(Gone):
            train(workdir, gone_at, **options)
        assert_same(train(workdir, **options), whole)


@pytest.mark.parametrize("point", ["on_backward_begin", "on_step_end"])
def test_a_gpu_out_of_memory_error_is_unchanged_and_saves_nothing(point, tmp_path):
    whole = train(tmp_path / "whole")
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    class Hungry(callbacks.ModelSaver):
        @on(point)
        def ask_for_memory(self, run):
            if run.iteration == 7:
                raise error

    with pytest.raises(torch.OutOfMemoryError) as raised:
        train(tmp_path / "run", saver=Hungry().when(Every(steps=2)))
    assert raised.value is error
    assert newest_good(tmp_path / "run").manifest.step == 6
    assert_same(train(tmp_path / "run"), whole)


@pytest.mark.parametrize("gone_at", [4, 8])
def test_a_run_with_workers_and_background_saves_resumes_exactly(tmp_path, gone_at):
    options = {"workers": 2, "epochs": 2}
    whole = train(tmp_path / "whole", **options, saver=_in_background())
    with pytest.raises(Gone):
        train(tmp_path / "cut", gone_at, **options, saver=_in_background())
    assert_same(train(tmp_path / "cut", **options, saver=_in_background()), whole)


def _in_background():
    return callbacks.ModelSaver(async_save=True).when(Every(steps=2))


@pytest.mark.parametrize("every", [Every(steps=5), Every(epochs=2)], ids=["inside epochs", "each second epoch"])
def test_the_validation_schedule_resumes(tmp_path, every, spread):
    fit = {"validate_every": every}
    whole = train(tmp_path / "whole", fit=fit)
    for number, gone_at in enumerate(spread([3, 6, 8, 13], 2)):
        with pytest.raises(Gone):
            train(tmp_path / str(number), gone_at, fit=fit)
        assert_same(train(tmp_path / str(number), fit=fit), whole)


def test_a_changed_validation_schedule_applies_after_a_resume(tmp_path):
    with pytest.raises(Gone):
        train(tmp_path, 3, fit={"validate_every": Every(steps=1000)})
    assert "val_loss" in train(tmp_path, epochs=1, fit={"validate_every": Every(steps=2)})[1]


def test_a_plateau_scheduler_resumes(tmp_path):
    def plateau(workdir, gone_at=None):
        torch.manual_seed(3)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.5)
        saver = callbacks.ModelSaver()
        runner = Runner(model, optimizer, nn.MSELoss(), lr_scheduler=scheduler, callbacks=[saver], workdir=workdir)
        rates = []

        @runner.on("on_epoch_end")
        def note(run):
            rates.append(run.hyper["learning_rate"])

        @runner.on("on_train_iter_end")
        def leave(run):
            if gone_at is not None and run.iteration == gone_at:
                raise Gone

        data = Noisy()
        try:
            runner.fit((data.inputs, data.inputs.sum(1, keepdim=True)), epochs=6, batch_size=8)
        except Gone:
            return rates + plateau(workdir)
        return rates

    whole = plateau(tmp_path / "whole")
    assert len(set(whole)) > 2
    for epoch in range(1, 6):
        assert plateau(tmp_path / str(epoch), 3 * epoch + 1) == whole


@pytest.mark.parametrize("validate_every", [None, Every(steps=4)])
def test_a_higher_max_steps_continues_in_the_middle_of_an_epoch(tmp_path, validate_every):
    def until(max_steps, workdir):
        return train(workdir, fit={"max_steps": max_steps, "validate_every": validate_every})

    whole = until(11, tmp_path / "whole")
    part = until(8, tmp_path / "part")
    assert part[2].step == 8
    again = until(8, tmp_path / "part")
    for name in ("model", "optimizer"):
        assert_equal(again[0][name], part[0][name])
    assert_same(until(11, tmp_path / "part"), whole)


def test_more_epochs_continue_a_finished_run(tmp_path, capsys):
    train(tmp_path / "run", epochs=2)
    assert_same(train(tmp_path / "run", epochs=3), train(tmp_path / "whole", epochs=3))
    capsys.readouterr()
    train(tmp_path / "run", epochs=3)
    assert "has already finished (3 of 3 epochs)" in capsys.readouterr().err


def test_resume_never_starts_from_scratch_and_keeps_the_old_run(tmp_path):
    first = train(tmp_path, epochs=1)
    again = train(tmp_path, epochs=1, resume="never")
    assert_same(again, first)
    assert again[2].step == 6
    assert sorted(path.name for path in (tmp_path / "previous" / "001" / "checkpoints").glob("step-*"))
    assert newest_good(tmp_path).manifest.step == 6


def test_resume_must_raises_without_a_checkpoint(tmp_path):
    with pytest.raises(CannotResume, match="there is no checkpoint in"):
        train(tmp_path, resume="must")


def test_a_different_model_raises_with_a_table(tmp_path):
    train(tmp_path, epochs=1)
    model = nn.Linear(4, 2)
    runner = Runner(model, torch.optim.Adam(model.parameters()), nn.MSELoss(), workdir=tmp_path)
    with pytest.raises(CannotResume, match=r"(?s)does not match this run\.\n.*model.*refused"):
        runner.fit([(torch.zeros(2, 4), torch.zeros(2, 2))], epochs=2)


def test_the_error_for_a_different_model_lists_its_tensors_and_shapes(tmp_path):
    def fit(*layers):
        model = nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        runner = Runner(model, optimizer, nn.MSELoss(), callbacks=[callbacks.ModelSaver()], workdir=tmp_path)
        runner.fit([(torch.zeros(2, 4), torch.zeros(2, 1))], epochs=1)

    fit(nn.Linear(4, 1), nn.BatchNorm1d(1))
    with pytest.raises(CannotResume) as caught:
        fit(nn.Linear(4, 3), nn.Linear(3, 1))
    assert str(caught.value).splitlines()[1:] == [
        "what   saved      now        verdict",
        "model  see below  see below  refused: its weights have different names, shapes or types",
        "  0.weight: (1, 4) torch.float32 when saved, (3, 4) torch.float32 now",
        "  0.bias: (1,) torch.float32 when saved, (3,) torch.float32 now",
        "  1.weight: (1,) torch.float32 when saved, (1, 3) torch.float32 now",
        "  1.running_mean: (1,) torch.float32 when saved, missing now",
        "  1.running_var: (1,) torch.float32 when saved, missing now",
        "  1.num_batches_tracked: () torch.int64 when saved, missing now",
        "  run       the script as it was when the checkpoint was saved",
        '  start     over with resume="never"',
    ]
    with pytest.raises(CannotResume, match="  and 7 more\n  run "):
        fit(*(nn.Linear(4, 4, bias=False) for _ in range(8)), nn.Linear(4, 1))


@pytest.mark.parametrize(
    ("first", "second", "steps"),
    [
        ({"epochs": 10, "max_steps": 4}, {"epochs": 10, "max_steps": 8}, 8),
        ({"epochs": 10, "max_steps": 6}, {"epochs": 10, "max_steps": 8}, 8),
        ({"epochs": 10, "max_steps": 4}, {"epochs": 3}, 9),
        ({"epochs": 2, "max_steps": 6}, {"epochs": 3}, 9),
        ({"epochs": 2, "max_steps": 50}, {"epochs": 3, "max_steps": 50}, 9),
        ({"epochs": 10, "max_steps": 4}, {"epochs": 20, "max_steps": 4}, 4),
    ],
)
def test_a_run_that_reached_max_steps_is_finished_and_can_be_extended(tmp_path, caplog, first, second, steps):
    def fit(**limits):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        runner = Runner(model, optimizer, nn.MSELoss(), callbacks=[callbacks.ModelSaver()], workdir=tmp_path)
        run = runner.fit([(torch.ones(2, 4), torch.ones(2, 1))] * 3, **limits)
        return run.step, RunFolder(tmp_path).status

    assert fit(**first) == (min(first["max_steps"], 3 * first["epochs"]), "finished")
    assert fit(**second) == (steps, "finished")
    told = "max_steps=4 is already reached: nothing to train; pass a higher value to extend the run"
    assert (told in caplog.messages) is (steps == 4)


def test_a_run_stopped_before_max_steps_has_the_status_stopped(tmp_path):
    @on("on_train_iter_end")
    def stop(run):
        run.stop("enough")

    model = nn.Linear(4, 1)
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), callbacks=[stop], workdir=tmp_path)
    runner.fit([(torch.ones(2, 4), torch.ones(2, 1))] * 3, epochs=2, max_steps=3)
    assert (RunFolder(tmp_path).status, RunFolder(tmp_path).reason) == ("stopped", "enough")


def test_weights_that_are_not_finite_are_not_saved(tmp_path, caplog):
    with pytest.raises(NotFinite):
        _diverging(tmp_path)
    assert newest_good(tmp_path).manifest.step == 3
    assert "was not saved" in caplog.text


def _diverging(workdir, *more):
    model = nn.Linear(4, 1)
    saver = callbacks.ModelSaver().when(Every(steps=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runner = Runner(model, optimizer, nn.MSELoss(), callbacks=[saver, *more], workdir=workdir)
    batches = [(torch.randn(4, 4), torch.randn(4, 1)) for _ in range(5)]
    batches[3] = (torch.full((4, 4), torch.nan), batches[3][1])
    runner.fit(batches, epochs=1)


def test_a_saver_without_a_workdir_raises_in_fit_but_not_in_validate():
    model = nn.Linear(4, 1)
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), callbacks=[callbacks.ModelSaver()])
    batches = [(torch.randn(4, 4), torch.randn(4, 1))]
    assert runner.validate(batches)["val_loss"] > 0
    with pytest.raises(NothingToSaveTo) as caught:
        runner.fit(batches, epochs=1)
    assert str(caught.value) == 'ModelSaver has nowhere to save to.\n  give      workdir="runs/name"'


def test_a_run_stopped_by_terminate_on_nan_keeps_its_last_good_checkpoint(tmp_path, caplog):
    _diverging(tmp_path, callbacks.TerminateOnNaN())
    assert newest_good(tmp_path).manifest.step == 3
    assert "step 4 was not saved" in caplog.text


def test_a_model_with_lazy_parameters_resumes_exactly(tmp_path, net, batches):
    def fit(epochs, workdir=None, ready=False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 2))
        if ready:
            model(batches[0][0])
        optimizer = torch.optim.Adam(model.parameters())
        runner = Runner(model, optimizer, nn.MSELoss(), workdir=workdir, callbacks=[callbacks.ModelSaver()] if workdir else [])
        assert runner.fit(batches, epochs=epochs).epoch == epochs
        return [*model.state_dict().values()]

    fit(1, tmp_path)
    fit(2, tmp_path)
    resumed = fit(3, tmp_path, ready=True)
    assert all(map(torch.equal, resumed, fit(3)))


@pytest.mark.parametrize("persistent", [True, False])
def test_a_persistent_sparse_buffer_raises_before_the_first_step(tmp_path, net, batches, persistent):
    model, optimizer = net()
    model.register_buffer("adjacency", torch.eye(3).to_sparse(), persistent=persistent)
    before = model.weight.detach().clone()
    runner = Runner(model, optimizer, nn.MSELoss(), workdir=tmp_path, callbacks=[callbacks.ModelSaver()])
    if not persistent:
        assert runner.fit(batches, epochs=1).epoch == 1
        return
    with pytest.raises(NotSaveable, match=r"^parts\['model'\]\['adjacency'\] is a sparse tensor"):
        runner.fit(batches, epochs=1)
    assert torch.equal(model.weight, before)
    assert Runner(model, optimizer, nn.MSELoss()).fit(batches, epochs=1).epoch == 1
