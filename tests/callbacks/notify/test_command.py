from __future__ import annotations

import subprocess

import pytest

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


def made(command, **given):
    return Command(command, **{"numbers": ["loss"], "words": ["run"], **given})


def test_a_string_is_split_before_it_is_filled():
    command = made("notify 'loss of {run}' {loss} {run}")
    assert command.arguments({"loss": 0.5, "run": "a b"}) == ["notify", "loss of a b", "0.5", "a b"]


def test_a_list_is_taken_as_it_is():
    command = made(["notify me", "$HOME | {run}", "", "> /dev/null"])
    assert command.arguments({"loss": 0.5, "run": "x"}) == ["notify me", "$HOME | x", "", "> /dev/null"]


def test_the_command_of_the_phone():
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
@pytest.mark.parametrize("given", ["notify x{run} '{run}'", ["notify", "x{run}", "{run}"]], ids=["string", "list"])
def test_a_value_is_never_more_than_its_argument(run, given):
    assert made(given).arguments({"loss": 0.5, "run": run}) == ["notify", f"x{run}", run]


@pytest.mark.parametrize("run", HOSTILE)
@pytest.mark.parametrize("written", ["{run}", '"{run}"', "'{run}'"])
def test_a_shell_quotes_values(run, written, tmp_path):
    command = made(f"printf '%s|' a {written} b | cat > out; printf {{loss}} >> out", shell=True)
    subprocess.run(command.arguments({"loss": 0.5, "run": run}), cwd=tmp_path, check=True)
    assert (tmp_path / "out").read_text() == f"a|{run}|b|0.5"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("run", ["-o/etc/passwd", "--help", "@/etc/passwd", "-"])
@pytest.mark.parametrize(
    ("command", "shell"),
    [("curl -d {run}", False), ('curl "{run}x"', False), ("curl -d '{run}'", True), (["curl", "{run}"], False)],
)
def test_a_text_that_would_be_an_option_is_refused(run, command, shell):
    with pytest.raises(ValueError, match=r"^\{run\} begins with '[-@]', and could be taken for more than a text$"):
        made(command, shell=shell).arguments({"loss": 0.5, "run": run})


@pytest.mark.parametrize("command", ["curl -d name={run}", "curl -d 'a {run}'", "curl {loss}"])
def test_inside_of_an_argument_it_is_none_and_numbers_may_be_negative(command):
    made(command).arguments({"loss": -0.5, "run": "-x"})


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "the command is empty"),
        ("   ", "the command is empty"),
        ("> /dev/null 2>&1", "is for a shell"),
        ([], "the command is empty"),
        ([""], "the command is empty"),
        ("{run} x", "the program itself cannot be a field"),
        (["no{run}", "x"], "the program itself cannot be a field"),
        ("TOKEN=1 curl", "'TOKEN=1' sets a variable, which is for a shell"),
        ("curl x | grep y", "'|' is for a shell"),
        ("curl {run.store}", r"\{run.store\} is no field"),
        (["curl", "{__class__}"], r"\{__class__\} is no field"),
        (["sh", "-c", "echo {run}"], "sh would read a value as a part of its script"),
        (["/bin/bash", "-lc", "echo {loss}"], "bash would read a value as a part of its script"),
    ],
)
def test_mistakes_are_refused(command, says):
    with pytest.raises(ValueError, match=says):
        made(command)


@pytest.mark.parametrize("command", ["", " \n"])
def test_an_empty_script_is_refused(command):
    with pytest.raises(ValueError, match="the command is empty"):
        made(command, shell=True)


@pytest.mark.parametrize("command", [b"curl", ["curl", 3], [["curl"]], [None]])
def test_what_is_no_text_is_refused(command):
    with pytest.raises(TypeError, match="a command is a string or a list of strings, not"):
        made(command)


def test_a_list_for_a_shell_is_refused():
    with pytest.raises(ValueError, match="shell=True takes the command as one string"):
        made(["curl"], shell=True)


def test_the_arguments_of_a_script_may_be_fields():
    command = made(["sh", "-c", 'echo "$1"', "x", "{run}"])
    assert command.arguments({"loss": 0.5, "run": "$(id)"}) == ["sh", "-c", 'echo "$1"', "x", "$(id)"]
