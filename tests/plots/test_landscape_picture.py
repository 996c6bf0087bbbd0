from __future__ import annotations

import math
from itertools import pairwise

import pytest
from PIL import Image

from hookpoint.plots.landscape import Landscape, Stop
from hookpoint.plots.landscape_picture import _contour_values, _marks, draw_landscape
from hookpoint.plots.matplotlib_backend import NoSuchFormat


def bowl(function=lambda x, y: x * x + y * y + 0.5, **changes):
    ticks = [place / 4 - 1 for place in range(9)]
    loss = [[function(x, y) for x in ticks] for y in ticks]
    facts = {"title": "$mine", "x": ticks, "y": ticks, "loss": loss, "path": [Stop(0, -0.9, -0.9), Stop(5, 0.0, 0.0)]}
    return Landscape(**{**facts, "directions": "pca", "explained": (0.9, 0.1), "final_loss": 0.5, **changes})


def colour(path, x, y):
    """Return the colour at a relative position of the image."""
    with Image.open(path) as image:
        return image.convert("RGB").getpixel((int(image.width * x), int(image.height * y)))


def size(path):
    with Image.open(path) as image:
        return image.size


def test_low_losses_are_dark_and_high_losses_bright(tmp_path):
    draw_landscape(bowl(), tmp_path / "a.png", width=400, height=300)
    assert size(tmp_path / "a.png") == (800, 600)
    middle, corner = colour(tmp_path / "a.png", 0.41, 0.44), colour(tmp_path / "a.png", 0.7, 0.12)
    assert sum(middle) < sum(corner)


def test_the_same_landscape_gives_the_same_bytes_in_every_format(tmp_path):
    for kind in ("png", "svg", "pdf"):
        for name in "ab":
            draw_landscape(bowl(), tmp_path / f"{name}.{kind}")
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert "$mine" in (tmp_path / "a.svg").read_text() or "mine" in (tmp_path / "a.svg").read_text()
    with pytest.raises(NoSuchFormat):
        draw_landscape(bowl(), tmp_path / "a.jpeg")


@pytest.mark.parametrize(
    "changes",
    [
        {"function": lambda x, y: 1.0},
        {"function": lambda x, y: 0.0},
        {"function": lambda x, y: -x - y},
        {"function": lambda x, y: math.exp(40 * x)},
        {"function": lambda x, y: 1e-30 + x * x},
        {"function": lambda x, y: math.nan if x < 0 else y},
        {"function": lambda x, y: math.nan if (x, y) != (0, 0) else 1.0},
        {"path": []},
        {"path": [Stop(3, 0.0, 0.0)], "explained": None, "directions": "$" * 300, "final_loss": math.nan},
    ],
)
def test_any_landscape_can_be_drawn(tmp_path, changes):
    draw_landscape(bowl(**changes), tmp_path / "a.png")
    assert size(tmp_path / "a.png") == (1520, 1200)


def test_marks_are_round_numbers_and_contour_levels_increase():
    assert _marks(0.05, 0.7, is_log=False) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert _marks(0.04, 1.5, is_log=True) == [0.05, 0.1, 0.2, 0.5, 1.0]
    assert _marks(1e-9, 1e9, is_log=True) == pytest.approx([10.0**e for e in range(-9, 10, 3)])
    for low, high, is_log in ((1, 1, False), (0, 0, False), (-2, 3, False), (1e-3, 1e3, True)):
        levels = _contour_values(low, high, is_log=is_log)
        assert len(levels) >= 2
        assert all(left < right for left, right in pairwise(levels))
