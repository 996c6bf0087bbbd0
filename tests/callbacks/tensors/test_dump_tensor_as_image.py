from __future__ import annotations

import io
import sys

import numpy
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookpoint import Every, Runner
from hookpoint.callbacks import DumpTensorAsImage, ModelSaver, TFEventWriter
from hookpoint.callbacks._shared import extras as extras_of_callbacks
from hookpoint.callbacks.tensors.dump_tensor_as_image import Images, png
from hookpoint.core.errors import BadLoop, BadValue


def names(workdir):
    folder = workdir / "tensor-dumps"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def pixels(workdir, name):
    with Image.open(workdir / "tensor-dumps" / name) as image:
        return numpy.asarray(image)


@pytest.fixture
def train_outputs(train_public):
    """Train epochs of three batches; `make(epoch, batch)` returns the outputs."""

    def go(workdir, callbacks, *, epochs=2, make=lambda epoch, batch: torch.full((1, 1, 2, 2), batch / 4), **given):
        def step(run, batch):
            run.outputs = make(run.epoch, batch)

        return train_public(callbacks, epochs=epochs, batches=range(1, 4), step=step, workdir=workdir, **given)

    return go


def test_each_epoch_writes_the_image_of_its_last_iteration(train_outputs, tmp_path):
    train_outputs(tmp_path, [DumpTensorAsImage("outputs")])
    assert names(tmp_path) == ["outputs-ep001.png", "outputs-ep002.png"]
    assert pixels(tmp_path, "outputs-ep002.png").tolist() == [[191, 191], [191, 191]]


def test_further_images_are_numbered(train_outputs, tmp_path):
    make = lambda epoch, batch: torch.arange(12.0).reshape(3, 1, 2, 2)  # noqa: E731
    train_outputs(tmp_path, [DumpTensorAsImage("outputs", prefix="mine", scale=10)], epochs=1, make=make)
    assert names(tmp_path) == ["mine-ep001-1.png", "mine-ep001-2.png", "mine-ep001.png"]
    assert pixels(tmp_path, "mine-ep001-2.png").tolist() == [[80, 90], [100, 110]]


def test_map_func_and_a_function_of_the_run_are_applied(train_outputs, tmp_path):
    def wide(array):
        assert isinstance(array, numpy.ndarray)
        return numpy.stack([array, array, 0 * array], axis=-1)

    make = lambda epoch, batch: torch.ones(2, 5, dtype=torch.bfloat16)  # noqa: E731
    train_outputs(tmp_path, [DumpTensorAsImage(lambda run: run.outputs * 0.5, "half", wide)], epochs=1, make=make)
    assert pixels(tmp_path, "half-ep001.png").shape == (2, 5, 3)
    assert pixels(tmp_path, "half-ep001.png")[0, 0].tolist() == [127, 127, 0]


def test_within_an_epoch_the_step_is_in_the_file_name(train_outputs, tmp_path):
    train_outputs(tmp_path, [DumpTensorAsImage("outputs").when(Every(steps=2) | Every(epochs=2))])
    assert names(tmp_path) == [
        "outputs-ep001-step2.png",
        "outputs-ep002-step4.png",
        "outputs-ep002-step6.png",
        "outputs-ep002.png",
    ]


def test_a_name_that_is_not_a_file_name_is_converted(train_outputs, tmp_path):
    make = lambda epoch, batch: {"a": torch.ones(2, 2)}  # noqa: E731
    train_outputs(tmp_path, [DumpTensorAsImage("outputs/a")], epochs=1, make=make)
    (name,) = names(tmp_path)
    assert name.startswith("outputs-a-")
    assert name.endswith("-ep001.png")


def test_tensorboard_gets_the_images(train_outputs, tmp_path):
    make = lambda epoch, batch: torch.rand(4, 3, 8, 9)  # noqa: E731
    train_outputs(tmp_path, [DumpTensorAsImage("outputs")], monitors=[TFEventWriter()], make=make)
    images = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0}).Reload().Images("outputs")
    assert [image.step for image in images] == [3, 6]
    assert images[0].width * images[0].height == 4 * 8 * 9


def test_weights_and_inputs_of_a_runner_are_written(tmp_path):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.CrossEntropyLoss(),
        callbacks=[DumpTensorAsImage("1.weight"), DumpTensorAsImage("batch/0", "inputs")],
        workdir=tmp_path,
        extra_callbacks=[],
        monitors=[],
    )
    inputs = torch.rand(2, 1, 4, 4)
    runner.fit([(inputs, torch.tensor([0, 1]))], epochs=1)
    assert names(tmp_path) == ["1.weight-ep001.png", "inputs-ep001-1.png", "inputs-ep001.png"]
    assert pixels(tmp_path, "inputs-ep001-1.png").tolist() == (inputs[1, 0].double() * 255).byte().tolist()


def test_a_resumed_run_writes_the_same_images(train_outputs, cuts, cut_off, tmp_path):
    def callbacks():
        dump = DumpTensorAsImage("outputs").when(Every(steps=1) | Every(epochs=1))
        return [dump, ModelSaver().when(Every(steps=4))]

    make = lambda epoch, batch: torch.full((2, 2), (epoch * 3 + batch) / 16)  # noqa: E731
    train_outputs(tmp_path / "whole", callbacks(), epochs=3, make=make)
    with pytest.raises(cut_off):
        train_outputs(tmp_path / "cut", [*callbacks(), cuts(7)], epochs=3, make=make)
    folder = tmp_path / "cut" / "tensor-dumps"
    for undone in ("outputs-ep009.png", "outputs-ep002-step99.png", "outputs-ep007-step99-3.png"):
        (folder / undone).touch()
    train_outputs(tmp_path / "cut", callbacks(), epochs=3, make=make)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole" / "tensor-dumps").iterdir()}
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
    assert len(whole) == 12


def test_a_value_that_is_not_an_image_ends_the_run(train_outputs, tmp_path):
    with pytest.raises(BadValue, match="is not an image"):
        train_outputs(tmp_path, [DumpTensorAsImage("batch")])


def test_an_error_in_map_func_ends_the_run(train_outputs, tmp_path):
    with pytest.raises(ZeroDivisionError):
        train_outputs(tmp_path, [DumpTensorAsImage("outputs", map_func=lambda array: 1 / 0)])


def test_without_pillow_a_warning_is_logged_once_and_nothing_is_written(train_outputs, tmp_path, monkeypatch, caplog):
    extras_of_callbacks.warn_once.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    train_outputs(tmp_path, [DumpTensorAsImage("outputs")])
    assert caplog.messages == ["DumpTensorAsImage does nothing without pillow: pip install 'hookpoint[tensorboard]'"]
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"map_func": 3}, TypeError, "map_func must be a function, got 3"),
        ({"scale": "1"}, ValueError, "scale must be a finite number"),
        ({"prefix": "a/b"}, ValueError, "is not a file name"),
        ({"tensor_name": 3}, TypeError, "is not the name of a tensor"),
        ({"tensor_name": ""}, TypeError, "is not the name of a tensor"),
        ({"tensor_name": {"mine": len}}, TypeError, "or a function: lambda run"),
    ],
)
def test_invalid_arguments_raise(given, kind, message):
    with pytest.raises(kind, match=message):
        DumpTensorAsImage(**{"tensor_name": "outputs", **given})


def test_a_workdir_is_required(train_outputs):
    with pytest.raises(BadLoop, match="DumpTensorAsImage needs a workdir"):
        train_outputs(None, [DumpTensorAsImage("outputs")])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 9), [(8, 9)]),
        ((1, 8, 9), [(8, 9)]),
        ((3, 8, 9), [(8, 9, 3)]),
        ((8, 9, 1), [(8, 9)]),
        ((8, 9, 3), [(8, 9, 3)]),
        ((5, 8, 9), [(8, 9)] * 5),
        ((2, 1, 8, 9), [(8, 9)] * 2),
        ((2, 3, 8, 9), [(8, 9, 3)] * 2),
        ((2, 8, 9, 1), [(8, 9)] * 2),
        ((2, 8, 9, 3), [(8, 9, 3)] * 2),
    ],
)
def test_images_are_found_in_any_layout(shape, expected):
    assert [image.shape for image in Images(numpy.zeros(shape)).each()] == expected


@pytest.mark.parametrize("shape", [(), (5,), (2, 5, 8, 9), (1, 1, 3, 8, 9), (0, 3, 8, 9), (3, 0, 9)])
def test_an_array_that_is_not_an_image_raises(shape):
    with pytest.raises(BadValue, match="is not an image"):
        Images(numpy.zeros(shape)).each()


def test_complex_numbers_raise():
    with pytest.raises(BadValue, match="is not an image"):
        Images(numpy.zeros((2, 2), complex)).each()


@pytest.mark.parametrize(
    ("values", "scale", "expected"),
    [
        ([[0.0, 0.5, 1.0]], 255, [[0, 127, 255]]),
        ([[-1.0, 2.0, 0.0]], 255, [[0, 255, 0]]),
        ([[float("nan"), float("inf"), -float("inf")]], 255, [[0, 255, 0]]),
        ([[10.0, 300.0, 20.0]], 1, [[10, 255, 20]]),
        ([[0, 1, 2]], 100, [[0, 100, 200]]),
        ([[True, False, True]], 255, [[255, 0, 255]]),
        (numpy.array([[0, 1, 200]], "uint8"), 255, [[0, 1, 200]]),
    ],
)
def test_values_are_scaled_and_clipped(values, scale, expected):
    (image,) = Images(numpy.array(values), scale=scale).each()
    assert image.dtype == "uint8"
    assert image.tolist() == expected


def test_map_func_returns_images_and_is_called_once():
    calls = []

    def maps(array):
        calls.append(array.shape)
        return [array[0], array[1, :1]]

    pictures = Images(numpy.ones((2, 4, 4)), maps, 100)
    assert [image.shape for image in pictures.each()] == [(4, 4), (1, 4)]
    assert pictures.each()[0][0, 0] == 100
    assert calls == [(2, 4, 4)]


def test_monitors_get_the_first_images_of_the_same_size():
    assert numpy.asarray(Images(numpy.zeros((20, 3, 4, 5)))).shape == (16, 4, 5, 3)
    assert numpy.asarray(Images(numpy.zeros((4, 5)))).shape == (1, 4, 5, 1)
    mixed = Images(numpy.zeros((4, 5)), lambda array: [array, array[:2], array])
    assert numpy.asarray(mixed).shape == (2, 4, 5, 1)
    assert numpy.asarray(mixed, dtype="float32").dtype == "float32"


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3)])
def test_a_png_keeps_the_pixels(shape):
    image = numpy.random.default_rng(0).integers(0, 256, shape, "uint8")
    with Image.open(io.BytesIO(png(image))) as opened:
        assert opened.format == "PNG"
        assert numpy.array_equal(numpy.asarray(opened), image)
