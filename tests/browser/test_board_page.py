"""The page in a real browser: curves, controls, and attacks from other pages."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # tests/board has the server without a browser


def row(step, at="step", **values):
    return json.dumps({"step": step, "iteration": step, "epoch": 1, "time": 1.79e9 + step, "at": at, **values}) + "\n"


def write(folder, lines, **facts):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scalars.jsonl").write_text("".join(lines))
    if facts:
        (folder / "run.json").write_text(json.dumps({"format": 1, "status": "finished", **facts}))
    return folder


def opened(page, url):
    page.goto(url.geturl())
    page.wait_for_selector("body[data-ready='1']")
    assert page.problems == []
    return page


def events(folder):
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_curves_of_the_newest_runs_are_there_at_once(page, serve, tmp_path):
    for number in range(7):
        name = f"run-{number}"
        lines = [row(step, loss=9.0 if step == 333 else 0.5, val_loss=0.25) for step in range(3_000)]
        write(tmp_path / "runs" / name, lines, name=name, started=f"2026-11-0{number + 1}T00:00:00+00:00", step=3_000)
    opened(page, serve())
    page.wait_for_selector(".chart[data-metric='loss'][data-exact='true']")
    assert page.locator("#runs tr").count() == 7
    assert page.locator("#runs button[aria-pressed='true']").count() == 5
    assert page.locator(".chart[data-metric='loss']").get_attribute("data-high") == "9"
    assert page.locator("#name").text_content() == "run-6"
    page.locator("#runs tr", has_text="run-0").click()
    page.wait_for_selector("#name:text('run-0')")
    page.fill("#find-metric", "val")
    assert page.locator(".chart").count() == 1
    page.fill("#find-run", "run-3")
    assert page.locator("#runs tr:visible").count() == 1
    assert page.problems == []


def test_a_drag_zooms_to_every_value_and_a_double_click_returns(page, serve, tmp_path):
    write(tmp_path / "runs" / "mine", [row(step, loss=9.0 if step == 10_000 else 0.5) for step in range(20_000)])
    opened(page, serve())
    chart = page.locator(".chart[data-metric='loss']")
    page.wait_for_selector(".chart[data-exact='true'][data-high='9']")
    box = chart.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 50)
    page.mouse.up()
    page.wait_for_selector(".chart[data-high='0.5'][data-exact='true']")
    chart.locator("canvas").dblclick()
    page.wait_for_selector(".chart[data-high='9'][data-exact='true']")
    assert page.problems == []


def test_names_are_text(page, serve, tmp_path):
    evil = '"><img src=x onerror="document.title=1"><script>document.title=2</script>'
    folder = write(
        tmp_path / "runs" / "<b>bold", [row(1, **{evil: 1.0}), row(2, **{evil: 2.0})], name=evil, config={evil: evil}
    )
    (folder / "events.jsonl").write_text(json.dumps({"step": 1, "epoch": 1, "time": 1.79e9, "event": evil, "x": evil}) + "\n")
    opened(page, serve())
    page.wait_for_selector(".chart")
    page.wait_for_selector("#events li")
    assert page.title() == "hookpoint board"
    assert page.locator("img, b, body script").count() == 0
    assert page.locator("#name").text_content() == evil
    assert evil in page.locator(".chart h3").first.text_content()
    assert evil in page.locator("#events li").first.text_content()
    assert evil in page.locator("#settings").text_content()
    assert page.locator("#runs td.name").first.text_content() == "<b>bold"
    assert page.problems == []


def test_new_values_and_new_runs_appear(page, serve, tmp_path, training):
    with training() as process:
        opened(page, serve())
        page.wait_for_selector("#runs td.running")
        before = int(page.locator("#runs td.number").first.text_content() or 0)
        page.locator(f"#runs td.number:not(:text-is('{before}'))").first.wait_for()
        write(tmp_path / "runs" / "later", [row(1, loss=1.0)])
        page.wait_for_selector("#runs tr:has-text('later')", timeout=30_000)
        process.kill()
        process.wait()
        page.wait_for_selector("#runs td.killed", timeout=30_000)
    assert page.problems == []


def test_commands_are_answered_and_visible_in_the_run(page, serve, tmp_path, training):
    folder = tmp_path / "runs" / "live"
    with training() as process:
        opened(page, serve())
        answer = page.locator("#answer")
        knob = page.locator("[data-knob='learning_rate']")
        knob.fill("0.125")
        knob.press("Enter")
        page.wait_for_selector("#answer.applied:has-text('set: applied at step')", timeout=30_000)
        assert "0.5 -> 0.125" in answer.text_content()
        for what in ("pause", "resume", "save"):
            page.locator(f"button[data-do='{what}']:enabled").click(timeout=30_000)
            page.wait_for_selector(f"#answer.applied:has-text('{what}: applied')", timeout=30_000)
        knob.fill("text")
        knob.press("Enter")
        page.wait_for_selector("#answer.error:has-text('expected a number')")
        page.once("dialog", lambda dialog: dialog.accept())
        page.locator("button[data-do='stop']").click()
        page.wait_for_selector("#answer.applied:has-text('stop: applied')", timeout=30_000)
        process.wait(60)
        page.wait_for_selector("#runs td.stopped", timeout=30_000)
    text = (folder / "events.jsonl").read_text()
    for what in ("set", "pause", "resume", "save", "stop"):
        assert f'"{what}"' in text, events(folder)
    rates = [json.loads(line).get("rate") for line in (folder / "scalars.jsonl").read_text().splitlines()]
    assert rates[0] == 0.5
    assert 0.125 in rates
    assert json.loads((folder / "run.json").read_text())["status"] == "stopped"
    assert page.problems == []


SEND = """async (url) => {
    const headers = { "content-type": "application/json", "x-hookpoint": "1" };
    return (await fetch(url, { method: "POST", headers, body: '{"do": "stop"}' })).status;
}"""


def test_a_read_only_board_has_no_controls_and_refuses_commands(page, serve, tmp_path, training):
    with training():
        url = serve("--read-only")
        opened(page, url)
        page.wait_for_selector("#runs td.running")
        assert not page.locator("#controls").is_visible()
        key = page.locator("#runs tr").first.get_attribute("data-key")
        status = page.evaluate(SEND, f"/api/run/{key}/control")
        assert status == 403
        assert "stop" not in {event["event"] for event in events(tmp_path / "runs" / "live")}


ATTACKS = Path(__file__).with_name("attacks.js").read_text()


@pytest.fixture
def attacker():
    """Return `attacker(text)`: serve a page with this script on another port, and return the port."""
    servers = []

    def start(script):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                content = f"<!doctype html><body><script type=module>{script}</script>".encode()
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_): ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "evil.example"])
def test_a_page_on_another_port_has_no_effect(page, serve, tmp_path, training, attacker, host):
    with training() as process:
        url = serve()
        opened(page, url)
        page.wait_for_selector("#runs td.running")
        key = page.locator("#runs tr").first.get_attribute("data-key")
        port = attacker(ATTACKS.replace("PORT", str(url.port)).replace("KEY", key))
        other = page.context.new_page()
        other.goto(f"http://{host}:{port}/")
        other.wait_for_selector("body[data-done]", state="attached", timeout=60_000)
        done = json.loads(other.locator("body").get_attribute("data-done"))
        assert done.pop("beacon") in ("sent", "failed")  # a browser does not tell what became of it
        assert set(done.values()) == {"failed"}, done
        assert process.poll() is None
        assert not [event for event in events(tmp_path / "runs" / "live") if "stop" in json.dumps(event)]
        # The same command from our page has an effect, so the attacks could have had one.
        page.once("dialog", lambda dialog: dialog.accept())
        page.locator("button[data-do='stop']").click()
        process.wait(60)


def test_another_name_for_this_machine_is_refused(page, serve, tmp_path):
    write(tmp_path / "runs" / "mine", [row(1, loss=1.0)])
    url = serve()
    opened(page, url)
    other = page.context.new_page()
    for path in ("/", f"/?{url.query}", "/api/runs"):
        assert other.goto(f"http://evil.example:{url.port}{path}").status == 421
        assert "mine" not in other.content()


def test_a_page_without_the_token_shows_nothing(page, serve, tmp_path):
    write(tmp_path / "runs" / "mine", [row(1, loss=1.0)])
    url = serve()
    assert page.goto(f"http://127.0.0.1:{url.port}/").status == 401
    assert page.goto(f"http://127.0.0.1:{url.port}/?token=wrong").status == 403
