from __future__ import annotations

import pytest

from hookpoint.storage.disk.complete_lines import end_of_complete_lines


@pytest.mark.parametrize("piece_bytes", [1, 3, 2**16])
@pytest.mark.parametrize(("text", "end"), [("", 0), ("a", 0), ("a\n", 2), ("a\nb", 2), ("a\nb\n", 4), ("ab\nlong and torn", 3)])
def test_complete_lines_end_before_a_torn_line(tmp_path, monkeypatch, text, end, piece_bytes):
    monkeypatch.setattr("hookpoint.storage.disk.complete_lines.PIECE_BYTES", piece_bytes)
    path = tmp_path / "file"
    path.write_text(text)
    with open(path, "rb") as file:
        assert end_of_complete_lines(file) == end
