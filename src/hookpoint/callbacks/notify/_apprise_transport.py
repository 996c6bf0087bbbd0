"""UrlWay: send a message to the services behind some addresses, through Apprise."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from hookpoint.callbacks.notify._messages import News
from hookpoint.callbacks.notify._send_queue import SendFailed
from hookpoint.callbacks.notify._template import Value
from hookpoint.core.errors import BadArgument, text
from hookpoint.core.text.terminal import printable

IN_THE_CLEAR = ("apprise", "form", "http", "json", "xml")  # each has a safe one that ends with s
HERE = ("localhost", "127.0.0.1", "::1")
MOST_LETTERS = 256


class UrlWay:
    """Send a run's name, epoch, step and metrics as a short text; addresses are Apprise's, one for each service.

    Nothing else leaves the machine, and nothing in the clear: where there is an encrypted way, the other one is refused.
    """

    def __init__(self, owner: str, urls: str | Sequence[str], names: Sequence[str], timeout_seconds: float) -> None:
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        self._names = names
        self._timeout_seconds = timeout_seconds
        if not self._urls or not all(isinstance(url, str) and url for url in self._urls):
            raise BadArgument("url= takes an address, or several.", write='url="ntfys://topic"')
        for url in self._urls:
            _refuse_in_the_clear(url)
        if find_spec("apprise") is None:
            raise ImportError(
                text(f"{owner}(url=...) needs Apprise, which is not installed.", run="pip install 'hookpoint[notify]'")
            )
        with warnings.catch_warnings():  # here, and not when something is sent: they are those of the whole process
            warnings.filterwarnings("ignore", "'imghdr' is deprecated", DeprecationWarning)  # which Apprise imports
            self._services()

    def send(self, message: Mapping[str, Value]) -> None:
        lines = [f"epoch {message['epoch']}, step {message['step']}", *(_line(name, message[name]) for name in self._names)]
        self.tell(_short(message["run"]), "\n".join(lines))

    def tell(self, title: str, body: str, **more: str) -> None:
        """Send a text; `more` is for Apprise."""
        result: Any = self._services().notify(title=title, body=body, body_format="text", timeout=self._timeout_seconds, **more)
        if not result:  # it is no bool
            status = getattr(getattr(result, "status", None), "name", "FAILURE")
            raise SendFailed(status, f"Apprise did not deliver a message: {status}")

    def cancel(self) -> None:
        """Do nothing: Apprise ends by itself, after its own timeouts."""

    def _services(self) -> Any:
        services = import_module("apprise").Apprise()
        for url in self._urls:
            if not services.add(url):
                scheme = url.partition(":")[0][:20]
                raise BadArgument(f"Apprise knows no service for '{printable(scheme)}:...', or misses a part of the address.")
        return services


class NewsWay:
    """Send news as they are; addresses are checked as those of UrlWay."""

    def __init__(self, owner: str, urls: str | Sequence[str], timeout_seconds: float) -> None:
        self._way = UrlWay(owner, urls, (), timeout_seconds)

    def send(self, message: News) -> None:
        self._way.tell(message.title, message.body, notify_type=message.tone)

    def cancel(self) -> None:
        self._way.cancel()


def _refuse_in_the_clear(url: str) -> None:
    scheme = url.partition("://")[0].lower()
    if scheme in IN_THE_CLEAR and urlsplit(url).hostname not in HERE:
        raise BadArgument(
            f"what is sent to '{scheme}://...' can be read on its way.", write=f"'{scheme}s://...', which is encrypted"
        )


def _line(name: str, value: Value) -> str:
    return f"{_short(name)}: {value:.5g}"


def _short(words: object) -> str:
    """Return the beginning, with nothing in it that a terminal would act on."""
    return printable(str(words)[:MOST_LETTERS])
