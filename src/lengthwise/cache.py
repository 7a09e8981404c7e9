"""The folder of what is computed once per user: compiled code, the converted LLM, engine logs and simulated results."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Return LENGTHWISE_CACHE, or `lengthwise` in the user's cache folder."""
    given = os.environ.get("LENGTHWISE_CACHE")
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(given or f"{user}/lengthwise").expanduser()
