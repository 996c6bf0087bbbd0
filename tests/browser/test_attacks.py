"""Attacks from other pages, and hostile names, in a real browser."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # tests/board tests the server without a browser
EXPECTS_PROBLEMS = True  # a browser reports blocked requests


SEND = """async (url) => {
    const headers = { "content-type": "application/json", "x-hookpoint": "1" };
    return (await fetch(url, { method: "POST", headers, body: '{"do": "stop"}' })).status;
}"""


def test_a_read_only_board_has_no_controls_and_rejects_commands(page, serve, opened, events_of, training):
    with training():
        url = serve("--read-only")
        opened(page, url)
        page.wait_for_selector("#runs td.running")
        assert page.locator("#controls-reason").text_content() == "This board is read-only: it was started with --read-only."
        assert page.locator("#actions button:enabled").count() == 0
        key = page.locator("#runs tr").first.get_attribute("data-key")
        status = page.evaluate(SEND, f"/api/run/{key}/control")
        assert status == 403
        assert "stop" not in {event["event"] for event in events_of("live")}


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
def test_a_page_on_another_port_has_no_effect(page, serve, opened, events_of, training, attacker, host):
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
        assert done.pop("beacon") in ("sent", "failed")  # a browser does not report the outcome of a beacon
        assert set(done.values()) == {"failed"}, done
        assert process.poll() is None
        assert not [event for event in events_of("live") if "stop" in json.dumps(event)]
        # The same command from the board's page has an effect, so the attacks could have succeeded.
        page.locator("button[data-do='stop']:enabled").click()
        page.locator("#stop-confirm").click()
        process.wait(60)


def test_another_host_name_for_this_machine_is_rejected(page, serve, opened, row, write_run):
    write_run("mine", [row(1, loss=1.0)])
    url = serve()
    opened(page, url)
    other = page.context.new_page()
    for path in ("/", f"/?{url.query}", "/api/runs"):
        assert other.goto(f"http://evil.example:{url.port}{path}").status == 421
        assert "mine" not in other.content()


def test_a_request_without_the_token_is_rejected(page, serve, row, write_run):
    write_run("mine", [row(1, loss=1.0)])
    url = serve()
    assert page.goto(f"http://127.0.0.1:{url.port}/").status == 401
    assert page.goto(f"http://127.0.0.1:{url.port}/?token=wrong").status == 403


def test_html_in_names_is_shown_as_text(page, serve, opened, row, write_run):
    evil = '"><img src=x onerror="document.title=1"><script>document.title=2</script>'
    event = {"step": 1, "epoch": 1, "time": 1.79e9, "event": evil, "x": evil}
    facts = {
        "name": evil,
        "config": {evil: evil},
        "callbacks": [evil],
        "schedule": [{"callback": evil, "point": evil, "when": evil}],
    }
    facts["best"] = {evil: {"value": 1.0, "step": 1, "mode": "min"}}
    write_run("<b>bold", [row(1, **{evil: 1.0}), row(2, **{evil: 2.0})], [event], **facts)
    write_run("<b>other", [row(1, **{evil: 1.0})], name="other", config={evil: "other"})
    opened(page, serve())
    page.wait_for_selector(".chart")
    page.locator("button.name", has_text="bold").click()
    page.wait_for_selector("#name:has-text('onerror')")
    for tab, selector in (("events", "#events li"), ("settings", "#settings"), ("callbacks", "#callbacks li")):
        page.locator(f"[data-tab='{tab}']").click()
        assert evil in page.locator(selector).first.text_content(), tab
    page.locator("#compare").click()
    page.wait_for_selector("#differences tr[data-setting]")
    page.locator("#columns").click()
    page.locator(".columns input[type=checkbox]").first.check()
    page.locator(".chart .plot").first.hover()
    page.wait_for_selector(".tip:not([hidden])")
    assert page.title() == "hookpoint board"
    assert page.locator("#board img:not([src='/favicon.svg']), b:text-is('bold'), #board script").count() == 0
    assert page.locator("#name").text_content().strip() == evil
    assert page.locator(".chart h3").first.text_content() == evil
    assert "<b>bold" in page.locator("#runs").text_content()
    assert page.problems == []
