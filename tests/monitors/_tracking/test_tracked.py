from __future__ import annotations

import os

import numpy
import pytest
import torch

from hookpoint.monitors._tracking.tracked import Kept, Surroundings, array, pictures, told


def test_what_is_kept_comes_back(tmp_path):
    kept = Kept("abc", "sqlite:///x", is_over=True, step=7, is_saved=True)
    kept.write(tmp_path / "new" / "mlflow.json")
    assert Kept.read(tmp_path / "new" / "mlflow.json") == kept
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mlflow.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", "null", '{"run_id": "abc"}', '{"run_id":1,"where":2,"is_over":3,"step":"x"}']
)
def test_a_damaged_file_counts_as_none(tmp_path, content):
    (tmp_path / "mlflow.json").write_text(content)
    assert Kept.read(tmp_path / "mlflow.json") is None


def test_no_file_is_none(tmp_path):
    assert Kept.read(tmp_path / "mlflow.json") is None
    assert Kept.read(tmp_path) is None


def test_variables_are_set_where_nobody_has_and_are_as_before_afterwards(monkeypatch):
    monkeypatch.setenv("HOOKPOINT_MINE", "mine")
    monkeypatch.delenv("HOOKPOINT_NEW", raising=False)
    surroundings = Surroundings({"HOOKPOINT_MINE": "other", "HOOKPOINT_NEW": "new"})
    surroundings.set()
    assert (os.environ["HOOKPOINT_MINE"], os.environ["HOOKPOINT_NEW"]) == ("mine", "new")
    surroundings.restore()
    surroundings.restore()
    assert os.environ["HOOKPOINT_MINE"] == "mine"
    assert "HOOKPOINT_NEW" not in os.environ


def test_what_happened_is_a_line_without_secrets():
    assert told({"reason": "loss is low", "by": None, "url": "https://me:pw@host"}, 8) == (
        "step 8, reason=loss is low, url=https://***@host"
    )


@pytest.mark.parametrize(
    ("image", "shape", "largest"),
    [
        (numpy.ones((4, 5)), (4, 5), 255),
        (numpy.ones((4, 5, 3)), (4, 5, 3), 255),
        (numpy.ones((4, 5, 1)), (4, 5), 255),
        (numpy.full((4, 5, 3), 300.0), (4, 5, 3), 255),
        (numpy.full((4, 5, 3), 7), (4, 5, 3), 7),
        (numpy.full((4, 5), True), (4, 5), 255),
        (torch.ones(4, 5, 3, dtype=torch.bfloat16), (4, 5, 3), 255),
    ],
)
def test_images_are_pixels_from_0_to_255(image, shape, largest):
    (pixels,) = pictures("x", image)
    assert (pixels.shape, str(pixels.dtype), pixels.max()) == (shape, "uint8", largest)


def test_a_batch_is_several_images():
    assert [pixels.shape for pixels in pictures("x", numpy.zeros((2, 4, 5, 3)))] == [(4, 5, 3)] * 2


def test_what_is_no_image_is_refused():
    with pytest.raises(ValueError, match=r"image 'x' has shape \(3,\); height x width x channels"):
        pictures("x", numpy.zeros(3))


def test_tensors_become_arrays():
    assert array(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]
