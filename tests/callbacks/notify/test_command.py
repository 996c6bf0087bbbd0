from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookpoint.callbacks.notify._command import Command

HOSTILE = [
    "; touch PWNED",
    "$(touch PWNED)",
    "`touch PWNED`",
    "| touch PWNED",
    "& touch PWNED &",
    "\ntouch PWNED\n",
    "'; touch PWNED; '",
    '"; touch PWNED; "',
    "{__class__}",
    "{run.store}",
    "{loss}",
    "a b\tc",
    "*",
    "> PWNED",
    "\\",
]


def command_of(command, **options):
    return Command(command, **{"numbers": ["loss"], "texts": ["run"], **options})


def test_a_string_is_split_before_its_fields_are_filled():
    command = command_of("notify 'loss of {run}' {loss} {run}")
    assert command.arguments({"loss": 0.5, "run": "a b"}) == ["notify", "loss of a b", "0.5", "a b"]


def test_a_list_is_used_unchanged():
    command = command_of(["notify me", "$HOME | {run}", "", "> /dev/null"])
    assert command.arguments({"loss": 0.5, "run": "x"}) == ["notify me", "$HOME | x", "", "> /dev/null"]


def test_a_curl_command_with_a_redirection_is_split():
    command = Command(
        """curl -u your_id_xxx: https://api.pushbullet.com/v2/pushes \\
             -d type=note -d title="validation error" \\
             -d body={val-error-top1} > /dev/null 2>&1""",
        numbers=["val-error-top1"],
    )
    assert command.arguments({"val-error-top1": 0.25}) == [
        *["curl", "-u", "your_id_xxx:", "https://api.pushbullet.com/v2/pushes"],
        *["-d", "type=note", "-d", "title=validation error", "-d", "body=0.25"],
    ]
    assert command.program == "curl"


@pytest.mark.parametrize("run", HOSTILE)
@pytest.mark.parametrize("written", ["notify x{run} '{run}'", ["notify", "x{run}", "{run}"]], ids=["string", "list"])
def test_a_value_stays_within_its_argument(run, written):
    assert command_of(written).arguments({"loss": 0.5, "run": run}) == ["notify", f"x{run}", run]


@pytest.mark.parametrize("run", HOSTILE)
@pytest.mark.parametrize("written", ["{run}", '"{run}"', "'{run}'"])
def test_a_value_is_a_single_word_in_a_shell_script(run, written, tmp_path):
    command = command_of(f"printf '%s|' a {written} b | cat > out; printf {{loss}} >> out", shell=True)
    subprocess.run(command.arguments({"loss": 0.5, "run": run}), cwd=tmp_path, check=True)
    assert (tmp_path / "out").read_text() == f"a|{run}|b|0.5"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("run", ["-o/etc/passwd", "--help", "@/etc/passwd", "-"])
@pytest.mark.parametrize(
    ("command", "shell"),
    [("curl -d {run}", False), ('curl "{run}x"', False), ("curl -d '{run}'", True), (["curl", "{run}"], False)],
)
def test_a_text_that_could_be_read_as_an_option_raises(run, command, shell):
    with pytest.raises(ValueError, match=r"^\{run\} starts with '[-@]' and could be read as an option$"):
        command_of(command, shell=shell).arguments({"loss": 0.5, "run": run})


@pytest.mark.parametrize("command", ["curl -d name={run}", "curl -d 'a {run}'", "curl {loss}"])
def test_a_leading_dash_within_an_argument_or_in_a_number_is_accepted(command):
    command_of(command).arguments({"loss": -0.5, "run": "-x"})


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "the command is empty"),
        ("   ", "the command is empty"),
        ("> /dev/null 2>&1", "is shell syntax"),
        ([], "the command is empty"),
        ([""], "the command is empty"),
        ("{run} x", "the program itself cannot be a field"),
        (["no{run}", "x"], "the program itself cannot be a field"),
        ("TOKEN=1 curl", "'TOKEN=1' sets a variable, which needs a shell"),
        ("curl x | grep y", "'|' is shell syntax"),
        ("curl {run.store}", r"\{run.store\} is not a field"),
        (["curl", "{__class__}"], r"\{__class__\} is not a field"),
        (["sh", "-c", "echo {run}"], "sh would run a value as part of its script"),
        (["/bin/bash", "-lc", "echo {loss}"], "bash would run a value as part of its script"),
    ],
)
def test_invalid_commands_raise(command, says):
    with pytest.raises(ValueError, match=says):
        command_of(command)


@pytest.mark.parametrize("command", ["", " \n"])
def test_an_empty_script_raises(command):
    with pytest.raises(ValueError, match="the command is empty"):
        command_of(command, shell=True)


@pytest.mark.parametrize("command", [b"curl", ["curl", 3], [["curl"]], [None]])
def test_a_command_that_is_not_text_raises(command):
    with pytest.raises(TypeError, match="the command must be a string or a list of strings, got"):
        command_of(command)


def test_a_list_for_a_shell_raises():
    with pytest.raises(ValueError, match="with shell=True, the command must be one string"):
        command_of(["curl"], shell=True)


def test_arguments_after_a_script_can_be_fields():
    command = command_of(["sh", "-c", 'echo "$1"', "x", "{run}"])
    assert command.arguments({"loss": 0.5, "run": "$(id)"}) == ["sh", "-c", 'echo "$1"', "x", "$(id)"]


# Fields


def filled(text, values, **options):
    """Return the argument with its fields filled."""
    return command_of(["x", f"<{text}>"], **options).arguments(values)[1][1:-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("no field", "no field"),
        ("{loss}", "0.125"),
        ("a{loss}b{run}c", "a0.125bminec"),
        ("{{loss}}", "{loss}"),
        ("{{{loss}}}", "{0.125}"),
        ("{loss:.2f}", "0.12"),
        ("{loss:08.3f}|{loss:+.1e}|{loss:g}|{loss:.1%}", "0000.125|+1.2e-01|0.125|12.5%"),
    ],
)
def test_fields_are_filled_and_formatted(text, expected):
    assert filled(text, {"loss": 0.125, "run": "mine"}) == expected


@pytest.mark.parametrize(
    "text",
    [
        *["{}", "{0}", "{other}", "{ loss}", "{loss!r}", "{loss.real}", "{loss.__class__}", "{run.store}", "{run[0]}"],
        *["{__class__}", "{loss:}", "{loss:>9999999f}", "{loss:99999f}", "{loss:x}", "{loss:{run}}", "{run:.2f}"],
    ],
)
def test_unknown_fields_raise(text):
    with pytest.raises(ValueError, match=r"is not a field|unmatched"):
        command_of(["x", text])


def test_the_error_lists_the_fields():
    with pytest.raises(ValueError, match="is not a field") as caught:
        command_of(["x", "{loss.real}"])
    assert str(caught.value) == (
        "{loss.real} is not a field.\n  known     loss, run\n  add       metrics to names=\n  write     {{ and }} for braces"
    )


@pytest.mark.parametrize("text", ["{", "}", "{loss", "loss}", "{loss}}"])
def test_an_unmatched_brace_raises(text):
    with pytest.raises(ValueError, match=r"unmatched '[{}]' in the command\.\n  write     "):
        command_of(["x", text])


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize(
    "name", ["val-error-top1", "GPUUtil/0", "a.b", "a b", "top:1", "loss|x", "__class__", "0", "snow ☃", "a!r", "it's", "$(x)"]
)
def test_a_metric_may_have_any_name_without_braces(name, shell):
    assert command_of(f"x {{{name}}}", numbers=[name], shell=shell).arguments({name: 0.5})[-1] == "0.5"


@given(
    st.lists(st.one_of(st.text("{}ab \n'\"\\é"), st.sampled_from([("a",), ("b",)]))),
    st.text(),
    st.text(),
)
def test_values_are_not_scanned_for_fields(pieces, a, b):
    text = "".join(f"{{{one[0]}}}" if isinstance(one, tuple) else one.replace("{", "{{").replace("}", "}}") for one in pieces)
    expected = "".join({"a": a, "b": b}[one[0]] if isinstance(one, tuple) else one for one in pieces)
    assert filled(text, {"a": a, "b": b}, texts=["a", "b"]) == expected


@pytest.mark.parametrize("command", ["x \0", ["x", "\0000\0"]])
def test_a_nul_character_raises(command):
    with pytest.raises(ValueError, match="a command cannot contain NUL"):
        command_of(command)


# Splitting


def words(line):
    return command_of(line).arguments({})


def by_shell(script, *values):
    """Return the words into which a real shell splits the line."""
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
        ("a '|&;<>()$`~' \"|&;<>()~\" \\| \\& \\$ \\~", ["a", "|&;<>()$`~", "|&;<>()~", "|", "&", "$", "~"]),
        ("a~ b=~ http://x/?y#z [1] *", ["a~", "b=~", "http://x/?y#z", "[1]", "*"]),
        ('curl \\\n  -d "a\\\nb" \\\n c', ["curl", "-d", "ab", "c"]),
        ("a 'b\\\nc'", ["a", "b\\\nc"]),
    ],
)
def test_a_line_is_split_as_in_a_shell(line, expected):
    assert words(line) == expected


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "b", "\\", "'", '"', " ", "\n", "\\\n", "$", "`", "|", ";", "&", ">", "(", "\\$", "~"]),
        max_size=8,
    )
)
@example(["\\", "\\\n", "a"])
@example(["'", "a", "'", "~"])
@example(['"', "\\", "a", '"'])
def test_a_real_shell_splits_accepted_lines_the_same_way(signs):
    line = "a" + "".join(signs)
    try:
        found = words(line)
    except ValueError:
        return
    if "\n" not in re.sub(r"(?s)\\.", "", line):  # here, an unescaped line break is a space
        assert found == by_shell(line)


@pytest.mark.parametrize("operator", ["|", "&", ";", "<", ">", "(", ")", "$", "`"])
@pytest.mark.parametrize("line", ["a {} b", "a{}b", "{}", "a{}"])
def test_shell_syntax_raises(operator, line):
    with pytest.raises(ValueError, match="is shell syntax") as caught:
        words(line.format(operator))
    assert str(caught.value) == (
        f"'{operator}' is shell syntax, and the command runs without a shell.\n"
        f"  give      shell=True to run it in a shell\n"
        f"  quote     '{operator}' to pass it as text"
    )


@pytest.mark.parametrize("line", ["~/bin/notify", "a ~", '"$HOME"', '"`date`"'])
def test_shell_expansions_raise(line):
    with pytest.raises(ValueError, match="is shell syntax"):
        words(line)


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize("line", ["'", 'a "b', "a\\", "'\\", "a 'b {run}"])
def test_an_open_quote_raises(line, shell):
    with pytest.raises(ValueError, match=r"the command ends inside a quote or after a backslash\.\n  close     every quote"):
        command_of(line, shell=shell)


@pytest.mark.parametrize(
    "redirection",
    [
        *[" > /dev/null 2>&1", " >/dev/null 2>&1", " > /dev/null", " 2> /dev/null", " &> /dev/null"],
        *[" 2>&1 >/dev/null", " >/dev/null 2>/dev/null \n"],
    ],
)
def test_a_redirection_to_dev_null_at_the_end_is_dropped(redirection):
    assert words(f"curl x{redirection}") == ["curl", "x"]


@pytest.mark.parametrize("line", ["a > /dev/null b", "a > file", "a 2>&1", "a > /dev/null | b", "a>/dev/nullx"])
def test_other_redirections_raise(line):
    with pytest.raises(ValueError, match="is shell syntax"):
        words(line)


def test_a_quoted_redirection_is_an_argument():
    assert words("a '> /dev/null'") == ["a", "> /dev/null"]


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize("line", ["a \\{run}", 'a "\\{run}"', "a \\\\\\{run}"])
def test_a_backslash_before_a_field_raises(line, shell):
    with pytest.raises(ValueError, match="a backslash before a field has no effect"):
        command_of(line, shell=shell)


@pytest.mark.parametrize("line", ["a \\\\{run}", 'a "\\\\{run}"', "a '\\{run}'"])
def test_an_escaped_backslash_before_a_field_is_a_backslash(line):
    assert command_of(line).arguments({"run": "b"}) == ["a", "\\b"]


# For a shell


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("a {run}", 'a "${1}"'),
        ('a "b {run}"', 'a "b ${1}"'),
        ("a 'b {run}'", "a 'b '\"${1}\"''"),
        ("a | b {run} && c {loss} {run}", 'a | b "${1}" && c "${2}" "${3}"'),
        ('a \\" {run} "\\"{run}"', 'a \\" "${1}" "\\"${2}"'),
    ],
)
def test_a_field_becomes_a_parameter_of_the_script(line, script):
    arguments = command_of(line, shell=True).arguments({"run": "x", "loss": 0.5})
    assert arguments[:4] == ["/bin/sh", "-c", script, "hookpoint"]


@settings(deadline=None)
@given(
    st.one_of(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
        st.sampled_from(["$(echo x)", "`echo x`", "'; echo x; '", '"; echo x; "', "*", "a  b", "-n", "\\", "${HOME}", "\n"]),
    )
)
def test_any_value_is_a_single_word_to_a_real_shell(value):
    line = 'printf "%s\\0" a{run} x{run}y "a{run}" "x {run} y" \'a{run}\' \'x {run}\'"{run}"'
    done = subprocess.run(command_of(line, shell=True).arguments({"run": value}), capture_output=True, check=True)
    expected = [f"a{value}", f"x{value}y", f"a{value}", f"x {value} y", f"a{value}", f"x {value}{value}"]
    assert done.stdout.decode().split("\0")[:-1] == expected
