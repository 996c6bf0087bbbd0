"""AppriseTransport: send a message to notification services through Apprise."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from hookpoint.callbacks.notify._messages import Message
from hookpoint.callbacks.notify._sender import SendFailed
from hookpoint.core.errors import BadArgument, text
from hookpoint.core.text.terminal import printable

UNENCRYPTED = ("apprise", "form", "http", "json", "xml")  # the encrypted schemes end with "s", as in https
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class AppriseTransport:
    """Send a title and a text to Apprise URLs. Raise for an unencrypted URL if its scheme has an encrypted form."""

    def __init__(self, owner: str, urls: str | Sequence[str], timeout_seconds: float) -> None:
        self._urls = list(urls) if isinstance(urls, Iterable) and not isinstance(urls, str) else [urls]
        self._timeout_seconds = timeout_seconds
        if not self._urls or not all(isinstance(url, str) and url for url in self._urls):
            raise BadArgument("url must be a URL or a list of URLs.", write='url="ntfys://topic"')
        for url in self._urls:
            scheme = url.partition("://")[0].lower()
            if scheme in UNENCRYPTED and urlsplit(url).hostname not in LOCAL_HOSTS:
                raise BadArgument(f"'{scheme}://...' is not encrypted.", write=f"'{scheme}s://...'")
        if find_spec("apprise") is None:
            raise ImportError(
                text(f"{owner}(url=...) needs Apprise, which is not installed.", run="pip install 'hookpoint[notify]'")
            )
        # Import Apprise here and not on the thread that sends messages, because warning filters apply to all threads.
        with warnings.catch_warnings():
            # Importing Apprise causes this warning.
            warnings.filterwarnings("ignore", "'imghdr' is deprecated", DeprecationWarning)
            self._services()

    def send(self, message: Message) -> None:
        result: Any = self._services().notify(
            title=message.title,
            body=message.body,
            body_format="text",
            notify_type=message.tone,
            timeout=self._timeout_seconds,
        )
        if not result:  # the result is not a plain bool; it also has a status
            status = getattr(getattr(result, "status", None), "name", "FAILURE")
            raise SendFailed(status, f"Apprise did not deliver a message: {status}")

    def cancel(self) -> None:
        """Do nothing, because Apprise has its own timeouts."""

    def _services(self) -> Any:
        services = import_module("apprise").Apprise()
        for url in self._urls:
            if not services.add(url):
                scheme = printable(url.partition(":")[0][:20])
                raise BadArgument(f"Apprise has no service for '{scheme}:...', or the URL is incomplete.")
        return services
