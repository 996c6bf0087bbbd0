"""Charts draw scales, new values, and files that were truncated while the tab was hidden."""

from __future__ import annotations

import json
import os

import pytest

pytestmark = pytest.mark.slow  # needs a browser

LOSS = ".chart[data-metric='loss']"
# The height of the line in the middle of a chart, from 0 (bottom) to 1 (top). Only lines have colours, the rest is grey.
HEIGHT = """(selector) => {
    const canvas = document.querySelector(`${selector} canvas`), over = document.querySelector(`${selector} .u-over`);
    const [outer, inner] = [canvas.getBoundingClientRect(), over.getBoundingClientRect()];
    const [across, down] = [canvas.width / outer.width, canvas.height / outer.height];
    const x = Math.round((inner.left - outer.left + inner.width / 2) * across);
    const [top, height] = [Math.round((inner.top - outer.top) * down), Math.round(inner.height * down)];
    const { data } = canvas.getContext("2d").getImageData(x, top, 1, height);
    let best = -1, most = 60;
    for (let y = 0; y < height; y++) {
        const [r, g, b, a] = data.slice(4 * y, 4 * y + 4);
        const colour = (Math.max(r, g, b) - Math.min(r, g, b)) * (a / 255);
        if (colour > most) [best, most] = [y, colour];
    }
    return best < 0 ? -1 : 1 - best / height;
}"""


def until(page, is_true):
    """Poll until a condition is true. The page's content security policy forbids wait_for_function."""
    for _ in range(300):
        if is_true():
            return
        page.wait_for_timeout(100)
    raise AssertionError("it did not happen")


def test_a_log_scale_changes_the_heights(page, serve, opened, row, write_run):
    """From 1 to 1,000, the middle of an exponential curve is at 32: low on a linear scale, and halfway up on a log scale."""
    write_run("mine", [row(step, loss=10 ** (3 * step / 1000)) for step in range(1001)], name="mine", step=1000)
    opened(page, serve())
    page.wait_for_selector(f"{LOSS}[data-exact='true'] canvas")
    until(page, lambda: 0.0 < page.evaluate(HEIGHT, LOSS) < 0.15)
    page.locator("#log-scale").check()
    until(page, lambda: 0.4 < page.evaluate(HEIGHT, LOSS) < 0.6)
    page.locator("#log-scale").uncheck()
    until(page, lambda: 0.0 < page.evaluate(HEIGHT, LOSS) < 0.15)


def test_the_curve_of_a_run_in_progress_grows(page, serve, opened, training):
    with training():
        opened(page, serve())
        chart = page.locator(".chart[data-metric='count']")
        chart.scroll_into_view_if_needed()
        page.wait_for_selector(".chart[data-metric='count'] canvas")
        for _ in range(3):
            before = float(chart.get_attribute("data-high"))
            until(page, lambda before=before: float(chart.get_attribute("data-high")) > before)


def test_a_zoom_shows_new_values_after_a_truncation_in_a_hidden_tab(page, serve, opened, row, write_run):
    """The stream is closed while a tab is hidden, so the page notices the truncation only later."""
    folder = write_run("mine", [row(step, loss=1.0) for step in range(2_000)])
    opened(page, serve(), "zoom=900~1100")
    page.wait_for_selector(f"{LOSS}[data-exact='true'][data-high='1']")
    hide = "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    hide += "document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    path = folder / "scalars.jsonl"
    os.truncate(path, path.read_bytes().index(b'{"step": 500,'))
    with path.open("a") as file:
        file.write("".join(row(step, loss=7.0) for step in range(500, 4_000)))
    page.evaluate(hide, False)
    page.wait_for_selector(f"{LOSS}[data-exact='true'][data-high='7']", timeout=30_000)


def test_the_epoch_axis_says_if_epochs_are_unknown(page, serve, opened, write_run):
    lines = [{"step": step, "epoch": 0, "time": 1.79e9 + step, "at": "step", "loss": 1.0} for step in range(10)]
    write_run("mine", [json.dumps(line) + "\n" for line in lines])
    opened(page, serve(), "x=epoch")
    page.wait_for_selector(f"{LOSS} .badge:has-text('epochs are unknown: steps')")


def test_a_laptop_shows_all_three_panels(page, serve, opened, row, write_run):
    for number in range(3):
        lines = [row(step, loss=1.0, val_loss=2.0, learning_rate=0.1) for step in range(100)]
        best = {"val_loss": {"value": 2.0, "step": 9, "mode": "min"}}
        write_run(f"a-run-with-a-rather-long-name-{number}", lines, name=f"long-{number}", step=100, best=best, config={"a": 1})
    page.set_viewport_size({"width": 1280, "height": 800})
    opened(page, serve())
    page.wait_for_selector(f"{LOSS}[data-exact='true']")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    for selector in ("#runs", f"{LOSS} canvas", "#name", "#log-scale", "#compare", "[data-tab='media']"):
        box = page.locator(selector).first.bounding_box()
        assert box["x"] >= 0, selector
        assert box["x"] + box["width"] <= 1280, selector
    assert page.locator(f"{LOSS} .u-over").bounding_box()["width"] >= 160
