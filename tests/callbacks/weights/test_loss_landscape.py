from __future__ import annotations

import errno
import json
import os
import random
import signal

import numpy
import pytest
import torch
from torch import nn

from hookpoint import Every, Loop, Runner, callbacks
from hookpoint.callbacks.weights import _weight_snapshots
from hookpoint.core import errors
from hookpoint.storage.disk import disk

torch.manual_seed(5)
X, Y = torch.randn(32, 3), torch.randn(32, 1)
DATA = [(X[:20], Y[:20]), (X[20:], Y[20:])]


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def fit(workdir, landscape=None, epochs=4, also=(), save_every=1, **options):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    listed = [*([landscape] if landscape is not None else []), callbacks.ModelSaver().when(Every(epochs=save_every)), *also]
    quiet = {"extra_callbacks": [], "monitors": [], "criterion": nn.MSELoss()}
    runner = Runner(model, optimizer, callbacks=listed, workdir=workdir, **{**quiet, **options})
    runner.fit((X, Y), epochs=epochs, batch_size=8)
    return model


def small(**options):
    return callbacks.LossLandscape(DATA, **{"size": 5, **options})


def result(workdir):
    return json.loads((workdir / "landscape" / "landscape.json").read_text())


def files(workdir):
    return sorted(path.name for path in (workdir / "landscape").glob("*.safetensors"))


def test_a_run_stores_the_loss_around_its_last_weights(tmp_path):
    model = fit(tmp_path, small())
    found = result(tmp_path)
    assert files(tmp_path) == [f"step-{step:08d}.safetensors" for step in (0, 4, 8, 12, 16)]
    assert [(stop["step"], stop["epoch"]) for stop in found["path"]] == [(0, 0), (4, 1), (8, 2), (12, 3), (16, 4)]
    assert (found["path"][-1]["x"], found["path"][-1]["y"]) == (0, 0)
    assert len(found["loss"]) == len(found["y"]) == len(found["loss"][0]) == len(found["x"]) == 5
    for axis in "xy":
        along = [stop[axis] for stop in found["path"]]
        room = 0.25 * (max(along) - min(along))
        assert found[axis][0] == pytest.approx(min(along) - room)
        assert found[axis][-1] == pytest.approx(max(along) + room)
    model.eval()
    with torch.no_grad():
        expected = sum(nn.MSELoss()(model(x), y).item() * len(x) for x, y in DATA) / 32
    assert found["final_loss"] == pytest.approx(expected)
    assert 0 < found["explained"][1] <= found["explained"][0] <= 1


class Quadratic(nn.Module):
    """The loss is the squared distance to a point, so each value of a landscape is known."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(()))

    def loss(self, batch):
        return ((self.a - 1) ** 2).sum() + (self.b - 2) ** 2


def walk(workdir, landscape, points):
    model = Quadratic()
    with Loop([landscape], model=model, workdir=workdir, extra_callbacks=[], monitors=[]) as run:
        for _, (a, b) in zip(run.epochs(len(points)), points, strict=True):
            for _ in run.batches([0]):
                model.a.data.copy_(torch.as_tensor(a, dtype=torch.float32).reshape(2, 3))
                model.b.data.fill_(b)
    return model


POINTS = [([1, 0, 0, 0, 0, 0], 1.0), ([1, 1, 0, 2, 0, 0], 0.5), ([1, 2, 1, 2, 0, 0], -1.0), ([2, 2, 2, 2, 2, 1], 3.0)]


@pytest.mark.parametrize("chunk", [1 << 22, 2])
def test_directions_are_principal_components_and_losses_are_exact(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(_weight_snapshots, "CHUNK", chunk)
    walk(tmp_path, callbacks.LossLandscape([0], lambda model, batch: model.loss(batch), size=4), POINTS)
    found = result(tmp_path)
    rows = numpy.array([[0.0] * 7, *([*a, b] for a, b in POINTS)])  # including the start
    moved = rows - rows[-1]
    _, lengths, directions = numpy.linalg.svd(moved)
    u, v = (d if moved[0] @ d < 0 else -d for d in directions[:2])
    assert found["explained"] == pytest.approx((lengths[:2] ** 2 / (lengths**2).sum()).tolist())
    assert [stop["x"] for stop in found["path"]] == pytest.approx((moved @ u).tolist(), abs=1e-5)
    assert [stop["y"] for stop in found["path"]] == pytest.approx((moved @ v).tolist(), abs=1e-5)
    target = numpy.array([1.0] * 6 + [2.0])
    expected = [[((rows[-1] + x * u + y * v - target) ** 2).sum() for x in found["x"]] for y in found["y"]]
    assert found["loss"] == pytest.approx(numpy.array(expected), rel=1e-4)


def test_given_directions_need_not_be_orthogonal_or_complete(tmp_path):
    u, v = {"a": torch.ones(2, 3)}, {"a": torch.eye(3)[:2], "b": torch.ones(())}
    landscape = callbacks.LossLandscape([0], lambda model, batch: model.loss(batch), directions=(u, v), size=3, margin=0)
    walk(tmp_path, landscape, POINTS[:2])
    found = result(tmp_path)
    basis = numpy.array([[1.0] * 6 + [0], [1, 0, 0, 0, 1, 0, 1]]).T
    moved = numpy.array([0.0] * 7) - numpy.array([*POINTS[1][0], POINTS[1][1]])
    x, y = numpy.linalg.lstsq(basis, moved, rcond=None)[0]
    assert (found["path"][0]["x"], found["path"][0]["y"]) == pytest.approx((x, y), abs=1e-5)
    assert found["directions"] == "given"
    assert found["explained"] is None
    assert found["x"][-1] == found["y"][-1] == 1


def test_random_directions_are_the_same_for_the_same_seed(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        fit(tmp_path / name, small(directions="random", seed=seed), epochs=1)
    a, b, c = (result(tmp_path / name) for name in "abc")
    assert a == b
    assert a["loss"] != c["loss"]
    assert a["x"][-1] >= 1


def test_training_is_bitwise_the_same_with_a_landscape(tmp_path):
    def trained(workdir, *landscape):
        random.seed(1)
        numpy.random.seed(1)
        model = fit(workdir, *landscape)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        modes = [module.training for module in model.modules()]
        grads = [parameter.grad for parameter in model.parameters()]
        return state, modes, grads, torch.rand(3).tolist(), random.random(), numpy.random.rand()

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8, shuffle=True)

    def noisy(model, batch):
        random.random(), numpy.random.rand()
        model[1].running_mean += 1
        return nn.functional.mse_loss(model.train()(batch[0]), batch[1]) * torch.rand(())

    plain = trained(tmp_path / "plain")
    for number, landscape in enumerate([small(), callbacks.LossLandscape(loader, noisy, size=3)]):
        other = trained(tmp_path / str(number), landscape)
        assert all(torch.equal(plain[0][name], other[0][name]) for name in plain[0])
        assert all(left is right is None or torch.equal(left, right) for left, right in zip(plain[2], other[2], strict=True))
        assert (plain[1], *plain[3:]) == (other[1], *other[3:])


def test_the_number_of_files_is_bounded_and_the_path_stays_evenly_spaced(tmp_path):
    seen = []
    count = callbacks.RunOp(lambda: seen.append(len(files(tmp_path))))
    fit(tmp_path, small(max_snapshots=4), epochs=21, also=[count])
    assert max(seen) <= 4 + 3
    steps = [stop["step"] // 4 for stop in result(tmp_path)["path"]]
    assert steps == [0, 8, 16, 21]
    assert [int(name[5:13]) // 4 for name in files(tmp_path)] == steps


class Cut(Exception):
    pass


@pytest.mark.thin(4)
@pytest.mark.parametrize("cut", [*range(2, 4), *range(6, 12), 4, 5])  # the number of files is first halved after epoch 4
def test_a_resumed_run_ends_with_the_same_landscape(tmp_path, cut, whole):
    def stop(run):
        if run.step == 4 * cut + 2:
            raise Cut

    with pytest.raises(Cut):
        fit(tmp_path, small(max_snapshots=4), epochs=12, also=[callbacks_of(stop)], save_every=3)
    assert not (tmp_path / "landscape" / "landscape.json").exists()
    fit(tmp_path, small(max_snapshots=4), epochs=12, save_every=3)
    assert result(tmp_path) == whole[0]
    assert files(tmp_path) == whole[1]


def callbacks_of(function):
    from hookpoint import on

    return on("on_train_iter_end")(function)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole")
    fit(workdir, small(max_snapshots=4), epochs=12)
    return result(workdir), files(workdir)


def test_a_longer_run_replaces_the_result(tmp_path):
    fit(tmp_path, small(), epochs=2)
    fit(tmp_path, small(), epochs=4)
    fit(tmp_path / "at-once", small(), epochs=4)
    assert result(tmp_path) == result(tmp_path / "at-once")


def test_missing_files_are_reported_and_the_others_are_used(tmp_path, caplog):
    fit(tmp_path, small(), epochs=4)
    (tmp_path / "landscape" / "step-00000008.safetensors").unlink()
    fit(tmp_path, small(), epochs=5)
    assert "1 of 5 snapshots of the weights are missing" in caplog.text
    assert [stop["step"] for stop in result(tmp_path)["path"]] == [0, 4, 12, 16, 20]


def test_a_new_run_starts_from_scratch(tmp_path):
    fit(tmp_path, small(), epochs=4)
    fit(tmp_path, small(), epochs=2, resume="never")
    assert len(files(tmp_path)) == 3
    assert len(files(tmp_path / "previous" / "001")) == 5


def test_weights_can_be_collected_now_and_evaluated_later(tmp_path):
    fit(tmp_path / "a", small(evaluate_at_end=False))
    assert not (tmp_path / "a" / "landscape" / "landscape.json").exists()
    model = net(seed=9)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = small(loss=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1])).evaluate(tmp_path / "a", model)
    assert path == tmp_path / "a" / "landscape" / "landscape.json"
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert [stop["step"] for stop in result(tmp_path / "a")["path"]] == [0, 4, 8, 12, 16]
    small().evaluate(tmp_path / "a", model, nn.MSELoss())
    with pytest.raises(errors.BadArgument, match=r"cannot compute a loss.\n  give +criterion="):
        small().evaluate(tmp_path / "a", model)
    with pytest.raises(errors.BadArgument, match="there are no collected weights in"):
        small().evaluate(tmp_path / "b", model, nn.MSELoss())
    with pytest.raises(errors.BadLoop, match=r"'0.weight' has shape \(4, 3\) in the collected weights and has shape \(1, 3\)"):
        small().evaluate(tmp_path / "a", nn.Sequential(nn.Linear(3, 1)), nn.MSELoss())


def broken(model, batch):
    raise ZeroDivisionError("in the loss")


@pytest.mark.parametrize(
    ("options", "epochs", "text"),
    [
        ({"loss": broken}, 4, "in the loss"),
        ({"loss": lambda model, batch: model(batch[0])}, 4, r"loss returned shape (20, 1); expected one number"),
        ({}, 1, "takes weights from at least 3 steps, got 2"),
    ],
)
def test_a_failed_evaluation_is_logged_and_the_run_finishes(tmp_path, caplog, options, epochs, text):
    model = fit(tmp_path, small(**options), epochs=epochs)
    assert text in caplog.text
    assert "The weights are kept: call LossLandscape(...).evaluate(" in caplog.text
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "finished"
    assert not (tmp_path / "landscape" / "landscape.json").exists()
    expected = fit(tmp_path / "plain", epochs=epochs)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_invalid_data_is_reported(tmp_path, caplog):
    fit(tmp_path / "a", callbacks.LossLandscape([]))
    assert "the data yielded no batch" in caplog.text
    fit(tmp_path / "b", callbacks.LossLandscape([X]))
    assert "a batch is a Tensor, not a pair of inputs and targets" in caplog.text


def test_weights_that_do_not_move_are_reported(tmp_path, caplog):
    walk(tmp_path, callbacks.LossLandscape([0], lambda model, batch: model.loss(batch)), POINTS[:1] * 3)
    assert "the weights moved along a line or not at all" in caplog.text


def test_infinite_losses_are_stored_as_none(tmp_path):
    landscape = callbacks.LossLandscape([0], lambda model, batch: model.loss(batch) / 0, size=3)
    walk(tmp_path, landscape, POINTS)
    assert result(tmp_path)["loss"] == [[None] * 3] * 3


def test_ctrl_c_ends_the_evaluation(tmp_path, caplog):
    calls = []

    def interrupted(model, batch):
        calls.append(1)
        if len(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return model(batch[0]).mean()

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, small(loss=interrupted))
    assert len(calls) == 6  # the point with two batches is completed
    assert "the evaluation was stopped by a signal" in caplog.text


def test_a_run_ended_by_an_exception_is_not_evaluated(tmp_path):
    def fail(run):
        raise Cut

    with pytest.raises(Cut):
        fit(tmp_path, small(), also=[callbacks_of(fail)])
    assert files(tmp_path) == ["step-00000000.safetensors"]


def test_progress_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hookpoint.callbacks.weights.loss_landscape.PROGRESS_SECONDS", 0.0)
    fit(tmp_path, small(size=3))
    assert "loss landscape: 8 of 9 points, 0 s left" in capsys.readouterr().err


def test_no_run_is_active_during_the_evaluation(tmp_path):
    import hookpoint

    logged = []

    def loss(model, batch):
        hookpoint.log("seen", 1.0)
        logged.append(hookpoint.current_run())
        return model(batch[0]).mean()

    fit(tmp_path, small(loss=loss))
    assert logged[0] is None


def test_a_full_disk_loses_a_snapshot_but_not_the_run(tmp_path, monkeypatch, caplog):
    plain = disk.replacing

    def replacing(path):
        if path.name == "step-00000008.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(path)

    monkeypatch.setattr(disk, "replacing", replacing)
    fit(tmp_path, small())
    assert "could not store the weights at step 8: [Errno 28] No space left on device; the run continues" in caplog.text
    assert [stop["step"] for stop in result(tmp_path)["path"]] == [0, 4, 12, 16]


def test_a_schedule_sets_how_often_weights_are_collected(tmp_path):
    fit(tmp_path, small().when(Every(steps=3)), epochs=2)
    assert [stop["step"] for stop in result(tmp_path)["path"]] == [0, 3, 6, 8]


def test_batches_are_limited_and_read_once(tmp_path):
    read = []

    class Data:
        def __iter__(self):
            for batch in DATA * 5:
                read.append(1)
                yield batch

    fit(tmp_path, callbacks.LossLandscape(Data(), size=3, max_batches=3))
    assert len(read) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"loss": 3}, "loss must be a function"),
        ({"loss": lambda batch: 0}, "loss must take a model and a batch"),
        ({"directions": "first"}, "directions must be 'pca', 'random' or a pair of dicts, got 'first'"),
        ({"directions": ({}, [])}, "directions must be 'pca', 'random' or a pair of dicts"),
        ({"size": 2}, "size must be an integer >= 3"),
        ({"size": 502}, "size must be at most 501, got 502"),
        ({"margin": -1}, "margin must be a finite number >= 0"),
        ({"max_batches": 0}, "max_batches must be"),
        ({"max_snapshots": 3}, "max_snapshots must be an integer >= 4"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_invalid_arguments_raise(arguments, text):
    with pytest.raises(errors.BadArgument, match=text):
        callbacks.LossLandscape(DATA, **arguments)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ({}, {"workdir": None}, r"LossLandscape needs a workdir"),
        ({}, {"model": None}, r"LossLandscape needs a model with parameters"),
        ({}, {"criterion": None}, r"LossLandscape cannot compute a loss"),
        ({"directions": ({"x": X}, {})}, {}, r"direction 1 contains 'x', which is not a parameter.\n  known +0.weight"),
        (
            {"directions": ({}, {"0.weight": X})},
            {},
            r"'0.weight' in direction 2 has shape \(32, 3\)",
        ),
    ],
)
def test_missing_objects_and_invalid_directions_raise_before_the_first_step(tmp_path, arguments, options, text):
    given = {"workdir": tmp_path, "model": net(), "criterion": nn.MSELoss(), **options}
    with pytest.raises(errors.BadLoop, match=text), Loop([small(**arguments)], **given):
        raise AssertionError("the run has begun")


def test_an_encrypted_run_raises(tmp_path):
    pytest.importorskip("cryptography")
    (tmp_path / "run.key").write_text("ab" * 32)
    with pytest.raises(errors.BadLoop, match="stores weights that are not encrypted, but this run encrypts its checkpoints"):
        fit(tmp_path / "run", small(), checkpoint_key=tmp_path / "run.key")
    assert not (tmp_path / "run" / "landscape").exists()
