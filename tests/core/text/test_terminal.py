from __future__ import annotations

import pytest

from hookpoint.core.text import terminal


@pytest.fixture(autouse=True)
def no_claims():
    yield
    assert not terminal.is_claimed()


def test_a_line_without_claims_is_printed_to_stderr(capsys):
    terminal.say("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_the_newest_claim_prints_lines_until_it_is_released(capsys):
    outer, inner = [], []
    terminal.claim(outer.append)
    terminal.say("to the outer one")
    terminal.claim(inner.append)
    terminal.say("to the inner one")
    terminal.release(outer.append)
    terminal.say("still to the inner one")
    terminal.release(inner.append)
    terminal.release(inner.append)
    terminal.say("to stderr")
    assert (outer, inner) == (["to the outer one"], ["to the inner one", "still to the inner one"])
    assert capsys.readouterr().err == "to stderr\n"


def test_claims_can_be_forgotten(capsys):
    terminal.claim([].append)
    terminal.forget_claims()
    terminal.say("hello")
    assert capsys.readouterr().err == "hello\n"


@pytest.mark.parametrize(("name", "shown"), [("loss", "loss"), ("损失/ü", "损失/ü"), ("a\x1b[31m\r\n\tb\x00", "a?[31m???b?")])
def test_control_characters_in_names_are_replaced(name, shown):
    assert terminal.printable(name) == shown
