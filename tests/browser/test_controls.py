"""The page's controls work in a real browser: every command is answered and takes effect in the run."""

from __future__ import annotations

import json

import pytest

import hookpoint

pytestmark = pytest.mark.slow  # tests/board tests the server without a browser


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
        page.wait_for_timeout(1_500)  # the details are reloaded in this time
        assert knob.input_value() == "0.125"
        for what in ("pause", "resume", "save", "trace"):
            press(page, what)
        page.locator("button[data-do='validate']").click()
        page.wait_for_selector("#answer.refused:has-text('Validate: refused')", timeout=30_000)
        knob.fill("text")
        knob.press("Enter")
        page.wait_for_selector("#answer.error:has-text('expected a number')")
        page.wait_for_selector("#requests li.applied:has-text('learning_rate 0.5 -> 0.125')")
        page.wait_for_selector("#requests li:nth-child(6)")
        texts = page.locator("#requests li").all_text_contents()
        assert len(texts) == len(set(texts)) == 6, texts  # received as an answer and as a message, but listed once
        assert "@" in page.locator("#requests li").first.text_content()  # the sender
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
        other.wait_for_selector("#state .paused", timeout=30_000)
    assert page.problems == []


def test_a_paused_run_is_labeled_and_no_button_moves(page, serve, opened, training):
    with training():
        opened(page, serve())
        stop = page.locator("button[data-do='stop']")
        place = stop.bounding_box()
        press(page, "pause")
        page.wait_for_selector("#runs td.status.paused", timeout=30_000)
        page.wait_for_selector("#state .status.paused")
        assert stop.bounding_box() == place
        page.fill("#find-run", "paused")
        page.wait_for_selector("#runs tr:has-text('live')")
        time = page.locator("#runs td.number").last.text_content()
        page.wait_for_timeout(2_500)
        assert page.locator("#runs td.number").last.text_content() == time
        press(page, "resume")
        page.wait_for_selector("#state .status.running", timeout=30_000)
        assert stop.bounding_box() == place
    assert page.problems == []


def test_events_of_a_hidden_run_appear_when_it_is_shown(page, serve, opened, row, write_run, tmp_path, training):
    write_run("other", [row(1, loss=1.0)], name="other", step=1)
    with training():
        opened(page, serve(), "tab=events")
        page.locator("button.name", has_text="live").click()
        page.wait_for_selector("#name:has-text('live')")
        page.wait_for_selector(".tab-panel :is(#events, .hint)")
        page.locator("button.name", has_text="other").click()
        page.locator("#runs tr", has_text="live").locator(".dot").click()
        page.wait_for_selector("#count:has-text('1 shown')")
        hookpoint.control(tmp_path / "runs" / "live").set({"learning_rate": 0.25})
        page.wait_for_timeout(1_500)
        page.locator("button.name", has_text="live").click()
        page.wait_for_selector("#events li:has-text('0.5 -> 0.25')", timeout=30_000)
        assert page.locator("#events li:has-text('0.5 -> 0.25')").count() == 1
    assert page.problems == []


def test_a_setting_that_a_schedule_changes_can_be_set(page, serve, opened, events_of, training):
    with training("live", "decay"):
        opened(page, serve())
        page.wait_for_selector(
            ".knob:has([data-knob='learning_rate']) small:has-text('at step')", timeout=30_000
        )  # the current value
        knob = page.locator("[data-knob='learning_rate']")
        knob.fill("0.125")
        knob.press("Enter")
        page.wait_for_selector("#answer.applied:has-text('Set learning_rate to 0.125: applied at step')", timeout=30_000)
        assert "-> 0.125" in page.locator("#answer").text_content()
        knob.fill("0.0625")  # immediately: reloading after an answer must not replace the user's input
        knob.press("Enter")
        page.wait_for_selector("#answer.applied:has-text('Set learning_rate to 0.0625: applied at step')", timeout=30_000)
    assert [event["status"] for event in events_of("live") if event["event"] == "control"] == ["applied", "applied"]
    assert page.problems == []


def test_a_setting_changed_by_another_user_needs_confirmation(page, serve, opened, events_of, tmp_path, training):
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
def test_the_stop_dialog_says_whether_a_checkpoint_is_saved(page, serve, opened, tmp_path, training, options, text):
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
        for _ in range(7):  # a browser opens six connections per server: waiting requests must not use them all
            page.locator("button[data-do='trace']:enabled").click()
        page.wait_for_selector("#answer.waiting")
        press(page, "resume")
        page.wait_for_selector("#requests li.applied:has-text('trace')", timeout=30_000)
    assert page.problems == []
