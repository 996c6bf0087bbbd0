from __future__ import annotations

import numpy
import pytest
import torch

from hookpoint.callbacks._shared.input_images import images_in


@pytest.mark.parametrize("kind", [torch.as_tensor, numpy.asarray], ids=["torch", "numpy"])
@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((2, 3, 8, 9), (2, 8, 9, 3)),
        ((2, 1, 8, 9), (2, 8, 9, 1)),
        ((2, 8, 9, 3), (2, 8, 9, 3)),
        ((2, 8, 9, 1), (2, 8, 9, 1)),
        ((40, 3, 8, 9), (16, 8, 9, 3)),
    ],
)
def test_images_are_returned_as_height_by_width_by_channels(kind, shape, shown):
    assert tuple(images_in(kind(numpy.ones(shape))).shape) == shown


def test_pixels_keep_their_position():
    images = torch.zeros(1, 3, 4, 5)
    images[0, 2, 1, 3] = 1
    assert images_in(images).nonzero().tolist() == [[0, 1, 3, 2]]


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2, 3, 4, 4),
        (torch.ones(2, 3, 4, 4), torch.ones(2)),
        [torch.ones(2, 3, 4, 4), torch.ones(2)],
        {"pixels": torch.ones(2, 3, 4, 4), "label": torch.ones(2)},
        [["a", "b"], (torch.ones(2, 3, 4, 4), 0)],
    ],
)
def test_images_come_from_the_first_array_of_the_batch(batch):
    assert tuple(images_in(batch).shape) == (2, 4, 4, 3)


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2, 10),
        torch.ones(2, 5, 8, 8),
        torch.ones(0, 3, 8, 8),
        (torch.ones(2), torch.ones(2, 3, 8, 8)),
        "words",
        7,
        [],
        {},
        None,
        numpy.float64(1),
    ],
    ids=str,
)
def test_other_batches_contain_no_images(batch):
    assert images_in(batch) is None


@pytest.mark.parametrize("kind", [torch.as_tensor, numpy.asarray], ids=["torch", "numpy"])
def test_normalized_values_are_rescaled_to_0_to_1(kind):
    images = images_in(kind(numpy.array([-1.0, 0.0, 3.0, 1.0]).reshape(1, 1, 2, 2)))
    assert images.reshape(-1).tolist() == [0.0, 0.25, 1.0, 0.5]


@pytest.mark.parametrize("kind", [torch.as_tensor, numpy.asarray], ids=["torch", "numpy"])
def test_values_in_the_usual_ranges_are_not_rescaled(kind):
    for numbers in (numpy.array([0.0, 0.5, 1.0, 0.25]), numpy.array([0, 128, 255, 7], dtype="uint8")):
        images = images_in(kind(numbers.reshape(1, 1, 2, 2)))
        assert images.reshape(-1).tolist() == numbers.tolist()


def test_equal_negative_values_become_black():
    assert images_in(torch.full((1, 1, 2, 2), -3.0)).tolist() == torch.zeros(1, 2, 2, 1).tolist()


def test_the_batch_is_not_changed():
    batch = torch.randn(2, 3, 4, 4, requires_grad=True)
    before = batch.detach().clone()
    assert not images_in(batch).requires_grad
    assert torch.equal(batch, before)
