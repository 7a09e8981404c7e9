"""A predictor as one versioned file: a card, and the parts its loader needs.

The file is a zip archive: `card.json` states the kind of predictor, its training data, their licences, its figures and
its limits; the other parts are read by the loader of that kind. It is data, never code: no part is unpickled or run.
The card holds a SHA-256 of every part, so that a file that was damaged or edited by hand is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.files import atomic_path

SUFFIX: Final = ".lw"
FORMAT: Final = 1
ADAPTED: Final = "adapted.json"
"""The part of a model file that holds the LLMs added by `lengthwise adapt`."""
LEARNED: Final = "learned.npz"
"""The part that holds what was learned from a traffic log, from `lengthwise adapt --from`."""
SHARES: Final = "shares"
"""The field of a card for parts that the file takes from a packaged one: {"of": NAME, "sha256": {PART: SUM}}."""
_CARD: Final = "card.json"
_SUMS: Final = "parts_sha256"
_LARGEST: Final = 2_000_000_000
"""Bytes of all parts, unpacked: a small file cannot fill the memory."""
_NEEDED: Final = ("kind", "name", "data", "licences", "limits")


@dataclass(frozen=True, eq=False)
class ModelFile:
    """The content of a model file: the card and the parts by name."""

    card: Mapping[str, Any]
    parts: Mapping[str, bytes]

    @property
    def kind(self) -> str:
        """The kind of predictor, which selects the loader."""
        return str(self.card["kind"])

    def part(self, name: str, source: str | Path = "model file") -> bytes:
        """Return one part; InputError if it is missing."""
        if name not in self.parts:
            raise InputError(f"part '{name}' is missing", source=source, hint="the file is broken; get it again")
        return self.parts[name]


def write_model_file(path: Path, card: Mapping[str, Any], parts: Mapping[str, bytes]) -> None:
    """Write a model file atomically."""
    missing = [name for name in _NEEDED if name not in card]
    if missing:
        raise InputError(f"the card has no {', '.join(missing)}", source=path, field=missing[0])
    sums = part_sums(parts)
    stated = json.dumps({**card, "format": FORMAT, _SUMS: sums}, indent=2).encode()
    with atomic_path(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {_CARD: stated, **parts}.items():
            # A fixed date, so that the same content is the same file.
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)


def read_model_file(path: Path) -> ModelFile:
    """Read a model file; InputError if it is missing, broken, altered or of a newer format."""
    if not path.is_file():
        raise InputError("is not a file", source=path, hint="give a model file that `lengthwise train` wrote")
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST:
                raise InputError(f"unpacks to more than {_LARGEST:,} bytes", source=path, hint="get it again")
            parts = {name: archive.read(name) for name in archive.namelist()}
        card = json.loads(parts.pop(_CARD))
        written = int(card["format"])
        sums = {str(name): str(value) for name, value in card.pop(_SUMS, {}).items()}
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, TypeError, AttributeError, EOFError, OSError,
            RuntimeError, NotImplementedError) as error:  # fmt: skip
        raise InputError("is not a complete model file", source=path, hint="get it again") from error
    if written > FORMAT:
        raise InputError(f"has format {written}, newer than {FORMAT}", source=path, hint="update lengthwise to read it")
    if written < 1:
        raise InputError(f"has format {written}, which no release wrote", source=path, hint="get it again")
    if sums and sums != part_sums(parts):
        raise InputError("was altered after it was written", source=path, hint="get it again, or train it again")
    missing = [name for name in _NEEDED if name not in card]
    if missing:
        raise InputError(f"the card has no {missing[0]}", source=path, hint="get it again")
    return ModelFile(card, parts)


def part_sums(parts: Mapping[str, bytes]) -> dict[str, str]:
    """Return the SHA-256 of every part."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}


@dataclass(frozen=True, eq=False)
class Weights:
    """Arrays of a small NumPy network as dataclass fields, in 32 bits."""

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Build from arrays by field name."""
        return cls(**{field.name: np.asarray(arrays[field.name], np.float32) for field in fields(cls)})

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the arrays by field name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Write arrays as one part of a model file."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Read what `pack_arrays` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        # Row by row in memory: looking rows up in a matrix stored by columns takes ten times as long.
        return {name: np.ascontiguousarray(stored[name]) for name in stored.files}
