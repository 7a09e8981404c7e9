"""Write a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lengthwise.errors import InputError


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """A path next to `target` to write to; it takes the target's place only when the block succeeds."""
    target = Path(target)
    if target.is_dir():
        raise InputError("is a folder", source=target, hint="name a file to write")
    if not target.parent.is_dir():
        raise InputError("its folder does not exist", source=target, hint=f"make {target.parent} first")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=target) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files for their owner only; a data file follows the usual mask.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
