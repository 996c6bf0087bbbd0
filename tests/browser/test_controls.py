"""The page's controls in a real browser: every command is answered, and has an effect in the run."""

from __future__ import annotations

import json

import pytest

import hookpoint

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


def test_a_setting_that_a_schedule_changes_can_be_set(page, serve, opened, events_of, training):
    with training("live", "decay"):
        opened(page, serve())
        page.wait_for_selector(
            ".knob:has([data-knob='learning_rate']) small:has-text('at step')", timeout=30_000
        )  # its value now
        knob = page.locator("[data-knob='learning_rate']")
        knob.fill("0.125")
        knob.press("Enter")
        page.wait_for_selector("#answer.applied:has-text('Set learning_rate to 0.125: applied at step')", timeout=30_000)
        assert "-> 0.125" in page.locator("#answer").text_content()
        knob.fill("0.0625")  # at once: what is loaded after an answer does not replace what the user types
        knob.press("Enter")
        page.wait_for_selector("#answer.applied:has-text('Set learning_rate to 0.0625: applied at step')", timeout=30_000)
    assert [event["status"] for event in events_of("live") if event["event"] == "control"] == ["applied", "applied"]
    assert page.problems == []


def test_a_setting_that_somebody_else_has_set_meanwhile(page, serve, opened, events_of, tmp_path, training):
    with training("live", "decay"):
        opened(page, serve())
        knob = page.locator("[data-knob='learning_rate']")
        knob.fill("0.125")
        hookpoint.control(tmp_path / "runs" / "live").set({"learning_rate": 0.25})
        knob.press("Enter")
        page.wait_for_selector("#answer.error:has-text('not sent. Meanwhile, set learning_rate=0.25: applied')", timeout=30_000)
        assert knob.input_value() == "0.125"
        knob.press("Enter")
        page.wait_for_selector("#answer.applied:has-text('Set learning_rate to 0.125: applied at step')", timeout=30_000)
    rates = [event["now"]["learning_rate"] for event in events_of("live") if event["event"] == "control"]
    assert rates == [0.25, 0.125]
    assert page.problems == []


@pytest.mark.parametrize(
    ("options", "text"), [((), "The run saves a checkpoint and ends."), (("no-saver",), "The run ends, and nothing is saved")]
)
def test_a_stop_says_what_it_leaves(page, serve, opened, tmp_path, training, options, text):
    checkpoints = tmp_path / "runs" / "live" / "checkpoints"
    with training("live", *options) as process:
        opened(page, serve())
        page.locator("button[data-do='stop']:enabled").click()
        assert text in page.locator("#stop-about").text_content()
        page.locator("#stop-cancel").click()
        before = len(list(checkpoints.glob("step-*")))
        page.locator("button[data-do='stop']").click()
        page.locator("#stop-confirm").click()
        process.wait(60)
        after = len(list(checkpoints.glob("step-*")))
        assert (after > before) is (not options)
    assert page.problems == []


def test_a_command_to_a_paused_run_is_answered_when_it_resumes(page, serve, opened, training):
    with training():
        opened(page, serve())
        press(page, "pause")
        for _ in range(7):  # a browser opens six connections to a server: requests that wait must not use them up
            page.locator("button[data-do='trace']:enabled").click()
        page.wait_for_selector("#answer.waiting")
        press(page, "resume")
        page.wait_for_selector("#requests li.applied:has-text('trace')", timeout=30_000)
    assert page.problems == []
