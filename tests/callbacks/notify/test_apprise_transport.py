from __future__ import annotations

import sys
from enum import IntEnum
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from hookpoint.callbacks.notify._apprise_transport import UrlWay
from hookpoint.callbacks.notify._send_queue import SendFailed

MESSAGE = {"run": "mine", "epoch": 3, "step": 300, "loss": 1 / 3, "val-error": 0.25, "workdir": "/w", "checkpoint": "/c"}


class Status(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    TIMEOUT = 5


class Result:
    """What Apprise returns: no bool, but true if all went well."""

    def __init__(self, status):
        self.status = status

    def __bool__(self):
        return self.status == Status.SUCCESS


@pytest.fixture
def services(monkeypatch):
    """Put a module in Apprise's place: what it is told is kept, and it answers with `services.status`."""
    module = ModuleType("apprise")
    module.__spec__ = ModuleSpec("apprise", None)
    module.told, module.status = [], Status.SUCCESS

    class Apprise:
        def __init__(self):
            self.urls = []

        def add(self, url):
            self.urls.append(url)
            return not url.startswith("nonsense")

        def notify(self, *, title, body, body_format, timeout):
            module.told.append((tuple(self.urls), title, body, body_format, timeout))
            return Result(module.status)

    module.Apprise = Apprise
    monkeypatch.setitem(sys.modules, "apprise", module)
    return module


def test_a_message_is_a_short_text(services):
    UrlWay("SendStat", "ntfys://topic", ["loss", "val-error"], 7).send(MESSAGE)
    body = "epoch 3, step 300\nloss: 0.33333\nval-error: 0.25"
    assert services.told == [(("ntfys://topic",), "mine", body, "text", 7)]


def test_there_may_be_several_addresses(services):
    UrlWay("SendStat", ["ntfys://topic", "mailtos://me"], [], 10).send(MESSAGE)
    assert [(urls, body) for urls, _, body, *_ in services.told] == [(("ntfys://topic", "mailtos://me"), "epoch 3, step 300")]


def test_names_are_shown_without_what_a_terminal_would_act_on_and_not_at_any_length(services):
    name = "\x1b[31mloss\n" + "x" * 1000
    UrlWay("SendStat", "ntfys://topic", [name], 10).send({**MESSAGE, name: 0.5, "run": "a\r\nb\x07" + "y" * 1000})
    ((_, title, body, *_),) = services.told
    assert title == "a??b?" + "y" * 251
    assert body == "epoch 3, step 300\n" + "?[31mloss?" + "x" * 246 + ": 0.5"


@pytest.mark.parametrize("status", [Status.FAILURE, Status.TIMEOUT])
def test_what_was_not_delivered_is_a_failure(services, status):
    services.status = status
    with pytest.raises(SendFailed, match=f"^Apprise did not deliver a message: {status.name}$") as caught:
        UrlWay("SendStat", "ntfys://topic", [], 10).send(MESSAGE)
    assert caught.value.kind == status.name


@pytest.mark.parametrize(
    "url", ["json://example.org/x", "xml://10.0.0.1", "form://h", "apprise://h/t", "http://example.org", "JSON://h"]
)
def test_what_is_not_encrypted_is_refused(services, url):
    scheme = url.partition(":")[0].lower()
    with pytest.raises(ValueError, match="can be read on its way") as caught:
        UrlWay("SendStat", url, [], 10)
    assert f"write     '{scheme}s://...', which is encrypted" in str(caught.value)


@pytest.mark.parametrize("url", ["json://localhost:8000", "json://127.0.0.1", "json://[::1]:80/x", "jsons://example.org"])
def test_this_machine_needs_no_encryption(services, url):
    UrlWay("SendStat", url, [], 10)


@pytest.mark.parametrize("url", ["", [], [""], [None], ["ntfys://topic", 3]])
def test_what_is_no_address_is_refused(services, url):
    with pytest.raises(ValueError, match=r"^url= takes an address, or several\.\n  write     url=\"ntfys://topic\"$"):
        UrlWay("SendStat", url, [], 10)


def test_an_address_that_apprise_does_not_know_is_refused_without_showing_it(services):
    with pytest.raises(ValueError, match=r"Apprise knows no service for 'nonsense:\.\.\.'") as caught:
        UrlWay("SendStat", "nonsense://user:password@host", [], 10)
    assert "password" not in str(caught.value)


def test_without_apprise_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("hookpoint.callbacks.notify._apprise_transport.find_spec", lambda name: None)
    message = r"^SendStat\(url=\.\.\.\) needs Apprise, which is not installed\.\n  run       pip install 'hookpoint\[notify\]'$"
    with pytest.raises(ImportError, match=message):
        UrlWay("SendStat", "ntfys://topic", [], 10)
