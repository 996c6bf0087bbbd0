from __future__ import annotations

import csv
import errno
import os
import stat

import pytest

from hookpoint.monitors._csv_table import CsvTable
from hookpoint.storage.disk._fs_calls import intercepted


@pytest.fixture
def table(tmp_path):
    made = CsvTable(tmp_path / "log.csv")
    made.replace([], ["epoch"])
    return made


def rows(table, separator=","):
    with open(table.path, newline="") as file:
        return list(csv.DictReader(file, delimiter=separator))


def test_rows_are_appended(table):
    table.append([{"epoch": "1"}])
    before = table.path.stat().st_ino
    table.append([{"epoch": "2"}, {"epoch": "3"}])
    assert table.path.read_bytes() == b"epoch\n1\n2\n3\n"
    assert table.rows == 3
    assert table.path.stat().st_ino == before


def test_a_new_name_makes_a_column_in_a_new_file(table):
    table.append([{"epoch": "1", "loss": "0.5"}])
    before = table.path.stat().st_ino
    table.append([{"epoch": "2", "val_loss": "0.25"}])
    assert rows(table) == [{"epoch": "1", "loss": "0.5", "val_loss": ""}, {"epoch": "2", "loss": "", "val_loss": "0.25"}]
    assert table.path.stat().st_ino != before
    assert [path.name for path in table.path.parent.iterdir()] == ["log.csv"]
    assert stat.S_IMODE(table.path.stat().st_mode) == 0o600


def test_a_reader_never_sees_an_incomplete_table(table):
    table.append([{"epoch": str(number)} for number in range(100)])
    before, seen = table.path.read_bytes(), []

    def look(operation, proceed):
        seen.append(table.path.read_bytes())
        return proceed()

    with intercepted(look):
        table.append([{"epoch": "100", "loss": "1"}])
    assert seen
    assert set(seen) == {before, table.path.read_bytes()}
    assert len(rows(table)) == 101


@pytest.mark.parametrize("fails", ["create", "write", "fsync"])
def test_a_failed_write_leaves_the_table_unchanged(table, fails):
    table.append([{"epoch": "1"}])

    def fail(operation, proceed):
        if operation.name == fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        return proceed()

    with intercepted(fail), pytest.raises(OSError, match="No space left"):
        table.append([{"epoch": "2", "loss": "1"}])
    assert table.path.read_bytes() == b"epoch\n1\n"
    assert [path.name for path in table.path.parent.iterdir()] == ["log.csv"]
    table.append([{"epoch": "2", "loss": "1"}])
    assert [row["epoch"] for row in rows(table)] == ["1", "2"]


@pytest.mark.parametrize("torn", [b"2", b"2,0.", b"2,0.5\n9,9"])
def test_an_incomplete_row_is_replaced(table, torn):
    table.append([{"epoch": "1", "loss": "1"}])
    with open(table.path, "ab") as file:
        file.write(torn)
    table.append([{"epoch": "2", "loss": "2"}])
    assert table.path.read_bytes() == b"epoch,loss\n1,1\n2,2\n"


def test_a_missing_file_is_started_over(table):
    table.append([{"epoch": "1", "loss": "1"}])
    table.path.unlink()
    table.append([{"epoch": "2", "loss": "2"}])
    assert table.path.read_bytes() == b"epoch,loss\n2,2\n"


def test_a_link_in_place_of_the_table_is_not_followed(table, tmp_path):
    other = tmp_path / "other"
    other.write_text("mine\n")
    table.path.unlink()
    table.path.symlink_to(other)
    assert table.read() == []
    table.append([{"epoch": "1"}])
    assert other.read_text() == "mine\n"
    assert table.path.read_bytes() == b"epoch\n1\n"


def test_a_pipe_in_place_of_the_table_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "log.csv")
    assert CsvTable(tmp_path / "log.csv").read() == []


@pytest.mark.parametrize("name", ["a,b", 'a"b', "a\nb", "a\r\nb", "a\rb", "=1+1", "snow ☃", " a ", ""])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_column_names_may_contain_any_character(tmp_path, name, separator):
    table = CsvTable(tmp_path / "log.csv", separator)
    table.replace([], ["epoch"])
    table.append([{"epoch": "1", name: "0.5"}])
    table.append([{"epoch": "2", name: "0.25", "more": "1"}])
    assert rows(table, separator) == [{"epoch": "1", name: "0.5", "more": ""}, {"epoch": "2", name: "0.25", "more": "1"}]
    assert CsvTable(tmp_path / "log.csv", separator).read() == rows(table, separator)


def test_characters_that_cannot_be_encoded_are_replaced(tmp_path):
    table = CsvTable(tmp_path / "log.csv")
    table.replace([], ["epoch", "a\ud800"])
    table.append([{"epoch": "1", "a\ud800": "2"}])
    assert rows(table) == [{"epoch": "1", "a?": "2"}]


def test_rotate_renames_to_a_free_name(table, tmp_path):
    for expected in ("log.1.csv", "log.2.csv"):
        table.replace([], ["epoch", expected])
        table.rotate()
        assert (tmp_path / expected).read_text() == f"epoch,{expected}\n"
    assert not table.path.exists()


def test_sync_works_without_a_file(table, tmp_path):
    table.sync()
    CsvTable(tmp_path / "none.csv").sync()
    CsvTable(tmp_path / "no" / "none.csv").sync()
