"""The logger of hookpoint."""

from __future__ import annotations

import logging

logger = logging.getLogger("hookpoint")
