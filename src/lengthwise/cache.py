"""The folder of what is computed once per user: compiled code, the converted LLM, engine logs and simulated results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path


def cache_home() -> Path:
    """Return LENGTHWISE_CACHE, or `lengthwise` in the user's cache folder."""
    given = os.environ.get("LENGTHWISE_CACHE")
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(given or f"{user}/lengthwise").expanduser()


def compiled_folder() -> Path:
    """Return the folder of cached machine code."""
    return Path(os.environ.get("NUMBA_CACHE_DIR") or cache_home() / "compiled")


def compilation_marker(what: str, files: Sequence[Path] = ()) -> Path:
    """Return the file that exists once `what`, whose sources are `files`, was compiled; nothing here loads Numba."""
    return compiled_folder() / "-".join(filter(None, (what, digest(files), version("numba"))))


def digest(files: Sequence[Path]) -> str:
    """Return a name for the contents of files; none for no files."""
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16] if files else ""
