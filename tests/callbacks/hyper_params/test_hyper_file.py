from __future__ import annotations

import math
import os
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookpoint.callbacks.hyper_params import _hyper_file as hyper_file
from hookpoint.callbacks.hyper_params._hyper_file import HyperFile, parse


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hyper.txt"


def age(path, seconds=60.0):
    """Make a file look as if it was written `seconds` ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def values(reading):
    return {line.name: line.value for line in reading.lines}


def test_lines_are_names_and_values():
    reading = parse(b"learning_rate:0.1\nmomentum: 0.9\n  weight_decay :\t1e-4  \r\nsteps: -3\n")
    assert values(reading) == {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "steps": -3.0}
    assert reading.problems == []


def test_blank_lines_and_comments_are_ignored():
    reading = parse(b"\n   \n# a comment: 5\nlr:0.1  # lower than before\n\n")
    assert values(reading) == {"lr": 0.1}
    assert [line.number for line in reading.lines] == [4]
    assert reading.problems == []


def test_a_byte_order_mark_is_ignored():
    assert values(parse(b"\xef\xbb\xbflr:0.1\n")) == {"lr": 0.1}


@pytest.mark.parametrize("number", ["1", "1.", ".5", "+1.5", "-2e3", "1E-4", "0", "0.0", "-0", "00012"])
def test_numbers_are_parsed(number):
    assert values(parse(f"lr:{number}\n".encode())) == {"lr": float(number)}


@pytest.mark.parametrize(
    "number",
    [
        "nan",
        "NaN",
        "inf",
        "-inf",
        "Infinity",
        "1e999",
        "-1e999",
        "9" * 400,
        "1e-999",
        "0.1.2",
        "1,5",
        "1_000",
        "0x10",
        "",
        "x",
        "\u0661",
        "1 2",
    ],
)
def test_a_value_that_is_not_a_finite_number_is_a_problem(number):
    reading = parse(f"momentum:0.9\nlr:{number}\n".encode())
    assert values(reading) == {"momentum": 0.9}
    (problem,) = reading.problems
    assert problem.line == 2
    assert problem.reason.startswith("needs a finite number for 'lr': ")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"lr=0.1", "has no colon: 'lr=0.1'; write name:value"),
        (b"0.1", "has no colon: '0.1'; write name:value"),
        (b":0.1", "has no name: ':0.1'; write name:value"),
        (b"\xff\xfe\x00", r"is not text: b'\xff\xfe\x00'"),
        (b"lr\x00", r"has no colon: 'lr\x00'; write name:value"),
        (b"\x1b[2J" + b"a" * 100, "has no colon: '\\x1b[2J" + "a" * 36 + "'…; write name:value"),
    ],
)
def test_an_invalid_line_is_a_problem_with_its_line_number(line, reason):
    reading = parse(b"momentum:0.9\n" + line + b"\nlr:0.1\n")
    assert values(reading) == {"momentum": 0.9, "lr": 0.1}
    assert [(problem.line, problem.reason) for problem in reading.problems] == [(2, reason)]


def test_a_repeated_name_is_reported_and_the_last_line_counts():
    reading = parse(b"lr:0.1\nlr:0.2\n")
    assert values(reading) == {"lr": 0.2}
    assert [problem.reason for problem in reading.problems] == ["sets 'lr' again, after line 1; the last valid line counts"]


def test_an_invalid_repetition_keeps_the_first_line():
    assert values(parse(b"lr:0.1\nlr:nan\n")) == {"lr": 0.1}


def test_a_missing_file_has_no_lines_and_no_problems(path):
    reading = HyperFile(path).read()
    assert (reading.lines, reading.problems) == ([], [])


def test_an_empty_file_has_no_problems(path):
    path.write_bytes(b"")
    assert HyperFile(path).read().problems == []


# Rejected files


def refusal(path):
    reading = HyperFile(path).read()
    assert reading.lines == []
    (problem,) = reading.problems
    assert problem.line == 0
    return problem.reason


def test_a_symbolic_link_is_not_followed(path, tmp_path):
    (tmp_path / "other").write_text("lr:0.1\n")
    path.symlink_to(tmp_path / "other")
    assert refusal(path) == "is a symbolic link"
    (tmp_path / "other").unlink()
    assert refusal(path) == "is a symbolic link"


def test_a_link_that_replaces_the_file_during_the_check_is_not_followed(path, tmp_path, monkeypatch):
    (tmp_path / "other").write_text("lr:0.1\n")
    path.symlink_to(tmp_path / "other")
    monkeypatch.setattr(hyper_file.os, "lstat", os.stat)
    assert refusal(path) == "is a symbolic link"


def test_a_directory_is_rejected(path):
    path.mkdir()
    assert refusal(path) == "is not a regular file"


@pytest.mark.timeout(20)
def test_a_fifo_is_rejected_without_waiting(path):
    os.mkfifo(path)
    assert refusal(path) == "is not a regular file"


def test_a_device_is_rejected():
    assert refusal("/dev/zero") == "is not a regular file"


def test_a_file_of_another_user_is_not_read(path, monkeypatch):
    path.write_text("lr:0.1\n")
    mine = os.geteuid()
    monkeypatch.setattr(hyper_file.os, "geteuid", lambda: mine + 1)
    assert refusal(path) == f"belongs to user {mine}, but this process runs as user {mine + 1}"


def test_an_unreadable_file_is_reported(path, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    path.write_text("lr:0.1\n")
    monkeypatch.setattr(hyper_file.os, "open", refuse)
    assert refusal(path) == "cannot be read: Permission denied"


@pytest.mark.parametrize("size", [64 * 1024 + 1, 10 * 1024 * 1024])
def test_a_file_over_64_kib_is_not_read(path, size):
    path.write_bytes(b"lr:0.1\n" + b"#" * (size - 7))
    assert refusal(path) == "is larger than 64 KiB"


def test_a_huge_file_is_not_opened(path, monkeypatch):
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    monkeypatch.setattr(hyper_file.os, "open", None)
    assert refusal(path) == "is larger than 64 KiB"


# A file that is being written


def test_an_unterminated_last_line_is_read_when_nothing_follows(path):
    path.write_text("lr:0.1")
    assert values(HyperFile(path).read()) == {"lr": 0.1}


def test_an_unchanged_file_is_waited_for_once(path, monkeypatch):
    naps = []
    monkeypatch.setattr(hyper_file.time, "sleep", naps.append)
    path.write_text("lr:0.1")
    file = HyperFile(path)
    file.read(), file.read(), file.read()
    assert naps == [hyper_file.SETTLE_SECONDS]


def test_an_old_file_is_not_waited_for(path, monkeypatch):
    monkeypatch.setattr(hyper_file.time, "sleep", None)
    path.write_text("lr:0.1")
    age(path)
    assert values(HyperFile(path).read()) == {"lr": 0.1}


def test_a_file_that_is_still_being_written_is_waited_for(path, monkeypatch):
    path.write_text("lr:0.")
    monkeypatch.setattr(hyper_file.time, "sleep", lambda seconds: path.write_text("lr:0.001\n"))
    assert values(HyperFile(path).read()) == {"lr": 0.001}


def test_only_complete_lines_of_a_file_that_keeps_growing_are_read(path, monkeypatch):
    path.write_text("momentum:0.9\nlr:0.")

    def more(seconds):
        with path.open("a") as file:
            file.write("0")

    monkeypatch.setattr(hyper_file.time, "sleep", more)
    reading = HyperFile(path).read()
    assert values(reading) == {"momentum": 0.9}
    assert reading.problems == []


def test_an_incomplete_line_is_reported_only_when_the_file_is_old(path):
    path.write_text("momentum:0.9\nlearning_ra")
    file = HyperFile(path)
    assert file.read().problems == []
    age(path)
    assert [problem.line for problem in file.read().problems] == [2]


# Arbitrary content

NAMES = st.sampled_from(["lr", "learning_rate", "momentum", "", "a:b", "λ", "\x00", "nan"])
NUMBERS = st.one_of(
    st.sampled_from(["nan", "inf", "-inf", "1e999", "1e-999", "", "0.1.1", "9" * 5000, "0x1", "1_0", "\x00"]),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(max_size=6),
)
LINES = st.one_of(
    st.tuples(NAMES, NUMBERS).map(lambda pair: f"{pair[0]}:{pair[1]}".encode("utf-8", "surrogatepass")),
    st.binary(max_size=30),
    st.sampled_from([b"", b"#", b":", b"::", b"lr", b"\x00", b"lr:0.1\r", b"\xef\xbb\xbf", b"\xff"]),
)


@settings(max_examples=10_000 if settings.default.max_examples > 20 else 100, deadline=None)
@example([b"lr:0.1", b"lr:nan"], 3, False)
@given(st.lists(LINES, max_size=8), st.integers(0, 40), st.booleans())
def test_parse_returns_only_finite_numbers_and_never_raises(lines, torn, may_be_incomplete):
    content = b"\n".join(lines)
    content = content[: len(content) - torn] if torn else content
    reading = parse(content, may_be_incomplete=may_be_incomplete)
    whole = content.split(b"\n")
    for line in reading.lines:
        assert math.isfinite(line.value)
        assert line.name == line.name.strip() != ""
        assert line.name.encode() in whole[line.number - 1]
    assert all(1 <= problem.line <= len(whole) for problem in reading.problems)
    assert all(problem.reason.replace("…", "").isascii() and problem.reason.isprintable() for problem in reading.problems)
    assert reading == parse(content, may_be_incomplete=may_be_incomplete)
