from __future__ import annotations

import sys
from enum import IntEnum
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from hookpoint.callbacks.notify._apprise_transport import AppriseTransport
from hookpoint.callbacks.notify._messages import Message
from hookpoint.callbacks.notify._sender import SendFailed

MESSAGE = Message("mine", "epoch 3, step 300", "warning")


class Status(IntEnum):
    SUCCESS = 0
    FAILURE = 1
    TIMEOUT = 5


class Result:
    """The result of Apprise: not a bool, but true if every message was sent."""

    def __init__(self, status):
        self.status = status

    def __bool__(self):
        return self.status == Status.SUCCESS


@pytest.fixture
def services(monkeypatch):
    """Replace Apprise by a module that records its calls and answers with `services.status`."""
    module = ModuleType("apprise")
    module.__spec__ = ModuleSpec("apprise", None)
    module.told, module.status = [], Status.SUCCESS

    class Apprise:
        def __init__(self):
            self.urls = []

        def add(self, url):
            self.urls.append(url)
            return not url.startswith("nonsense")

        def notify(self, *, title, body, body_format, notify_type, timeout):
            module.told.append((tuple(self.urls), title, body, body_format, notify_type, timeout))
            return Result(module.status)

    module.Apprise = Apprise
    monkeypatch.setitem(sys.modules, "apprise", module)
    return module


def test_a_message_is_sent_to_every_url(services):
    AppriseTransport("SendStat", "ntfys://topic", 7).send(MESSAGE)
    AppriseTransport("SendStat", ["ntfys://topic", "mailtos://me"], 10).send(MESSAGE)
    sent = ("mine", "epoch 3, step 300", "text", "warning")
    assert services.told == [(("ntfys://topic",), *sent, 7), (("ntfys://topic", "mailtos://me"), *sent, 10)]


@pytest.mark.parametrize("status", [Status.FAILURE, Status.TIMEOUT])
def test_an_undelivered_message_raises(services, status):
    services.status = status
    with pytest.raises(SendFailed, match=f"^Apprise did not deliver a message: {status.name}$") as caught:
        AppriseTransport("SendStat", "ntfys://topic", 10).send(MESSAGE)
    assert caught.value.kind == status.name


@pytest.mark.parametrize(
    "url", ["json://example.org/x", "xml://10.0.0.1", "form://h", "apprise://h/t", "http://example.org", "JSON://h"]
)
def test_an_unencrypted_url_raises(services, url):
    scheme = url.partition(":")[0].lower()
    with pytest.raises(ValueError, match="is not encrypted") as caught:
        AppriseTransport("SendStat", url, 10)
    assert f"write     '{scheme}s://...'" in str(caught.value)


@pytest.mark.parametrize("url", ["json://localhost:8000", "json://127.0.0.1", "json://[::1]:80/x", "jsons://example.org"])
def test_an_unencrypted_url_of_this_machine_is_accepted(services, url):
    AppriseTransport("SendStat", url, 10)


@pytest.mark.parametrize("url", ["", [], [""], [None], ["ntfys://topic", 3]])
def test_an_invalid_url_argument_raises(services, url):
    with pytest.raises(ValueError, match=r"^url must be a URL or a list of URLs\.\n  write     url=\"ntfys://topic\"$"):
        AppriseTransport("SendStat", url, 10)


def test_the_error_for_an_unknown_service_does_not_show_the_url(services):
    with pytest.raises(ValueError, match=r"Apprise has no service for 'nonsense:\.\.\.'") as caught:
        AppriseTransport("SendStat", "nonsense://user:password@host", 10)
    assert "password" not in str(caught.value)


def test_without_apprise_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("hookpoint.callbacks.notify._apprise_transport.find_spec", lambda name: None)
    message = r"^SendStat\(url=\.\.\.\) needs Apprise, which is not installed\.\n  run       pip install 'hookpoint\[notify\]'$"
    with pytest.raises(ImportError, match=message):
        AppriseTransport("SendStat", "ntfys://topic", 10)
