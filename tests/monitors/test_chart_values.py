"""Values are converted for TensorBoard, MLflow and wandb."""

from __future__ import annotations

import numpy
import pytest
import torch

from hookpoint.monitors._chart_values import call_each, finite, to_array, to_pixels


@pytest.mark.parametrize(
    ("image", "shape", "largest"),
    [
        (numpy.ones((4, 5)), (4, 5), 255),
        (numpy.ones((4, 5, 3)), (4, 5, 3), 255),
        (numpy.ones((4, 5, 1)), (4, 5, 1), 255),
        (numpy.full((4, 5, 3), 300.0), (4, 5, 3), 255),
        (numpy.full((4, 5, 3), 7), (4, 5, 3), 7),
        (numpy.full((4, 5), True), (4, 5), 255),
        (torch.ones(4, 5, 3, dtype=torch.bfloat16), (4, 5, 3), 255),
    ],
)
def test_images_become_pixels_from_0_to_255(image, shape, largest):
    pixels = to_pixels("x", image)
    assert (pixels.shape, str(pixels.dtype), pixels.max()) == (shape, "uint8", largest)


def test_a_batch_keeps_its_shape():
    assert to_pixels("x", numpy.zeros((2, 4, 5, 3))).shape == (2, 4, 5, 3)


@pytest.mark.parametrize("value", [0.5, 100.0])
def test_nan_is_black_and_does_not_change_other_pixels(value):
    image = numpy.full((2, 2), value)
    expected = to_pixels("x", image)
    expected[0, 0] = 0
    image[0, 0] = numpy.nan
    assert to_pixels("x", image).tolist() == expected.tolist()
    assert numpy.isnan(image[0, 0])


@pytest.mark.parametrize("kind", ["complex64", "U1", "object"])
def test_an_image_of_other_than_real_numbers_raises(kind):
    with pytest.raises(ValueError, match=r"image 'x' has type .*; expected real numbers"):
        to_pixels("x", numpy.ones((2, 2), kind))


def test_an_image_of_another_shape_raises():
    with pytest.raises(ValueError, match=r"image 'x' has shape \(3,\); expected height x width x channels"):
        to_pixels("x", numpy.zeros(3))


def test_tensors_become_arrays():
    assert to_array(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]


def test_finite_removes_nan_and_infinity():
    assert finite([1.0, float("nan"), float("-inf"), 2.0]).tolist() == [1.0, 2.0]
    assert finite([1, 2]).tolist() == [1, 2]


def test_every_item_is_handled_before_the_first_error_is_raised():
    seen = []

    def fail(item):
        seen.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"^1$"):
        call_each(fail, [1, 2])
    assert seen == [1, 2]
