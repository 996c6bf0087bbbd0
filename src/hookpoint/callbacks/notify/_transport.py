"""NewsWay: send news to the services behind some addresses, through Apprise."""

from __future__ import annotations

from collections.abc import Sequence

from hookpoint.callbacks.notify._apprise_transport import UrlWay
from hookpoint.callbacks.notify._messages import News


class NewsWay:
    """Send texts as they are; addresses are checked as those of SendStat."""

    def __init__(self, owner: str, urls: str | Sequence[str], timeout_seconds: float) -> None:
        self._way = UrlWay(owner, urls, (), timeout_seconds)

    def send(self, message: News) -> None:
        self._way.tell(message.title, message.body, notify_type=message.tone)

    def cancel(self) -> None:
        self._way.cancel()
