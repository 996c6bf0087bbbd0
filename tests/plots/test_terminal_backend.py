from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from hookpoint.plots.figure_layout import PlotOptions, figure_of
from hookpoint.plots.terminal_backend import Look, columns_of, lines_of

SMALL = Look(width=40, rows=5, has_colours=False)


def text(subjects, look=SMALL, **options):
    lines = lines_of(figure_of(subjects, PlotOptions(**options), columns=columns_of(look)), look)
    return "\n".join(line.plain for line in lines)


@pytest.fixture
def run(values, subject):
    loss = values("loss", [8.0, 4.0, 2.0, 1.0, nan, 1.0], stride=10)
    val = values("val_loss", [7.0, 3.0, 2.5], "epoch", stride=20)
    return subject(loss, val, about="finished", modes={"val_loss": "min"})


def test_the_whole_plot_of_a_run(run):
    assert text([run]) == WHOLE


def test_the_whole_plot_of_a_run_in_ascii(run):
    shown = text([run], replace(SMALL, is_ascii=True))
    assert shown == IN_ASCII
    assert shown.isascii()


def test_runs_are_told_apart_by_colours_or_symbols(run):
    plain, coloured = text([run, run]), text([run, run], replace(SMALL, has_colours=True))
    assert "* mine (1) loss" in plain
    assert "# mine (2) val_loss" in plain
    assert coloured.splitlines()[-1] == "  ── mine (1)   ── mine (2)"
    lines = lines_of(figure_of([run, run], PlotOptions(), columns=80), replace(SMALL, has_colours=True))
    assert {"cyan", "yellow"} <= {span.style for line in lines for span in line.spans}


@pytest.mark.parametrize("width", [24, 40, 80, 200])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_no_line_is_wider_than_the_terminal(values, subject, width, is_ascii):
    runs = [
        subject(
            values("loss", [1e-12, 3e30, nan, 5.0], stride=10**7),
            values(f"val_{'long' * 30}[red]", [0.12345678, 0.12345679]),
            name=f"run {'x' * number * 20}",
            modes={"loss": "min"},
        )
        for number in range(4)
    ]
    for log in (True, False):
        shown = text(runs, Look(width, is_ascii=is_ascii), log=log, x="time")
        assert max(map(len, shown.splitlines())) <= width
        assert shown.isascii() or not is_ascii


def test_markup_and_control_characters_in_names_are_plain_text(values, subject):
    shown = text([subject(values("[red]$x_1$", [1.0, 2.0]), name="\x1b[31m[bold]")])
    assert shown.startswith("?[31m[bold]\n\n[red]$x_1$\n")


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([nan, nan], "no finite values"), ([3.0], "3 ┤                  •"), ([3.0, 3.0], "3 ┤⠤⠤⠤"), ([0.0, 1e-9], "1e-9 ┤")],
)
def test_few_or_odd_values_are_drawn(values, subject, numbers, shown):
    assert shown in text([subject(values("a", numbers))])


def test_a_log_scale_has_round_tick_labels(values, subject):
    shown = text([subject(values("a", [1e-4, 1.0]))], replace(SMALL, rows=12), log=True)
    assert [line.split()[0] for line in shown.splitlines() if "┤" in line] == ["1", "0.01", "0.0001"]


WHOLE = """\
mine: finished

loss
7.5 ┤⠢⢄     ⣀
    │  ⠑⠢⣀   ⠉⠁ ⠤⣀
  5 ┤     ⠑⠤⣀      ⠐⠒⠄ ⡀
2.5 ┤        ⠉⠑⠢⠤⣀⡀    ⠈⠉ ⠐⠒⠂ ⠒⠒ ⠠⠤⠄ ⠤⠤●
    │             ⠈⠉⠉⠒⠒⠒⠤⠤      ×      ⠠
    └───────┬────────────┬──────────────
           20           40          step
  ── loss   ╌╌ val_loss
  ● best 2.5 at step 60
  × NaN or infinite"""
IN_ASCII = """\
mine: finished

loss
7.5 +**
    |  **** ++++
  5 +      *****++++++
2.5 +           ******+++++++++++++++++O
    |                 ****      x      *
    +-------+------------+--------------
           20           40          step
  * loss   + val_loss
  O best 2.5 at step 60
  x NaN or infinite"""
