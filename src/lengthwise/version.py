"""The installed version of the package, and the command that adds an extra to this installation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent
"""Folder of the package's code."""


def package_version() -> str:
    """Return the version that is installed."""
    from importlib.metadata import version  # takes longer than the rest of `import lengthwise`

    return version("lengthwise")


def install_line(*extras: str, here: bool = True) -> str:
    """Return the command that installs these extras: from the clone or the wheel that this installation came from.

    `here` False: as another machine would, without the paths of this one.
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    origin = _direct_url()
    address = str(origin.get("url", ""))
    if origin.get("dir_info", {}).get("editable") or (ROOT.parent.parent / "pyproject.toml").is_file():
        clone = ROOT.parent.parent
        place = "." if not here or clone == Path.cwd() else str(clone)
        return f"pip install -e {_quoted(place + wanted)}"
    if address.endswith(".whl"):
        place = address.removeprefix("file://") if here else address.rpartition("/")[2]
        return f"pip install {_quoted(place + wanted)}"
    return f"pip install {_quoted('lengthwise' + wanted)}"


def _quoted(requirement: str) -> str:
    return f"'{requirement}'" if shlex.quote(requirement) != requirement and "'" not in requirement else requirement


def _direct_url() -> dict[str, Any]:
    """Return where pip has installed the package from (PEP 610); empty for a package index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = json.loads(distribution("lengthwise").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
