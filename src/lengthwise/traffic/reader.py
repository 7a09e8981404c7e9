"""The traffic log of `lengthwise serve --learn DIR`: its rows, and how they are read.

DIR holds parts `traffic-TIME-PID.jsonl`: a header line, then one JSON object per request, written when the request
ends. Rows are written whole; a part that a crash cut short lacks its last row. `key` (mode 600) is the key of the
hashes: without it the parts do not tell whether a guessed text occurred. A row has no prompt and no API key; with
`--keep-prompts` its `text` is what a predictor reads of the prompt, of a long one the first and the last 10,000
characters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP, LogT, LogTColumns
from lengthwise.prefixes import Levels
from lengthwise.traffic.rows import PredictionSource

FORMAT: Final = 1
PARTS: Final = "traffic-*.jsonl"
MEMORY_NAME: Final = "memory.npz"
"""The file of prefix memory beside the parts."""
PREDICTOR_NAME: Final = "predictor.lw"
"""The model file beside the parts that `serve --watch` uses, and `adapt --from` writes unless another is named."""
MAX_BLOCKS: Final = 64
"""Blocks of a prompt's beginning that are logged."""
KEPT_CHARACTERS: Final = 10_000
"""Of the beginning and of the end of a prompt; what predictors read."""

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class TrafficRow(NamedTuple):
    """One request. Predictions are pairs of mu and sigma, the log-t of its answer's tokens."""

    time: float
    """Of its arrival, in seconds since 1970."""
    request_id: str
    tenant: str
    model: str
    engine: str | None
    input_tokens: int
    max_tokens: int | None
    names: str
    """Keyed hashes of tenant, template, session and LLM (8 bytes each, hexadecimal), for prefix memory."""
    blocks: str
    """Keyed hashes of the prompt's first blocks."""
    predictor: str
    source: PredictionSource
    """Where the prediction that ordered it came from; with `predictor` none if it ran before its prediction arrived."""
    prediction: tuple[float, float] | None
    """Of the predictor, with online calibration and prefix memory; else that of the history."""
    predicted: tuple[float, float] | None
    """Of the predictor alone."""
    history: tuple[float, float]
    """Of the LLM's history at its arrival."""
    output_tokens: int | None
    censored: bool
    """Whether the answer was cut off, by `max_tokens`, its client or an error: the tokens are a lower bound."""
    finish_reason: str | None
    """The engine's; `cancelled` where the client left, `error` where the request failed."""
    wait_s: float | None
    first_byte_s: float | None
    total_s: float
    text: str | None = None


HEADER: Final = {"kind": "lengthwise traffic", "format": FORMAT}


def row_json(row: TrafficRow) -> str:
    """Return a row as one line."""
    given = row._asdict()
    if row.text is None:
        del given["text"]
    return json.dumps(given, separators=(",", ":")) + "\n"


def kept_text(text: str) -> str:
    """Return what is logged of a prompt."""
    return text if len(text) <= 2 * KEPT_CHARACTERS else f"{text[:KEPT_CHARACTERS]}\n{text[-KEPT_CHARACTERS:]}"


def pair(prediction: LogT | None) -> tuple[float, float] | None:
    """Return mu and sigma, rounded as they are logged."""
    return None if prediction is None else (round(prediction.mu, 4), round(prediction.sigma, 4))


@dataclass(frozen=True, eq=False)
class LoggedTraffic:
    """The rows of a log as columns, in order of time. Predictions that a row lacks are NaN."""

    origin: str
    rows: tuple[TrafficRow, ...]
    time: Floats
    model: NDArray[np.object_]
    tenant: NDArray[np.object_]
    tokens: Floats
    """NaN where the length is unknown."""
    censored: Mask
    cap: Floats
    prediction: Floats
    """(n, 2): mu and sigma; likewise the next two."""
    predicted: Floats
    history: Floats

    @classmethod
    def of(cls, rows: Sequence[TrafficRow], origin: str) -> LoggedTraffic:
        """Sort rows by time."""
        rows = sorted(rows, key=lambda row: row.time)
        pairs = {
            name: np.array([getattr(row, name) or (np.nan, np.nan) for row in rows], np.float64).reshape(-1, 2)
            for name in ("prediction", "predicted", "history")
        }
        return cls(
            origin=origin,
            rows=tuple(rows),
            time=np.array([row.time for row in rows], np.float64),
            model=np.array([row.model for row in rows], object),
            tenant=np.array([row.tenant for row in rows], object),
            tokens=np.array([np.nan if row.output_tokens is None else row.output_tokens for row in rows], np.float64),
            censored=np.array([row.censored for row in rows], bool),
            cap=np.array([row.max_tokens or DEFAULT_CAP for row in rows], np.float64),
            **pairs,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, keep: Mask | NDArray[np.intp]) -> LoggedTraffic:
        """Return some of the rows."""
        chosen = np.flatnonzero(keep) if keep.dtype == bool else keep
        columns = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name not in ("origin", "rows")}
        return replace(self, rows=tuple(self.rows[i] for i in chosen), **columns)

    @property
    def known(self) -> Mask:
        """Whether the length, or a lower bound of at least one token, is known."""
        return np.nan_to_num(self.tokens, nan=0.0) >= 1

    @property
    def days(self) -> NDArray[np.object_]:
        """The day of each row (UTC)."""
        return np.datetime_as_string(self.time.astype("datetime64[s]"), unit="D").astype(object)

    def columns(self, prediction: Floats) -> LogTColumns:
        """Return predictions (n, 2) as columns."""
        # An answer may be longer than its declared cap; a cut one has its own length as its cap.
        tokens = np.nan_to_num(self.tokens, nan=1.0)
        caps = np.maximum(np.where(self.censored, tokens, np.maximum(self.cap, tokens)), 1.0)
        return LogTColumns.of(prediction[:, 0], prediction[:, 1], caps)

    def levels(self, row: int) -> Levels:
        """Return what prefix memory identifies a row by."""
        names, blocks = (np.frombuffer(bytes.fromhex(text), np.uint64) for text in self.rows[row][7:9])
        return Levels(blocks, names)


def read_traffic(folder: Path) -> LoggedTraffic:
    """Read all parts; InputError if there are none, or one is not such a log."""
    if not folder.is_dir():
        raise InputError("is not a folder", source=folder, hint="give the folder of `lengthwise serve --learn`")
    parts = sorted(folder.glob(PARTS))
    rows = [row for part in parts for row in _rows(part)]
    if not rows:
        raise InputError("holds no requests", source=folder, hint="serve some with `lengthwise serve --learn DIR`")
    return LoggedTraffic.of(rows, str(folder))


def _rows(part: Path) -> Iterator[TrafficRow]:
    try:
        lines = part.read_bytes().split(b"\n")[:-1]  # what follows the last newline is incomplete
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=part) from error
    for number, line in enumerate(lines):
        try:
            content = json.loads(line)
            if number == 0:
                written = int(content["format"]) if content["kind"] == HEADER["kind"] else 0
            else:
                yield _row(content)
        except (ValueError, KeyError, TypeError) as error:
            what = "is not a traffic log" if number == 0 else "is not a row of a traffic log"
            raise InputError(what, source=part, row=number + 1, hint="move the file elsewhere") from error
        if number == 0 and not 0 < written <= FORMAT:
            raise InputError(f"has format {written}, newer than {FORMAT}", source=part, hint="update lengthwise")


def _row(content: dict[str, Any]) -> TrafficRow:
    given = {name: value for name, value in content.items() if name in TrafficRow._fields}
    row = TrafficRow(**given | {name: _pair(given[name]) for name in ("prediction", "predicted", "history")})
    numbers = [row.time, row.total_s, *row.history, *(row.prediction or ()), *(row.predicted or ())]
    hashes = [len(bytes.fromhex(text)) % 8 for text in (row.names, row.blocks)]
    texts = all(isinstance(given[name], str) for name in ("model", "tenant", "predictor"))
    if not all(map(math.isfinite, numbers)) or not texts or any(hashes):
        raise ValueError("not a row")
    return row


def _pair(numbers: list[float] | None) -> tuple[float, float] | None:
    if numbers is None:
        return None
    mu, sigma = numbers
    if sigma <= 0:
        raise ValueError("not a prediction")
    return mu, sigma
