from __future__ import annotations

from math import inf, isnan, nan

import pytest

from hookpoint.plots._smoothing import smoothed
from hookpoint.plots.figure_layout import PlotOptions, axis_along, figure_of, time_unit


def figure(*subjects, columns=1000, **options):
    return figure_of(subjects, PlotOptions(**options), columns=columns)


def test_metrics_of_a_run_are_laid_out_in_panels(values, subject):
    run = subject(
        values("loss", [3.0, 2.0, 1.0]),
        values("val_loss", [2.5, 2.0, 2.2], "epoch", stride=10),
        values("learning_rate", [0.1, 0.1, 0.1]),
        about="finished",
        modes={"loss": "min", "val_loss": "min"},
    )
    drawn = figure(run)
    assert (drawn.title, drawn.runs, drawn.x_label, drawn.x_range) == ("mine: finished", ["mine"], "step", (1, 30))
    loss, rate = drawn.panels
    assert (loss.title, loss.names, loss.log, loss.low, loss.high) == ("loss", ("loss", "val_loss"), False, 1.0, 3.0)
    training, validation = loss.curves
    assert (training.xs, training.ys, training.style, training.raw, training.best) == (
        [1, 2, 3],
        [3.0, 2.0, 1.0],
        0,
        None,
        None,
    )
    assert (validation.style, validation.best.y, validation.best.step) == (1, 2.0, 20)
    assert rate.title == "learning_rate"
    assert drawn.notes == []


def test_the_longer_series_of_a_metric_is_drawn(values, subject):
    steps, epochs = values("loss", [3.0, 2.0, 1.0]), values("loss", [2.0], "epoch")
    assert figure(subject(epochs, steps)).panels[0].curves[0].ys == [3.0, 2.0, 1.0]
    assert figure(subject(values("loss", [5.0]), values("loss", [6.0], "epoch"))).panels[0].curves[0].ys == [6.0]


def test_without_validation_the_best_training_value_is_marked(values, subject):
    (panel,) = figure(subject(values("accuracy", [0.1, 0.9, nan, 0.9, 0.2]), modes={"accuracy": "max"})).panels
    assert (panel.curves[0].best.y, panel.curves[0].best.step) == (0.9, 2)
    (panel,) = figure(subject(values("norm", [0.1, 0.9]))).panels
    assert panel.curves[0].best is None


def test_smoothing_keeps_the_raw_curve_and_skips_the_learning_rate(values, subject):
    raw = [3.0, 1.0, 2.0, nan, 2.0]
    loss, rate = figure(subject(values("loss", raw), values("lr", [3.0, 1.0])), smooth=0.9).panels
    assert loss.curves[0].ys[:3] == smoothed(raw[:3], 0.9)
    assert loss.curves[0].raw[1][:3] == raw[:3]
    assert (rate.curves[0].raw, rate.curves[0].ys) == (None, [3.0, 1.0])


def test_non_finite_values_are_gaps_with_a_mark(values, subject):
    (panel,) = figure(subject(values("loss", [1.0, nan, 3.0, inf, -inf, 1e305, 2.0]))).panels
    (curve,) = panel.curves
    assert [isnan(y) for y in curve.ys] == [False, True, False, True, True, True, False]
    assert (curve.broken, panel.low, panel.high) == ((2, 4, 5, 6), 1.0, 3.0)


def test_thousands_of_non_finite_values_have_few_marks(values, subject):
    (panel,) = figure(subject(values("loss", [nan] * 5000)), columns=100).panels
    assert panel.is_empty
    assert 32 <= len(panel.curves[0].broken) <= 64


def test_values_that_a_log_scale_cannot_show_are_noted(values, subject):
    drawn = figure(subject(values("a", [1.0, 0.0, -2.0, 4.0]), values("b", [0.0]), values("c", [0.0, 5.0])), log=True)
    assert [panel.log for panel in drawn.panels] == [True, False, True]
    assert drawn.notes == [
        "a: 2 values that are not above 0 cannot be shown on a log scale",
        "b: no log scale: no value is above 0",
        "c: 1 value that is not above 0 cannot be shown on a log scale",
    ]
    assert (drawn.panels[0].low, drawn.panels[0].high) == (1.0, 4.0)


@pytest.mark.parametrize(("rates", "log"), [([0.1, 0.01], True), ([0.1, 0.02], False), ([0.1, 0.0], False)])
def test_the_learning_rate_has_a_log_scale_if_it_spans_a_decade(values, subject, rates, log):
    assert figure(subject(values("learning_rate", rates))).panels[0].log is log


def test_runs_with_the_same_name_are_numbered_and_may_lack_a_metric(values, subject):
    one = subject(values("loss", [1.0, 2.0]), name="same")
    two = subject(values("loss", [1.0, 2.0]), values("f1", [0.5]), name="same")
    drawn = figure(one, two)
    assert (drawn.title, drawn.runs) == ("2 runs", ["same (1)", "same (2)"])
    assert [[curve.run for curve in panel.curves] for panel in drawn.panels] == [[0, 1], [1]]


def test_metrics_that_are_left_out_are_listed(values, subject):
    drawn = figure(subject(*(values(f"m{index}", [1.0]) for index in range(20))))
    assert drawn.notes == ["left out: m14, m15, m16, m17, m18, m19, m2, m3 and 6 more; use -m NAME"]


def test_control_characters_in_names_are_replaced(values, subject):
    drawn = figure(subject(values("a\x1b[2J", [1.0]), name="b\x07\n"))
    assert (drawn.title, drawn.panels[0].title, drawn.panels[0].curves[0].name) == ("b??", "a?[2J", "a?[2J")


@pytest.mark.parametrize(
    ("numbers", "low", "high"),
    [([1.0, 2.0], 0.94, 2.06), ([4.0, 4.0], 2.0, 6.0), ([0.0], -1.0, 1.0), ([nan], 0.0, 1.0), ([1e-310, 2e-310], -1.0, 1.0)],
)
def test_axes_have_margins(values, subject, numbers, low, high):
    assert figure(subject(values("a", numbers))).panels[0].limits == pytest.approx((low, high))


def test_four_metrics_of_a_panel_have_four_styles(values, subject):
    names = ["loss", "train_loss", "val_loss", "val-loss"]
    (panel,) = figure(subject(*(values(name, [1.0]) for name in names))).panels
    assert sorted(curve.style for curve in panel.curves) == [0, 1, 2, 3]


def test_invalid_options_raise():
    with pytest.raises(ValueError, match=r"smooth must be >= 0 and < 1, got 1\."):
        PlotOptions(smooth=1)
    with pytest.raises(ValueError, match="unknown x axis 'day'"):
        PlotOptions(x="day")


def places(x, subject, series):
    return list(axis_along(x, subject.series, time_unit([subject.series.values()]))(series))


def test_the_step_axis_has_the_steps(values, subject):
    loss = values("loss", [1.0] * 3, stride=5)
    assert places("step", subject(loss), loss) == [5, 10, 15]


def test_the_epoch_axis_is_interpolated_within_epochs(values, subject):
    loss, val = values("loss", [1.0] * 4, stride=5), values("val_loss", [1.0] * 2, "epoch", stride=10)
    assert places("epoch", subject(loss, val), loss) == [0.5, 1.0, 1.5, 2.0]
    assert places("epoch", subject(loss, val), val) == [1.0, 2.0]


def test_an_unfinished_epoch_is_assumed_as_long_as_the_previous_one(values, subject):
    loss, whole = values("loss", [1.0] * 5, stride=5), values("loss", [1.0] * 2, "epoch", stride=10)
    assert places("epoch", subject(loss, whole), loss) == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_records_before_the_first_epoch_are_at_zero(values, subject):
    loss = values("loss", [1.0] * 3)
    loss.epochs[:] = type(loss.epochs)("q", [0, 0, 1])
    assert places("epoch", subject(loss), loss) == [0.0, 0.0, 1.0]


def test_the_time_axis_starts_at_the_first_record(values, subject):
    loss, val = values("loss", [1.0] * 3), values("val_loss", [1.0], "epoch", stride=3)
    assert places("time", subject(val, loss), loss) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("seconds", "unit"), [(100, "seconds"), (200, "minutes"), (20_000, "hours"), (300_000, "days")])
def test_the_time_unit_fits_the_longest_run(values, subject, seconds, unit):
    short, long = values("loss", [1.0] * 2), values("loss", [1.0] * 2, stride=seconds)
    assert time_unit([[short], [long]]) == unit
