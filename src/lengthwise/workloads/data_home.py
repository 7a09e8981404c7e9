"""Where data lives: the folder LENGTHWISE_DATA names, and the samples inside the package."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from lengthwise.errors import InputError

VARIABLE = "LENGTHWISE_DATA"


def data_home() -> Path | None:
    """The folder LENGTHWISE_DATA names, None where the variable is not set."""
    given = os.environ.get(VARIABLE)
    if not given:
        return None
    home = Path(given).expanduser()
    if not home.is_dir():
        raise InputError("is not a folder", source=f"{VARIABLE}={given}", hint="name the folder that holds the data")
    return home


def sample(name: str) -> Path:
    """A file of the samples that ship with the package (see samples/CREDITS.md)."""
    return Path(str(resources.files("lengthwise.workloads") / "samples" / name))
