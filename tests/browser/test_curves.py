"""The page's curves in a real browser: selection, zoom, scales, links, and downloads."""

from __future__ import annotations

import csv

import pytest

pytestmark = pytest.mark.slow  # tests/board tests the server without a browser

LOSS = ".chart[data-metric='loss']"


def drag(page, begin, end, keys=()):
    """Drag across the first chart, from one fraction of its width to another."""
    box = page.locator(f"{LOSS} .u-over").bounding_box()
    for key in keys:
        page.keyboard.down(key)
    page.mouse.move(box["x"] + box["width"] * begin, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (begin + end) / 2, box["y"] + 50)
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + 50)
    page.mouse.up()
    for key in keys:
        page.keyboard.up(key)


def zoom_of(page):
    """Return the zoom range in the link."""
    hash_ = page.evaluate("location.hash")
    found = [part.removeprefix("zoom=") for part in hash_.lstrip("#").split("&") if part.startswith("zoom=")]
    return [float(one) for one in found[0].replace("%7E", "~").split("~")] if found else None


def test_the_five_newest_runs_are_shown_by_default(page, serve, opened, row, write_run):
    for number in range(7):
        lines = [row(step, loss=9.0 if step == 333 else 0.5, val_loss=0.25) for step in range(3_000)]
        write_run(f"run-{number}", lines, name=f"run-{number}", started=f"2026-11-0{number + 1}T00:00:00+00:00", step=3_000)
    opened(page, serve())
    page.wait_for_selector(f"{LOSS}[data-exact='true'][data-lines='5'][data-high='9']")
    assert page.locator("#runs tr[data-key]").count() == 7
    assert page.locator("#runs button[aria-pressed='true']").count() == 5
    assert page.locator("#name").text_content().strip() == "run-6"
    page.locator("#runs tr", has_text="run-0").click()
    page.wait_for_selector("#name:has-text('run-0')")
    page.wait_for_selector(f"{LOSS}[data-lines='6']")
    page.fill("#find-metric", "val")
    page.wait_for_selector(".chart[data-metric='val_loss']")
    assert page.locator(".chart").count() == 1
    page.fill("#find-run", "run-3")
    page.wait_for_selector("#runs tr[data-key] >> nth=0")
    assert page.locator("#runs tr[data-key]").count() == 1
    assert page.problems == []


def test_a_drag_zooms_and_a_double_click_resets_the_zoom(page, serve, opened, row, write_run):
    write_run("mine", [row(step, loss=9.0 if step == 10_000 else 0.5, other=1.0) for step in range(20_000)])
    opened(page, serve())
    page.wait_for_selector(f"{LOSS}[data-exact='true'][data-high='9']")
    drag(page, 0.7, 0.8)
    page.wait_for_selector(f"{LOSS}[data-high='0.5'][data-exact='true']")
    low, high = zoom_of(page)
    assert 13_000 < low < 15_000 < high < 17_000
    page.locator(f"{LOSS} .u-over").dblclick()
    page.wait_for_selector(f"{LOSS}[data-high='9'][data-exact='true']")
    assert zoom_of(page) is None
    drag(page, 0.45, 0.55)
    page.wait_for_selector(f"{LOSS}[data-high='9'][data-exact='true']")
    before = zoom_of(page)
    drag(page, 0.8, 0.3, keys=["Shift"])  # pans
    page.wait_for_selector("#reset-zoom:enabled")
    page.wait_for_selector(f"{LOSS}[data-exact='true']")
    page.wait_for_timeout(300)
    after = zoom_of(page)
    assert after[0] > before[0]
    assert after[1] - after[0] == pytest.approx(before[1] - before[0], rel=1e-6)
    assert page.problems == []


def test_five_runs_are_compared(page, serve, opened, row, write_run):
    for number in range(5):
        best = {"loss": {"value": 0.5 - number / 10, "step": 9, "mode": "min"}}
        config = {"depth": number, "width": 64, "lr": 0.1}
        write_run(
            f"run-{number}",
            [row(step, loss=1.0) for step in range(10)],
            name=f"run-{number}",
            step=10,
            best=best,
            config=config,
        )
    opened(page, serve())
    page.locator("#compare").click()
    page.wait_for_selector("#differences tr[data-setting='depth']")
    cells = page.locator("#differences tbody tr").first.locator("td").all_text_contents()
    assert [cell.removesuffix(" at step 9") for cell in cells] == ["★ 0.1", "0.2", "0.3", "0.4", "0.5"]
    assert page.locator("#differences tr[data-setting='depth'] td").all_text_contents() == ["4", "3", "2", "1", "0"]
    assert page.locator("#differences tr[data-setting]").count() == 1  # the other settings are equal
    assert page.locator("#runs tr:has(.star)").get_attribute("data-key") is not None
    assert "run-4" in page.locator("#runs tr:has(.star)").text_content()
    page.locator("#columns").click()
    page.select_option("#group", "depth")
    page.wait_for_selector("#runs tr.group")
    assert page.locator("#runs tr.group").count() == 5
    page.locator(".columns label", has_text="width").locator("input").check()
    page.wait_for_selector("#runs td.setting:has-text('64')")
    assert page.problems == []


def test_a_link_restores_the_view(page, serve, opened, row, write_run):
    for number in range(3):
        lines = [row(step, loss=1.0, rate=2.0) for step in range(1_000)]
        write_run(f"run-{number}", lines, name=f"run-{number}", step=1_000, started=f"2026-11-0{number + 1}T00:00:00+00:00")
    url = serve()
    opened(page, url)
    page.wait_for_selector(f"{LOSS}[data-exact='true']")
    page.locator("#runs tr", has_text="run-2").locator(".dot").click()
    page.locator("#runs tr", has_text="run-0").click()
    page.locator("#log-scale").check()
    page.locator("#smoothing").fill("0.8")
    page.locator("label:has-text('Time')").click()
    page.locator(".chart[data-metric='rate'] button:has-text('Pin')").click()
    page.locator("[data-tab='settings']").click()
    drag(page, 0.2, 0.6)
    page.wait_for_selector("#reset-zoom:enabled")
    page.wait_for_timeout(100)
    link, zoom = page.evaluate("location.href"), zoom_of(page)
    assert "token" not in link
    other = page.context.new_page()
    other.goto(link)
    other.wait_for_selector("body[data-ready='1']")
    other.wait_for_selector(".chart-section[aria-label='Pinned'] .chart[data-metric='rate'][data-lines='2']")
    assert other.locator("#name").text_content().strip() == "run-0"
    assert other.locator("#log-scale").is_checked()
    assert other.locator("#smoothing").input_value() == "0.8"
    assert other.locator("input[name='axis'][value='time']").is_checked()
    assert other.locator("[data-tab='settings']").get_attribute("aria-selected") == "true"
    assert zoom_of(other) == pytest.approx(zoom)
    assert page.problems == []


def test_values_and_events_under_the_pointer_are_shown(page, serve, opened, row, write_run):
    lines = [row(step, loss=step / 1000, epoch=1 + step // 100) for step in range(1_000)]
    event = {"step": 500, "iteration": 500, "epoch": 6, "time": 1.79e9 + 500, "event": "stop", "reason": "lunch"}
    saves = [{**event, "step": step, "event": "save", "path": "x", "tags": []} for step in (499, 501)]
    write_run("mine", lines, [saves[0], event, saves[1]], name="mine", step=1_000)
    opened(page, serve())
    page.wait_for_selector(f"{LOSS}[data-exact='true']")
    box = page.locator(f"{LOSS} .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    tip = page.locator(f"{LOSS} .tip:not([hidden])")
    assert tip.locator(".tip-head").text_content().startswith("loss")
    assert tip.locator(".tip-mark").all_text_contents() == [
        "Events of mine",
        "step 500: stop requested: lunch",
        "2 saves, steps 499 to 501",
    ]
    assert "0.5" in tip.text_content() or "0.49" in tip.text_content()
    page.locator("label:has-text('Epoch')").click()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    page.wait_for_selector(f"{LOSS} .tip:has-text('epoch')")
    page.locator(f"{LOSS} .plot").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"{LOSS} .sr:has-text('mine')", state="attached")
    assert page.problems == []


def test_a_chart_can_be_saved_as_png_and_csv(page, serve, opened, row, write_run, tmp_path):
    for name in ("one", "two"):
        write_run(name, [row(step, loss=1.0 + step) for step in range(100)], name=name, step=100)
    opened(page, serve())
    page.wait_for_selector(f"{LOSS}[data-exact='true'][data-lines='2']")
    with page.expect_download() as waiting:
        page.locator(f"{LOSS} button:has-text('PNG')").click()
    assert waiting.value.suggested_filename == "loss.png"
    waiting.value.save_as(tmp_path / "loss.png")
    content = (tmp_path / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") > 1_200  # the width is enough for a document
    with page.expect_download() as waiting:
        page.locator(f"{LOSS} button:has-text('CSV')").click()
    waiting.value.save_as(tmp_path / "loss.csv")
    rows = list(csv.reader((tmp_path / "loss.csv").read_text().splitlines()))
    assert rows[0] == ["run", "step", "epoch", "time", "value"]
    assert len(rows) == 201
    assert {one[0] for one in rows[1:]} == {"one", "two"}
    assert page.problems == []


def test_new_values_and_new_runs_appear(page, serve, opened, row, write_run, training):
    with training() as process:
        opened(page, serve())
        page.wait_for_selector("#runs td.running")
        page.wait_for_selector(f"{LOSS}[data-exact='true']")
        before = page.locator("#state").text_content()
        page.wait_for_selector("#state:has-text('running')")
        page.locator("#state").filter(has_not_text=before).wait_for(timeout=30_000)
        write_run("later", [row(1, loss=1.0)])
        page.wait_for_selector("#runs tr:has-text('later')", timeout=30_000)
        process.kill()
        process.wait()
        page.wait_for_selector("#runs td.killed", timeout=30_000)
    assert page.problems == []


def test_only_visible_charts_are_drawn(page, serve, opened, row, write_run):
    values = {f"metric-{number:02}": float(number) for number in range(50)}
    write_run("mine", [row(step, **values) for step in range(20)], name="mine", step=20)
    opened(page, serve())
    page.wait_for_selector(".chart[data-metric='metric-00'] canvas")
    assert page.locator(".chart").count() == 50
    assert page.locator(".chart canvas").count() < 20
    page.locator(".chart[data-metric='metric-49']").scroll_into_view_if_needed()
    page.wait_for_selector(".chart[data-metric='metric-49'] canvas")
    page.wait_for_selector(".chart[data-metric='metric-00']:not(:has(canvas))", state="attached")
    assert page.problems == []


def test_smoothing_keeps_raw_values_and_does_not_smooth_settings(page, serve, opened, row, write_run):
    """The tooltip shows the smoothed and the raw value; a setting has no smoothed value."""
    lines = [row(step, loss=float(step % 2), learning_rate=float(step % 2)) for step in range(100)]
    write_run("mine", lines, name="mine", step=100, config={"depth": 1})
    opened(page, serve(), "smooth=0.9")
    page.wait_for_selector(f"{LOSS}[data-exact='true']")
    page.locator(f"{LOSS} .u-over").hover()
    assert "raw" in page.locator(f"{LOSS} .tip").text_content()
    page.locator(".chart[data-metric='learning_rate'] .u-over").hover()
    assert "raw" not in page.locator(".chart[data-metric='learning_rate'] .tip").text_content()
    assert page.problems == []


def test_runs_with_another_metric_do_not_change_the_order(page, serve, opened, row, write_run):
    values = {"a": ("val_loss", 0.3, "min"), "b": ("val_loss", 0.1, "min"), "c": ("val_loss", 0.2, "min")}
    for name, (metric, value, mode) in {**values, "d": ("accuracy", 0.9, "max")}.items():
        best = {metric: {"value": value, "step": 1, "mode": mode}}
        write_run(name, [row(1, **{metric: value})], name=name, step=1, best=best, config={"name": name})
    opened(page, serve())
    page.locator("#compare").click()
    page.wait_for_selector("#differences tr[data-setting='name']")
    cells = page.locator("#differences tbody tr").first.locator("td").all_text_contents()
    assert [cell.strip() for cell in cells] == [
        "★ val_loss 0.1 at step 1",
        "val_loss 0.2 at step 1",
        "val_loss 0.3 at step 1",
        "accuracy 0.9 at step 1",
    ]
    assert "b" in page.locator("#runs tr:has(.star) .name").text_content()
    assert page.problems == []


def test_a_metric_named_like_a_config_key_is_not_a_setting(page, serve, opened, row, write_run):
    lines = [row(step, loss=float(step % 2), temperature=float(step % 2)) for step in range(100)]
    facts = {"config": {"loss": "mse"}, "hyper": {"temperature": 1.0}}
    write_run("mine", lines, name="mine", step=100, **facts)
    opened(page, serve(), "smooth=0.9")
    page.wait_for_selector(f".chart-section[aria-label='Loss and validation'] {LOSS}[data-exact='true']")
    page.wait_for_selector(".chart-section[aria-label='Settings'] .chart[data-metric='temperature']")
    page.locator(f"{LOSS} .u-over").hover()
    assert "raw" in page.locator(f"{LOSS} .tip").text_content()
    page.locator(".chart[data-metric='temperature'] .u-over").hover()
    assert "raw" not in page.locator(".chart[data-metric='temperature'] .tip").text_content()
    assert page.problems == []


def visible_tips(page):
    """Return the texts of the visible tooltips, by metric."""
    charts = page.locator(".chart:has(.tip:not([hidden]))").all()
    return {chart.get_attribute("data-metric"): chart.locator(".tip").text_content() for chart in charts}


def test_the_tooltip_stays_at_its_chart_and_step_while_values_arrive(page, serve, opened, training):
    with training():
        opened(page, serve())
        page.wait_for_selector(".chart[data-metric='rate'] canvas")
        page.locator(".chart[data-metric='rate'] .u-over").hover()
        where = page.locator(".chart[data-metric='rate'] .tip-where").text_content()
        for _ in range(8):
            page.wait_for_timeout(500)
            tips = visible_tips(page)
            assert list(tips) == ["rate"]
            assert tips["rate"].startswith(f"rate{where}live0.5")
        page.mouse.move(5, 5)
        assert visible_tips(page) == {}
    assert page.problems == []


def test_the_tooltip_stays_at_its_chart_after_a_zoom(page, serve, opened, row, write_run):
    write_run("mine", [row(step, loss=0.5, other=2.0) for step in range(1_000)], name="mine", step=1_000)
    opened(page, serve())
    page.wait_for_selector(f"{LOSS}[data-exact='true']")
    drag(page, 0.3, 0.6)
    page.wait_for_selector("#reset-zoom:enabled")
    page.wait_for_timeout(500)
    assert set(visible_tips(page)) <= {"loss"}
    page.locator("#reset-zoom").click()
    page.wait_for_selector("#reset-zoom:disabled")
    assert visible_tips(page) == {}
    assert page.problems == []


@pytest.fixture
def ranked_runs(row, write_run):
    """Return `ranked_runs(count)`: write runs, of which the oldest is the best."""

    def write(count):
        for number in range(count):
            best = {"val_loss": {"value": 0.1 + number / 10, "step": 40, "mode": "min"}}
            lines = [row(step, loss=1.0, learning_rate=0.3 if number == 0 and step > 50 else 0.1) for step in range(100)]
            facts = {"best": best, "metrics": {"val_loss": 0.9 if number == 0 else 0.11 + number / 10}}
            facts |= {"config": {"learning_rate": 0.1, "depth": number}, "hyper": {"lr": 0.1, "layers": number}}
            started = f"2026-11-{number + 1:02}T00:00:00+00:00"
            write_run(f"run-{number}", lines, name=f"run-{number}", step=100, epoch=1, started=started, **facts)

    return write


def test_six_runs_are_all_shown(page, serve, opened, ranked_runs):
    ranked_runs(6)
    opened(page, serve())
    page.wait_for_selector(f"{LOSS}[data-lines='6']")


def test_the_star_marks_the_best_of_all_runs(page, serve, opened, ranked_runs):
    ranked_runs(7)
    opened(page, serve())
    page.wait_for_selector(f"{LOSS}[data-lines='5']")
    assert "run-0" in page.locator("#runs tr:has(.star)").text_content()
    assert page.locator("#runs tr:has(.worse)").count() == 1  # its last value is far worse than its best
    assert "far worse" in page.locator("#runs tr", has_text="run-0").locator(".worse").get_attribute("title")
    assert page.locator("button.sort", has_text="Best").text_content() == "Bestval_loss"
    page.locator("#compare").click()
    page.wait_for_selector("#not-shown:has-text('2 runs not shown, among them the best, run-0')")
    assert page.locator("#differences .best").count() == 0
    page.locator("#not-shown button").click()
    page.wait_for_selector("#differences .best:has-text('★ 0.1 at step 40')")
    assert page.locator("#not-shown").text_content().strip() == "1 run not shown."
    # Settings with the same values share a row, and a changed setting is labeled.
    page.wait_for_selector("#differences tr[data-setting='learning_rate'] td:has-text('changed: 0.1 to 0.3')")
    names = page.locator("#differences tr[data-setting] th").all_text_contents()
    assert names == ["learning_rate, lr", "depth, layers"]
    focused = page.locator("#name").text_content()
    page.locator("button:text-is('Best 5')").click()
    page.wait_for_selector(f"{LOSS}[data-lines='5']")
    assert page.locator("#name").text_content() == focused
    assert page.problems == []


def colours_of(page):
    """Return the colours of the shown runs."""
    rows = page.locator("#runs tr:has(.dot[aria-pressed='true'])").all()
    return {row.locator("button.name").text_content(): row.locator(".dot").get_attribute("class") for row in rows}


def test_a_run_keeps_its_colour(page, serve, opened, ranked_runs):
    ranked_runs(7)
    url = serve()
    opened(page, url)
    page.wait_for_selector(f"{LOSS}[data-lines='5']")
    before = colours_of(page)
    assert len(set(before.values())) == 5
    page.locator("button:text-is('None')").click()
    for name in ("run-0", "run-5", "run-3", "run-6"):
        page.locator("#runs tr", has_text=name).locator(".dot").click()
    page.wait_for_selector("#runs tr:has-text('run-6') .dot[aria-pressed='true']")
    after = colours_of(page)
    assert after.keys() == {"run-0", "run-5", "run-3", "run-6"}
    assert all(after[name] == before[name] for name in ("run-3", "run-5", "run-6"))
    other = page.context.new_page()
    other.goto(page.evaluate("location.href"))
    other.wait_for_selector("body[data-ready='1']")
    other.wait_for_selector(f"{LOSS}[data-lines='4']")
    assert colours_of(other) == after
    assert page.problems == []
