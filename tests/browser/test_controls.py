"""The page's controls in a real browser: every command is answered, and has an effect in the run."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow  # tests/board has the server without a browser


def press(page, what):
    page.locator(f"button[data-do='{what}']:enabled").click(timeout=30_000)
    page.wait_for_selector(f"#answer.applied:has-text('{what.capitalize()}: applied')", timeout=30_000)


def test_commands_are_answered_and_visible_in_the_run(page, serve, opened, events_of, tmp_path, training):
    folder = tmp_path / "runs" / "live"
    with training() as process:
        opened(page, serve())
        knob = page.locator("[data-knob='learning_rate']")
        knob.fill("0.125")
        knob.press("Enter")
        page.wait_for_selector("#answer.applied:has-text('Set learning_rate to 0.125: applied at step')", timeout=30_000)
        assert "0.5 -> 0.125" in page.locator("#answer").text_content()
        for what in ("pause", "resume", "save", "trace"):
            press(page, what)
        page.locator("button[data-do='validate']").click()
        page.wait_for_selector("#answer.refused:has-text('Validate: refused')", timeout=30_000)
        knob.fill("text")
        knob.press("Enter")
        page.wait_for_selector("#answer.error:has-text('expected a number')")
        page.wait_for_selector("#requests li.applied:has-text('learning_rate 0.5 -> 0.125')")
        assert "@" in page.locator("#requests li").first.text_content()  # who asked
        page.locator("button[data-do='stop']").click()
        page.locator("#stop-cancel").click()
        assert process.poll() is None
        page.locator("button[data-do='stop']").click()
        page.fill("#stop-reason", "long enough")
        page.locator("#stop-confirm").click()
        page.wait_for_selector("#answer.applied:has-text('Stop: applied')", timeout=30_000)
        process.wait(60)
        page.wait_for_selector("#runs td.stopped", timeout=30_000)
        page.wait_for_selector("#controls-reason:has-text('not in progress: stopped')", timeout=30_000)
    text = (folder / "events.jsonl").read_text()
    for what in ("set", "pause", "resume", "save", "trace", "stop", "long enough"):
        assert f'"{what}' in text, events_of("live")
    rates = [json.loads(line).get("rate") for line in (folder / "scalars.jsonl").read_text().splitlines()]
    assert rates[0] == 0.5
    assert 0.125 in rates
    assert json.loads((folder / "run.json").read_text())["status"] == "stopped"
    assert page.problems == []


def test_two_pages_see_the_same_run(page, serve, opened, training):
    with training():
        url = serve()
        opened(page, url)
        other = page.context.new_page()
        other.goto(url.geturl())
        other.wait_for_selector("[data-knob='learning_rate']")
        knob = page.locator("[data-knob='learning_rate']")
        knob.fill("0.25")
        knob.press("Enter")
        page.wait_for_selector("#answer.applied", timeout=30_000)
        other.wait_for_selector("#requests li:has-text('0.5 -> 0.25')", timeout=30_000)
        page.locator("button[data-do='pause']").click()
        other.wait_for_selector("#paused", timeout=30_000)
    assert page.problems == []
