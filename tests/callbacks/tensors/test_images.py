from __future__ import annotations

import io

import numpy
import pytest
from PIL import Image

from hookpoint.callbacks.tensors._images import Images, png
from hookpoint.core.errors import BadValue


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
def test_images_are_found_whatever_the_layout(shape, expected):
    assert [image.shape for image in Images(numpy.zeros(shape)).each()] == expected


@pytest.mark.parametrize("shape", [(), (5,), (2, 5, 8, 9), (1, 1, 3, 8, 9), (0, 3, 8, 9), (3, 0, 9)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(BadValue, match="is not an image"):
        Images(numpy.zeros(shape)).each()


def test_neither_are_words_or_complex_numbers():
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
def test_values_are_scaled_and_cut_off(values, scale, expected):
    (image,) = Images(numpy.array(values), scale=scale).each()
    assert image.dtype == "uint8"
    assert image.tolist() == expected


def test_map_func_makes_images_and_is_called_once():
    calls = []

    def maps(array):
        calls.append(array.shape)
        return [array[0], array[1, :1]]

    pictures = Images(numpy.ones((2, 4, 4)), maps, 100)
    assert [image.shape for image in pictures.each()] == [(4, 4), (1, 4)]
    assert pictures.each()[0][0, 0] == 100
    assert calls == [(2, 4, 4)]


def test_monitors_get_the_first_images_of_one_size():
    assert numpy.asarray(Images(numpy.zeros((20, 3, 4, 5)))).shape == (16, 4, 5, 3)
    assert numpy.asarray(Images(numpy.zeros((4, 5)))).shape == (1, 4, 5, 1)
    mixed = Images(numpy.zeros((4, 5)), lambda array: [array, array[:2], array])
    assert numpy.asarray(mixed).shape == (2, 4, 5, 1)
    assert numpy.asarray(mixed, dtype="float32").dtype == "float32"


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3)])
def test_a_png_has_the_pixels(shape):
    image = numpy.random.default_rng(0).integers(0, 256, shape, "uint8")
    with Image.open(io.BytesIO(png(image))) as opened:
        assert opened.format == "PNG"
        assert numpy.array_equal(numpy.asarray(opened), image)
