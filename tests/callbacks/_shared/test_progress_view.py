from __future__ import annotations

from html.parser import HTMLParser

import pytest

from hookpoint.callbacks._shared.progress_view import View, as_html, as_line, as_text, clock

NUMBERS = (("loss", 0.123456), ("accuracy", 0.875))
HALFWAY = View("train", 50, 100, epoch=3, max_epochs=10, rate=12.5, values=NUMBERS)


def line(view, width=79, **options):
    return "".join(text for text, _ in as_line(view, width, **options))


@pytest.mark.parametrize(
    ("view", "label"),
    [
        (View("train", 0, None, epoch=3, max_epochs=10), "epoch 3/10"),
        (View("train", 0, None, epoch=3), "epoch 3"),
        (View("val", 0, None, epoch=3, max_epochs=10), "epoch 3/10 val"),
        (View("pred", 0, None), "pred"),
        (View("train", 0, None), "train"),
    ],
)
def test_the_label_contains_the_epoch_and_the_mode(view, label):
    assert view.label == label


@pytest.mark.parametrize(
    ("rate", "pace"),
    [
        (None, ""),
        (0.0, ""),
        (12345.6, "12346 it/s"),
        (123.4, "123 it/s"),
        (12.34, "12.3 it/s"),
        (1.0, "1.00 it/s"),
        (0.5, "2.00 s/it"),
        (0.04, "25.0 s/it"),
        (0.0001, "10000 s/it"),
    ],
)
def test_the_pace_is_batches_per_second_or_seconds_per_batch(rate, pace):
    assert View("train", 1, 2, rate=rate).pace == pace


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0:00"), (12, "0:12"), (754, "12:34"), (3723, "1:02:03"), (47 * 3600, "47:00:00"), (76 * 3600, "3d 4h")],
)
def test_durations_are_formatted_as_clock_times(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("done", "total", "rate", "left"), [(50, 100, 10, "0:05 left"), (100, 100, 10, ""), (5, None, 10, ""), (5, 10, None, "")]
)
def test_the_time_left_is_that_of_the_current_pass(done, total, rate, left):
    assert View("train", done, total, rate=rate).left == left


def test_a_wide_line_shows_everything():
    assert line(HALFWAY, 120) == (
        "epoch 3/10  " + "━" * 20 + "─" * 20 + "   50/100  12.5 it/s  0:04 left   loss 0.1235    accuracy 0.875   "
    )


def test_a_narrow_line_drops_the_least_important_parts_first():
    full = {"epoch 3/10", "50/100", "loss 0.1235", "12.5 it/s", "0:04 left", "accuracy 0.875"}
    for left_out, width in [(set(), 90), ({"accuracy 0.875"}, 79), ({"accuracy 0.875", "0:04 left"}, 60)]:
        shown = line(HALFWAY, width)
        assert {part for part in full if part in shown} == full - left_out


@pytest.mark.parametrize("width", range(1, 130))
def test_a_line_is_never_wider_than_the_terminal(width):
    long = View("val", 123456, 234567, 1234, 99999, 0.001, (("a very long name of a metric", -1.2345e-100), ("b", 1.0)))
    for view in (HALFWAY, long, View("train", 5, None, 1), View("pred", 0, 0)):
        assert 0 < len(line(view, width)) <= width


def test_the_bar_keeps_its_length_while_values_change():
    def length(**changes):
        shown = line(View("train", epoch=1, max_epochs=3, total=1000, **changes))
        return shown.count("━") + shown.count("╸") + shown.count("─")

    lengths = {
        length(done=done, rate=rate, values=(("loss", loss),))
        for done, rate, loss in [(1, 9.87, 1.0), (10, 98.7, 0.0123456), (999, 987.6, 123.4), (500, 0.5, -0.25)]
    }
    assert len(lengths) == 1


def test_the_bar_grows_in_half_steps():
    bars = [line(View("train", done, 16), 79)[7:47] for done in (0, 1, 8, 16)]
    assert bars == ["─" * 40, "━━╸" + "─" * 37, "━" * 20 + "─" * 20, "━" * 40]


def test_more_batches_than_expected_show_a_full_bar():
    assert "━" * 40 in line(View("train", 30, 20), 79)


def test_a_loader_of_unknown_length_shows_a_count_instead_of_a_bar():
    assert line(View("train", 7, None, epoch=1, rate=2.0)).rstrip() == "epoch 1  7 batches  2.00 it/s"


def test_terminals_without_unicode_get_ascii():
    assert line(HALFWAY, 60, ascii_only=True).isascii()


def test_control_characters_in_names_are_replaced():
    view = View("train", 1, 2, values=(("lo\x1b[2Jss\n", 1.0),))
    assert "lo?[2Jss? 1" in line(view)
    assert as_text(view).isprintable()


def test_plain_text_is_a_single_line():
    assert as_text(HALFWAY) == "epoch 3/10  50/100  (50%)  12.5 it/s  0:04 left  loss 0.1235  accuracy 0.875"


def test_plain_text_for_a_loader_of_unknown_length_shows_a_count():
    assert as_text(View("val", 7, None, epoch=2)) == "epoch 2 val  7 batches"


def test_nonfinite_values_are_shown():
    view = View("train", 1, 2, values=(("loss", float("nan")), ("norm", float("inf"))))
    assert as_text(view).endswith("loss nan  norm inf")


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.words = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words += data


def read(html):
    reader = Reader()
    reader.feed(html)
    return reader


def test_html_has_a_progress_element_and_the_same_text():
    page = read(as_html(HALFWAY))
    assert [tag for tag, _ in page.tags] == ["div", "progress"]
    assert page.tags[1][1] == {"value": "50", "max": "100"}
    assert page.words.split("  ") == [
        "epoch 3/10",
        "",
        "50/100",
        "12.5 it/s",
        "0:04 left",
        "loss 0.1235",
        "accuracy 0.875",
    ]


def test_html_has_no_bar_for_a_loader_of_unknown_length():
    assert [tag for tag, _ in read(as_html(View("train", 7, None, 1))).tags] == ["div"]


def test_names_are_escaped_in_html():
    page = read(as_html(View("train", 1, 2, values=(("<script>alert(1)</script>", 1.0),))))
    assert [tag for tag, _ in page.tags] == ["div", "progress"]
    assert "<script>alert(1)</script> 1" in page.words
