"""Tables fit the width: cells are shortened, columns dropped, and lines never wrap."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from hookpoint.cli._output import Column, flowed, table

COLUMNS = [Column("name", min_width=10), Column("step", right=True, drop=1), Column("best", drop=2), Column("started", drop=3)]
ROWS = [("a-rather-long-name-of-a-run", "12", "val_loss 0.5", "2026-11-15"), ("b", "1200", "", "2026-11-16")]


def test_a_table_without_a_width_is_not_shortened():
    assert table(COLUMNS, ROWS) == [
        "name                         step  best          started",
        "a-rather-long-name-of-a-run    12  val_loss 0.5  2026-11-15",
        "b                            1200                2026-11-16",
    ]


@pytest.mark.parametrize("width", range(3, 70))
def test_a_table_is_never_wider_than_the_width(width):
    assert all(len(line) <= width for line in table(COLUMNS, ROWS, width))


def test_names_are_shortened_before_columns_are_dropped():
    assert table(COLUMNS, ROWS, 45)[1] == "a-rather-lon…    12  val_loss 0.5  2026-11-15"
    assert table(COLUMNS, ROWS, 40)[1] == "a-rather-long-name-…    12  val_loss 0.5"
    assert table(COLUMNS, ROWS, 20)[1] == "a-rather-long…    12"


def test_columns_without_any_text_are_left_out():
    assert table([Column("a"), Column("b")], [("x", ""), ("y", "")]) == ["a", "x", "y"]
    assert table([Column("a")], []) == []


def test_wide_characters_count_as_two_cells():
    lines = table([Column("name", min_width=4), Column("step")], [("深層学習の実験", "12"), ("b", "1")], 12)
    assert lines[1:] == ["深層 …  12", "b       1"]
    assert {cell_len(line[: line.index("1")]) for line in lines[1:]} == {8}


def test_a_long_word_in_a_sentence_is_broken():
    lines = table([Column("a"), Column("b", wraps=True)], [("x", "y" * 40)], 30)
    assert lines[1:] == ["x  " + "y" * 27, "   " + "y" * 13]


def test_styles_are_escape_codes_without_width():
    lines = table([Column("a", styles={"x": "red"}), Column("b")], [("x", "1"), ("yy", "2")])
    assert lines == ["a   b", "\x1b[31mx \x1b[0m  1", "yy  2"]


def test_text_is_not_markup():
    assert table([Column("a")], [("[red]x[/red] :smile:",)]) == ["a", "[red]x[/red] :smile:"]


def test_sentences_are_wrapped():
    lines = table([Column("point"), Column("fires", wraps=True)], [("on_x", "once, before anything else happens at all")], 34)
    assert lines == ["point  fires", "on_x   once, before anything else", "       happens at all"]


def test_pieces_are_wrapped_after_their_prefix():
    assert flowed("step 1  ", ["loss 0.5", "accuracy 0.25"], None) == ["step 1  loss 0.5  accuracy 0.25"]
    assert flowed("step 1  ", [], 20) == ["step 1"]
    assert flowed("step 1  ", ["a 1", "a-name-of-some-length 2"], 28) == ["step 1  a 1", "    a-name-of-some-length 2"]
    assert flowed("step 1  ", ["a-name-of-some-length 2", "a 1"], 28) == ["step 1", "    a-name-of-some-length 2", "    a 1"]
