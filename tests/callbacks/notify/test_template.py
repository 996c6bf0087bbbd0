from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookpoint.callbacks.notify._template import Field, Template

HOSTILE = [
    "; reboot",
    "$(id)",
    "`id`",
    "| sh",
    "& sh",
    "a\nb",
    "{loss}",
    "{{",
    "}}",
    "{loss.__class__}",
    "{run.store}",
    "%s",
    "\\",
]


def made(words, known=("loss", "run"), numbers=("loss",)):
    return Template(words, known=known, numbers=numbers)


@pytest.mark.parametrize(
    ("words", "filled"),
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
def test_fields_are_filled(words, filled):
    assert made(words).fill({"loss": 0.125, "run": "mine"}) == filled


@pytest.mark.parametrize(
    "words",
    [
        "{}",
        "{0}",
        "{other}",
        "{ loss}",
        "{loss!r}",
        "{loss.real}",
        "{loss.__class__}",
        "{run.store}",
        "{run[0]}",
        "{__class__}",
        "{loss:}",
        "{loss:>9999999f}",
        "{loss:99999f}",
        "{loss:x}",
        "{loss:{run}}",
        "{run:.2f}",
    ],
)
def test_what_is_no_field_is_refused(words):
    with pytest.raises(ValueError, match=r"is no field|means nothing here"):
        made(words)


def test_the_error_says_what_there_is():
    with pytest.raises(ValueError, match="is no field") as caught:
        made("{loss.real}")
    assert str(caught.value) == (
        "{loss.real} is no field.\n  known     loss, run\n  add       metrics to names=\n  write     {{ and }} for braces"
    )


@pytest.mark.parametrize("words", ["{", "}", "{loss", "loss}", "{loss}}"])
def test_a_single_brace_is_refused(words):
    with pytest.raises(ValueError, match=r"a single '[{}]' means nothing here\.\n  write     "):
        made(words)


@pytest.mark.parametrize(
    "name", ["val-error-top1", "GPUUtil/0", "a.b", "a b", "top:1", "loss|x", "__class__", "0", "snow ☃", "a!r"]
)
def test_a_metric_may_have_any_name_without_braces(name):
    assert made(f"<{{{name}}}>", known=[name], numbers=[name]).fill({name: 0.5}) == "<0.5>"


@pytest.mark.parametrize("value", HOSTILE)
def test_what_a_value_holds_stays_what_it_is(value):
    assert made("{run}{loss}").fill({"loss": 1.0, "run": value}) == f"{value}1.0"


@given(st.lists(st.one_of(st.text(), st.sampled_from([Field("a"), Field("b")]))), st.text(), st.text())
def test_filling_is_one_replacement(pieces, a, b):
    words = "".join(
        f"{{{one.name}}}" if isinstance(one, Field) else one.replace("{", "{{").replace("}", "}}") for one in pieces
    )
    expected = "".join({"a": a, "b": b}[one.name] if isinstance(one, Field) else one for one in pieces)
    assert Template(words, known=["a", "b"]).fill({"a": a, "b": b}) == expected


def test_fields_are_known():
    assert made("{loss:.2f} {run} {loss}").fields == [Field("loss", ".2f"), Field("run"), Field("loss")]
