"""The hookpoint logger; programs configure it by its name, "hookpoint"."""

from __future__ import annotations

import logging

logger = logging.getLogger("hookpoint")
