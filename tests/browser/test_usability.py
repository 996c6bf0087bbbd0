"""Accessibility, keyboard, phones, many runs, and hints when something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # needs a browser

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
RULES = "async () => (await axe.run()).violations.map((one) => [one.impact, one.id, one.nodes.map((node) => node.html)])"
SERIOUS = ("serious", "critical")
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def some_runs(row, write_run):
    for number in range(3):
        lines = [row(step, loss=1.0 + number, learning_rate=0.1, **{"Host memory (GB)": 3.0}) for step in range(100)]
        event = {"step": 50, "iteration": 50, "epoch": 1, "time": 1.79e9, "event": "stop", "reason": "lunch"}
        best = {"loss": {"value": 1.0 + number, "step": 9, "mode": "min"}}
        schedule = [{"callback": "Saver", "point": "on_epoch_end", "when": "always"}]
        costs = [{"callback": "Saver", "point": "on_epoch_end", "calls": 1, "seconds": 0.5}]
        facts = {"best": best, "config": {"depth": number}, "callbacks": ["Saver"], "schedule": schedule, "costs": costs}
        write_run(f"run-{number}", lines, [event], name=f"run-{number}", step=100, **facts)


def serious(page):
    """Return the serious issues that axe-core finds."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: make page")
    page.evaluate(AXE.read_text())
    return [issue for issue in page.evaluate(RULES) if issue[0] in SERIOUS]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_issues(page, serve, opened, some_runs, theme):
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    opened(page, serve())
    page.wait_for_selector(".chart[data-metric='loss'][data-exact='true']")
    assert page.locator("html").get_attribute("data-theme") == theme
    page.locator("#compare").click()
    page.locator("#columns").click()
    page.wait_for_selector("#differences tr[data-setting]")
    for tab in ("controls", "events", "checkpoints", "callbacks", "settings", "system", "media"):
        page.locator(f"[data-tab='{tab}']").click()
        assert serious(page) == [], tab
    page.locator("#help").click()
    page.wait_for_selector("dialog[open]")
    assert serious(page) == []
    page.keyboard.press("Escape")
    page.set_viewport_size(PHONE)
    for screen in ("Runs", "Curves", "Run"):
        page.locator(".screens button", has_text=screen).first.click()
        assert serious(page) == [], screen


def test_the_page_can_be_used_with_the_keyboard(page, serve, opened, some_runs):
    opened(page, serve())
    page.wait_for_selector(".chart[data-metric='loss'][data-exact='true']")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find-run"
    page.keyboard.type("run-1")
    page.wait_for_selector("#runs tr[data-key]:only-child")
    page.locator("#find-run").fill("")
    page.locator("button.name").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    second = page.locator("button.name").nth(1).text_content()
    page.wait_for_selector(f"#name:has-text('{second}')")
    page.locator("button.name").nth(1).focus()
    page.keyboard.press("Enter")  # a second Enter moves to the details
    page.wait_for_function("document.activeElement.dataset.tab === 'events'")  # a finished run accepts no commands
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#controls-reason")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#events li")
    page.locator(".chart[data-metric='loss'] .plot").focus()
    page.keyboard.press("+")
    page.wait_for_selector("#reset-zoom:enabled")
    page.keyboard.press("0")
    page.wait_for_selector("#reset-zoom:disabled")
    for key, selector in (("r", "button.name"), ("d", "[role=tab]"), ("c", ".plot")):
        page.keyboard.press(key)
        page.wait_for_function(f"document.activeElement.matches('{selector}')")
    assert page.problems == []


def test_a_phone_shows_one_view_at_a_time(page, serve, opened, some_runs):
    page.set_viewport_size(PHONE)
    opened(page, serve())
    page.wait_for_selector(".chart canvas")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.locator(".screens button", has_text="Runs").click()
    assert not page.locator(".curves-panel").is_visible()
    page.locator("button.name", has_text="run-1").click()
    page.wait_for_selector(".run-panel #name:has-text('run-1')")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.problems == []


def test_the_tooltip_is_above_the_bar_on_a_phone(phone, serve, opened, some_runs):
    page = opened(phone, serve())
    page.wait_for_selector(".chart[data-metric='loss'][data-exact='true']")
    page.locator(".chart[data-metric='loss'] .u-over").tap()
    tip = page.locator(".chart[data-metric='loss'] .tip:not([hidden])").bounding_box()
    bar = page.locator(".screens").bounding_box()
    chart = page.locator(".chart[data-metric='loss']").bounding_box()
    assert chart["y"] + chart["height"] <= tip["y"]
    assert tip["y"] + tip["height"] <= bar["y"] + 1
    assert page.locator(".legend li").count() == 3
    page.locator(".screens button", has_text="Runs").click()
    assert page.locator("button.sort", has_text="Last").is_visible()
    assert page.problems == []


def test_charts_do_not_move_when_a_notice_appears_or_the_zoom_changes(page, serve, opened, some_runs):
    opened(page, serve())
    page.wait_for_selector(".chart[data-metric='loss'][data-exact='true']")
    place = page.locator(".chart[data-metric='loss']").bounding_box()
    page.locator("#copy-link").click()
    page.wait_for_selector(".notice")
    page.locator(".chart[data-metric='loss'] .plot").focus()
    page.keyboard.press("+")
    page.wait_for_selector("#reset-zoom:enabled")
    assert page.locator(".chart[data-metric='loss']").bounding_box() == place
    assert serious(page) == []
    page.locator("button[aria-label='Enlarge loss']").click()
    page.wait_for_selector(".chart.large")
    assert page.locator(".chart[data-metric='loss']").bounding_box()["height"] > place["height"] + 100
    assert page.problems == []


def test_callbacks_show_their_share_of_the_run_and_keep_their_order(page, serve, opened, row, write_run):
    costs = [
        {"callback": "Saver", "point": "on_epoch_end", "calls": 1, "seconds": 0.5, "estimated_seconds": 0.5},
        {"callback": "Norms", "point": "on_step_begin", "calls": 2, "seconds": 0.02, "estimated_seconds": 1.28},
    ]
    for name in ("one", "two"):
        facts = {"callbacks": ["Saver", "Norms"], "costs": costs, "elapsed_seconds": 4.0, "step": 2}
        write_run(name, [row(1, loss=1.0), row(2, loss=1.0)], name=name, **facts)
    opened(page, serve(), "tab=callbacks")
    page.wait_for_selector("#callbacks")
    assert page.locator(".callback-head .number").all_text_contents() == [
        "500 ms, 13 % of the run",
        "1.28 s (est.), 32 % of the run",
    ]
    page.locator("label:has-text('By cost')").click()
    page.locator("button.name[aria-current='false']").click()
    page.wait_for_selector("#callbacks")
    assert page.locator(".callback-head b").all_text_contents() == ["Norms", "Saver"]
    assert page.problems == []


def test_an_empty_folder_shows_how_to_start_and_new_runs_appear(page, serve, opened, row, write_run):
    opened(page, serve())
    page.wait_for_selector("h1:has-text('No runs yet')")
    assert "hookpoint demo" in page.locator("main").text_content()
    assert serious(page) == []
    write_run("first", [row(1, loss=1.0), row(2, loss=0.5)])
    page.wait_for_selector("#runs tr:has-text('first')", timeout=30_000)
    page.wait_for_selector(".chart[data-metric='loss'][data-exact='true']", timeout=30_000)
    assert page.problems == []


def test_a_table_of_a_thousand_runs_renders_only_visible_rows(page, serve, opened, row, write_run):
    for number in range(1_000):
        best = {"loss": {"value": 1.0 - number / 1_000, "step": 1, "mode": "min"}}
        write_run(
            f"run-{number:04}", [row(1, loss=1.0)], name=f"run-{number:04}", step=1, best=best, config={"depth": number % 3}
        )
    opened(page, serve())
    page.wait_for_selector("#count:has-text('1,000 runs')")
    assert page.locator("#runs tr").count() < 100
    page.locator("button.sort", has_text="Best").click()
    page.wait_for_selector("#runs tr[data-key]:first-child:has-text('run-0999')")
    page.locator(".table-scroller").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    page.wait_for_selector("#runs tr:has-text('run-0000')")
    page.fill("#find-run", "depth=2 run-05")
    page.wait_for_selector("#count")
    page.locator("#runs tr:has-text('run-0500')").wait_for()
    assert page.locator("#runs tr[data-key]").count() in range(30, 40)
    assert page.problems == []


def test_filters_without_a_match_are_explained(page, serve, opened, some_runs):
    opened(page, serve())
    page.wait_for_selector(".chart")
    page.fill("#find-metric", "nothing")
    page.wait_for_selector(".hint:has-text('No metric contains')")
    page.fill("#find-metric", "")
    page.fill("#find-run", "nothing")
    page.wait_for_selector(".hint:has-text('No run matches')")
    page.locator("button:text-is('None')").click()
    page.wait_for_selector(".hint:has-text('No run is selected')")
    assert json.dumps(page.problems) == "[]"
