from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookpoint.callbacks.notify._shell_words import as_script, split, without_silence
from hookpoint.callbacks.notify._template import Field, Template

RUN = Field("run")


def words(line):
    return ["".join(word) for word in split([line])]


def by_shell(script, *values):
    """Return the words that a real shell makes of a line."""
    done = subprocess.run(["/bin/sh", "-c", f"printf '%s\\0' {script}", "sh", *values], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a b  c", ["a", "b", "c"]),
        ("  a\tb\n", ["a", "b"]),
        ("a 'b c' \"d e\"", ["a", "b c", "d e"]),
        ("a'b'\"c\"d", ["abcd"]),
        ("a '' \"\"", ["a", "", ""]),
        (r"a\ b \\ \' \"", ["a b", "\\", "'", '"']),
        (r"'a\b' " + r'"a\"b\\c\d\$\`"', ["a\\b", 'a"b\\c\\d$`']),
        ("'|&;<>()$`~' \"|&;<>()~\" \\| \\& \\$ \\~", ["|&;<>()$`~", "|&;<>()~", "|", "&", "$", "~"]),
        ("a~ b=~ http://x/?y#z [1] *", ["a~", "b=~", "http://x/?y#z", "[1]", "*"]),
        ('curl \\\n  -d "a\\\nb" \\\n c', ["curl", "-d", "ab", "c"]),
    ],
)
def test_a_line_is_split_as_a_shell_would(line, expected):
    assert words(line) == expected


@settings(max_examples=3 * settings.default.max_examples)
@given(st.text(alphabet="ab-=/:?\\'\" \t", max_size=12))
def test_words_are_those_of_shlex(line):
    try:
        expected = shlex.split(line)
    except ValueError:
        with pytest.raises(ValueError, match="the command ends inside of"):
            words(line)
    else:
        assert words(line) == expected


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "b", "\\", "'", '"', " ", "\n", "\\\n", "$", "`", "|", ";", "&", ">", "(", "\\$", "~"]),
        max_size=8,
    )
)
@example(["\\", "\\\n", "a"])
def test_what_is_not_refused_means_the_same_to_a_real_shell(signs):
    line = "a" + "".join(signs)
    try:
        found = words(line)
    except ValueError:
        return
    if "\n" not in re.sub(r"(?s)\\.", "", line) or not found:  # a bare line break is a space here
        assert found == by_shell(line)


@pytest.mark.parametrize("operator", ["|", "&", ";", "<", ">", "(", ")", "$", "`"])
@pytest.mark.parametrize("line", ["a {} b", "a{}b", "{}", "a{}"])
def test_what_is_for_a_shell_is_refused(operator, line):
    with pytest.raises(ValueError, match="is for a shell") as caught:
        words(line.format(operator))
    assert str(caught.value) == (
        f"'{operator}' is for a shell, and the command runs without one.\n"
        f"  give      shell=True if it is meant\n"
        f"  quote     '{operator}' if it is not"
    )


@pytest.mark.parametrize("line", ["~/bin/notify", "a ~", '"$HOME"', '"`date`"'])
def test_expansions_are_refused_too(line):
    with pytest.raises(ValueError, match="is for a shell"):
        words(line)


@pytest.mark.parametrize("line", ["'", 'a "b', "a\\", "'\\"])
def test_an_open_end_is_refused(line):
    with pytest.raises(ValueError, match=r"the command ends inside of (a backslash|'|\")\.\n  close     every quote"):
        words(line)


@pytest.mark.parametrize(
    "silence",
    [
        " > /dev/null 2>&1",
        " >/dev/null 2>&1",
        " > /dev/null",
        " 2> /dev/null",
        " &> /dev/null",
        " 2>&1 >/dev/null",
        " >/dev/null 2>/dev/null \n",
    ],
)
def test_silence_at_the_end_is_dropped(silence):
    assert without_silence(f"curl x{silence}") == "curl x"


@pytest.mark.parametrize(
    "line", ["a > /dev/null b", "a > file", "a 2>&1", "a > /dev/null | b", "a '> /dev/null'", "a>/dev/nullx", "a"]
)
def test_nothing_else_is_dropped(line):
    assert without_silence(line) == line


def test_a_field_is_one_piece_of_one_word():
    assert split(Template("a '{run} b'c {run}", known=["run"]).pieces) == [["a"], [RUN, " ", "b", "c"], [RUN]]


def test_a_backslash_before_a_field_is_refused():
    with pytest.raises(ValueError, match=r"a backslash before \{run\} means nothing"):
        split(["a \\", RUN])


# For a shell


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("a {run}", 'a "${1}"'),
        ('a "b {run}"', 'a "b ${1}"'),
        ("a 'b {run}'", "a 'b '\"${1}\"''"),
        ("a | b {run} && c {loss} {run}", 'a | b "${1}" && c "${2}" "${1}"'),
        ('a \\" {run} "\\"{run}"', 'a \\" "${1}" "\\"${1}"'),
    ],
)
def test_a_field_is_an_argument_of_the_script(line, script):
    assert as_script(Template(line, known=["run", "loss"]).pieces, [RUN, Field("loss")]) == script


@settings(deadline=None)
@given(
    st.one_of(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
        st.sampled_from(["$(echo x)", "`echo x`", "'; echo x; '", '"; echo x; "', "*", "a  b", "-n", "\\", "${HOME}", "\n"]),
    )
)
def test_a_value_is_one_word_to_a_real_shell_whatever_it_holds(value):
    line = '{run} x{run}y "{run}" "x {run} y" \'{run}\' \'x {run}\'"{run}"'
    script = as_script(Template(line, known=["run"]).pieces, [RUN])
    assert by_shell(script, value) == [value, f"x{value}y", value, f"x {value} y", value, f"x {value}{value}"]
