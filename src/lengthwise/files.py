"""Read and write files: text, gzip and Parquet, atomic writes, the data folder and the packaged samples."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from lengthwise.errors import InputError

if TYPE_CHECKING:  # `lengthwise doctor` imports this module, and pyarrow is slow to load
    import pyarrow as pa

VARIABLE = "LENGTHWISE_DATA"
Version = tuple[int, int, int]


def data_home() -> Path | None:
    """Return the folder that LENGTHWISE_DATA names, or None if it is not set."""
    given = os.environ.get(VARIABLE)
    if not given:
        return None
    home = Path(given).expanduser()
    if not home.is_dir():
        raise InputError("is not a folder", source=f"{VARIABLE}={given}", hint="name the folder that holds the data")
    return home


def data_folder(name: str, where: str | Path | None, absent: str) -> Path:
    """Return `where`, or the folder of this name in LENGTHWISE_DATA; InputError with `absent` if neither is given."""
    if where is not None:
        return Path(where)
    home = data_home()
    if home is None:
        raise InputError(absent, hint=f"set {VARIABLE} to a folder that holds {name}/")
    return home / name


def sample(name: str) -> Path:
    """Return the path of a packaged sample file (see samples/CREDITS.md)."""
    return Path(str(resources.files("lengthwise.workloads") / "samples" / name))


def check_readable(path: str | Path) -> Path:
    """Return the path; raises InputError unless it is a file that is not empty."""
    path = Path(path)
    if path.is_dir():
        raise InputError("is a folder", source=path, hint="name a file in it")
    if not path.exists():
        raise InputError("no such file", source=path)
    if path.stat().st_size == 0:
        raise InputError("is empty", source=path, hint="something must be in it")
    return path


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a text file, plain or gzipped; read errors become InputError."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield cast("TextIO", stream)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError("is truncated: the gzip stream breaks off", source=path, hint="fetch it again") from error
    except UnicodeDecodeError as error:
        raise InputError(
            "is not UTF-8 text", source=path, hint="save it as UTF-8, or name its --from format"
        ) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path) from error


def read_parquet_table(path: str | Path) -> pa.Table:
    """Read a Parquet file; raises InputError if it is truncated or not Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = check_readable(path)
    try:
        return pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            "is not a complete Parquet file", source=path, hint="it is truncated or has the wrong ending"
        ) from error


def stem(path: Path) -> str:
    """Return the file's name without its endings."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


def file_version(path: Path) -> Version | None:
    """Return what changes when a file is written or replaced; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def atomic_path(target: str | Path, *, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path next to `target`; it replaces the target only when the block succeeds.

    The file gets `mode`, or what the umask leaves.
    """
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
        # mkstemp makes files readable by the owner only; a data file follows the umask.
        temporary.chmod(0o666 & ~_umask() if mode is None else mode)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_all(file: int, data: bytes) -> None:
    """Write bytes to the end, however many a call takes."""
    while data:
        data = data[os.write(file, data) :]


def append_whole(file: int, lines: bytes) -> None:
    """Append lines; what a full disk took of them is removed, so that later ones may follow."""
    size = os.fstat(file).st_size
    try:
        write_all(file, lines)
    except OSError:
        os.ftruncate(file, size)
        raise
