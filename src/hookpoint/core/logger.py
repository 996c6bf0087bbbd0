"""The hookpoint logger. Programs configure it under the name "hookpoint"."""

from __future__ import annotations

import logging

logger = logging.getLogger("hookpoint")
