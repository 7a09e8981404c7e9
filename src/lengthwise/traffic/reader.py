"""The reader of a traffic log: its requests as rows and as columns, and what its engines and its predictor reported."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP, LogTColumns
from lengthwise.prefixes import Scopes
from lengthwise.traffic.log import FORMAT, HEADER, KINDS, PARTS, EngineReading, PredictorCounts, Record
from lengthwise.traffic.rows import RequestRow

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_PREDICTIONS: Final = (("mu", "sigma"), ("predictor_mu", "predictor_sigma"), ("history_mu", "history_sigma"))
_WHOLE: Final = ("origin", "rows", "engines", "predictors")  # fields of LoggedTraffic that are no columns


@dataclass(frozen=True, eq=False)
class LoggedTraffic:
    """The requests of a log as rows and columns, in order of arrival; NaN for a number that a row lacks."""

    origin: str
    rows: tuple[RequestRow, ...]
    arrival_s: Floats
    llm: NDArray[np.object_]
    tenant: NDArray[np.object_]
    output_tokens: Floats
    """NaN where the length is unknown, or only a count of events."""
    censored: Mask
    cap: Floats
    prediction: Floats
    """(n, 2): `mu` and `sigma` of the row; NaN for a client's hint, which is no distribution."""
    predicted: Floats
    """The same of the predictor alone."""
    history: Floats
    """The same of the LLM's history."""
    engines: tuple[EngineReading, ...] = ()
    predictors: tuple[PredictorCounts, ...] = ()

    @classmethod
    def of(cls, records: Sequence[Record], origin: str) -> LoggedTraffic:
        """Return the records of a log as columns."""
        rows = sorted((each for each in records if isinstance(each, RequestRow)), key=lambda row: row.arrival_s)
        lengths = [None if row.counted and not row.censored else row.output_tokens for row in rows]
        used, predicted, history = (
            np.stack([column(rows, mu), column(rows, sigma)], axis=1) for mu, sigma in _PREDICTIONS
        )
        used[~(used[:, 1] > 0)] = np.nan
        return cls(
            origin=origin,
            rows=tuple(rows),
            arrival_s=column(rows, "arrival_s"),
            llm=np.array([row.llm or "" for row in rows], object),
            tenant=np.array([row.tenant or "" for row in rows], object),
            output_tokens=np.array([np.nan if tokens is None else tokens for tokens in lengths], np.float64),
            censored=np.array([row.censored for row in rows], bool),
            cap=np.array([row.max_tokens or DEFAULT_CAP for row in rows], np.float64),
            prediction=used,
            predicted=predicted,
            history=history,
            engines=tuple(each for each in records if isinstance(each, EngineReading)),
            predictors=tuple(each for each in records if isinstance(each, PredictorCounts)),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, keep: Mask | NDArray[np.intp]) -> LoggedTraffic:
        """Return some of the requests."""
        chosen = np.flatnonzero(keep) if keep.dtype == bool else keep
        columns = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name not in _WHOLE}
        return replace(self, rows=tuple(self.rows[i] for i in chosen), **columns)

    @property
    def known(self) -> Mask:
        """Whether the length, or a lower bound of at least one token, is known."""
        return np.nan_to_num(self.output_tokens, nan=0.0) >= 1

    @property
    def days(self) -> NDArray[np.object_]:
        """The day of each request (UTC)."""
        return np.datetime_as_string(self.arrival_s.astype("datetime64[s]"), unit="D").astype(object)

    def columns(self, prediction: Floats) -> LogTColumns:
        """Return predictions (n, 2) as columns."""
        # An answer may be longer than its declared cap; a cut one has its own length as its cap.
        tokens = np.nan_to_num(self.output_tokens, nan=1.0)
        caps = np.maximum(np.where(self.censored, tokens, np.maximum(self.cap, tokens)), 1.0)
        return LogTColumns.of(prediction[:, 0], prediction[:, 1], caps)

    def scopes(self, row: int) -> Scopes:
        """Return what prefix memory identifies a request by."""
        names, blocks = (_hashes(text) for text in (self.rows[row].names, self.rows[row].blocks))
        return Scopes(blocks, names)


def column(rows: Sequence[RequestRow], name: str) -> Floats:
    """Return a field of rows as numbers, NaN where it is None."""
    values = (getattr(row, name) for row in rows)
    return np.array([math.nan if value is None else value for value in values], np.float64)


def read_traffic(folder: Path) -> LoggedTraffic:
    """Read all parts; InputError if there are none, or one is not such a log."""
    if not folder.is_dir():
        raise InputError("is not a folder", source=folder, hint="give the folder of `lengthwise serve --log`")
    records = [record for part in sorted(folder.glob(PARTS)) for record in _records(part)]
    if not any(isinstance(record, RequestRow) for record in records):
        raise InputError("holds no requests", source=folder, hint="serve some with `lengthwise serve --log DIR`")
    return LoggedTraffic.of(records, str(folder))


def _records(part: Path) -> Iterator[Record]:
    try:
        lines = part.read_bytes().split(b"\n")[:-1]  # what follows the last newline is incomplete
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=part) from error
    for number, line in enumerate(lines):
        try:
            if number:
                yield _record(line)
            else:
                written = _format(line)
        except (ValueError, KeyError, TypeError) as error:
            what = "is not a record of a traffic log" if number else "is not a traffic log"
            raise InputError(what, source=part, row=number + 1, hint="move the file elsewhere") from error
        if not number:
            _check_format(written, part)


def _format(header: bytes) -> int:
    content = json.loads(header)
    if content["kind"] != HEADER["kind"]:
        raise ValueError("another kind of file")
    return int(content["format"])


def _check_format(written: int, part: Path) -> None:
    if written < FORMAT:
        hint = f"this version reads format {FORMAT}: move the older parts elsewhere"
        raise InputError(f"has format {written}, of an older lengthwise", source=part, hint=hint)
    if written > FORMAT:
        raise InputError(f"has format {written}, newer than {FORMAT}", source=part, hint="update lengthwise")


def _record(line: bytes) -> Record:
    content = json.loads(line)
    kind = KINDS[content.pop("kind")]
    record = kind(**{name: value for name, value in content.items() if name in kind._fields})
    if not all(math.isfinite(value) for value in record if isinstance(value, float)):
        raise ValueError("not finite")
    if isinstance(record, RequestRow):
        _check_row(record)
    return record


def _check_row(row: RequestRow) -> None:
    texts = (row.llm, row.tenant, row.predictor, row.names, row.blocks)
    numbers = (row.arrival_s, *(getattr(row, name) for pair in _PREDICTIONS for name in pair), row.output_tokens)
    pairs = (tuple(getattr(row, name) for name in pair) for pair in _PREDICTIONS)
    if (
        not all(text is None or isinstance(text, str) for text in texts)
        or not all(number is None or isinstance(number, int | float) for number in numbers)
        or not all((mu is None) == (sigma is None) and (sigma is None or sigma >= 0) for mu, sigma in pairs)
        or any(len(bytes.fromhex(text or "")) % 8 for text in (row.names, row.blocks))
    ):
        raise ValueError("not a row")


def _hashes(text: str | None) -> NDArray[np.uint64]:
    return np.frombuffer(bytes.fromhex(text or ""), np.uint64)
