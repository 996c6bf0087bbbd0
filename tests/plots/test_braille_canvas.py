from __future__ import annotations

from math import nan

from hookpoint.plots._braille_canvas import Canvas


def drawn(canvas):
    return ["".join(character for character, _ in row) for row in canvas.rows()]


def test_each_of_the_eight_dots_of_a_cell_can_be_set():
    shown = set()
    for column in range(2):
        for row in range(4):
            canvas = Canvas(1, 1)
            canvas.line([column], [1 - row / 3], ink="")
            shown |= set(drawn(canvas))
    assert shown == set("⠁⠂⠄⡀⠈⠐⠠⢀")


def test_steep_and_flat_lines_are_connected():
    steep, flat = Canvas(2, 2), Canvas(3, 1)
    steep.line([0, 0], [0, 1], ink="")
    flat.line([0, 1], [1, 1], ink="")
    assert drawn(steep) == ["⡇ ", "⡇ "]
    assert drawn(flat) == ["⠉⠉⠉"]


def test_nan_leaves_a_gap():
    canvas = Canvas(6, 1)
    canvas.line([0, 0.3, 0.5, 0.7, 1], [0, 0, nan, 0, 0], ink="")
    assert drawn(canvas) == ["⣀⣀  ⣀⣀"]


def test_points_outside_the_canvas_are_left_out():
    canvas = Canvas(2, 1)
    canvas.line([-1, 0.0, 2], [0, 0, 0], ink="")
    assert drawn(canvas) == ["⡀ "]


def test_dashes_distinguish_lines():
    solid, dashed = Canvas(8, 1), Canvas(8, 1)
    solid.line([0, 1], [0, 0], ink="")
    dashed.line([0, 1], [0, 0], ink="", style=1)
    assert drawn(solid) == ["⣀" * 8]
    assert drawn(dashed) != drawn(solid)
    assert " " in drawn(dashed)[0]


def test_the_last_ink_of_a_cell_wins_and_marks_cover_lines():
    canvas = Canvas(2, 1)
    canvas.mark(1, 0, "x", "bold")
    canvas.line([0, 1], [0, 0], ink="red")
    canvas.line([0], [1], ink="blue")
    assert canvas.rows() == [[("⣁", "blue"), ("x", "bold")]]


def test_without_braille_lines_use_symbols():
    canvas = Canvas(5, 3, braille=False)
    canvas.line([0, 1], [0, 1], ink="", symbol="+")
    assert drawn(canvas) == ["   ++", "  +  ", "++   "]
    assert canvas.row_of(1.0) == 0
