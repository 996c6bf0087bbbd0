"""The page handles a server that ends, restarts, or rejects its token."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow  # needs a browser
EXPECTS_PROBLEMS = True  # a browser reports failed requests


def end(process):
    process.terminate()
    process.wait(60)


def is_expected(problem):
    """Return whether the problem is the browser's own report of a failed request."""
    return "ERR_CONNECTION_REFUSED" in problem or "ERR_INCOMPLETE_CHUNKED_ENCODING" in problem or "401" in problem


def test_the_page_continues_after_a_restart_with_the_same_token(page, serve, opened, row, write_run, tmp_path):
    folder = write_run("mine", [row(step, loss=0.5) for step in range(100)])
    url = serve("--token-file", str(tmp_path / "token"))
    opened(page, url)
    page.wait_for_selector(".chart[data-metric='loss'][data-exact='true'][data-high='0.5']")
    end(serve.process)
    page.wait_for_selector("#lost:has-text('Connection lost')", timeout=30_000)
    assert page.locator("#connection").text_content() == "not connected"
    with (folder / "scalars.jsonl").open("a") as file:
        file.write(row(100, loss=7.0))
    write_run("later", [row(1, loss=1.0)])
    serve("--token-file", str(tmp_path / "token"), port=url.port)
    page.wait_for_selector("#lost", state="detached", timeout=30_000)
    page.wait_for_selector(".chart[data-metric='loss'][data-exact='true'][data-high='7']", timeout=30_000)
    page.wait_for_selector("#runs tr:has-text('later')", timeout=30_000)
    assert page.locator("#connection").text_content() == "connected"
    assert [problem for problem in page.problems if not is_expected(problem)] == []


def test_a_restart_with_another_token_is_explained(page, serve, opened, row, write_run):
    write_run("mine", [row(1, loss=0.5)])
    url = serve()
    opened(page, url)
    page.wait_for_selector(".chart")
    end(serve.process)
    page.wait_for_selector("#lost", timeout=30_000)
    again = serve(port=url.port)
    page.wait_for_selector("#denied:has-text('The board was restarted')", timeout=30_000)
    page.goto(again.geturl())
    page.wait_for_selector("#connection:text-is('connected')")
    assert [problem for problem in page.problems if not is_expected(problem)] == []
