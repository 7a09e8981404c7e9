"""`lengthwise doctor`."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Say what is installed, what is missing for which command, and how to get it."""
    typer.echo("")
