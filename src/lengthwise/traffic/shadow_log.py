"""The shadow's log of a running engine: JSON lines, one per finished request.

No prompt or answer is stored: times, token counts, how an answer ended, and its predicted length. The first line
names the engine and the start time; `engine` lines are the engine's gauges, the last line the predictor's counts.
Times are seconds since the first line.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, fields
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, Literal, Self

from lengthwise.errors import InputError
from lengthwise.traffic.rows import PredictionSource

FORMAT: Final = 1

End = Literal["whole", "cut", "left", "refused", "broken", "unmeasured"]
"""whole: ended by itself. cut: by max_tokens. left: the client disconnected, or this proxy stopped. refused: an error
status of the engine. broken: the connection to the engine was lost. unmeasured: ended, length not known."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Header:
    """The engine and the start time of the log."""

    engine: str
    predictor: str
    began: float
    """Seconds since the epoch."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Entry:
    """One request. None means unknown; prediction_sigma 0 is a client's hint."""

    arrival_s: float
    finished_s: float
    end: End
    llm: str
    streamed: bool
    first_token_s: float | None = None
    prompt_tokens: int | None = None
    prompt_bytes: int = 0
    """Size of the body, from which prompt_tokens are estimated if the engine does not report them."""
    output_tokens: int | None = None
    exact: bool = True
    """False if the tokens are a count of events."""
    one_answer: bool = True
    max_tokens: int | None = None
    source: PredictionSource = "prior"
    prediction_mu: float | None = None
    prediction_sigma: float | None = None


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """An engine's KV memory."""

    kv_tokens: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Gauges:
    """The engine's load at a time, as reported."""

    at_s: float
    running: int
    waiting: int
    kv_use: float | None = None


@dataclass(frozen=True, slots=True)
class PredictorAccount:
    """Counts of the predictor, written at the end."""

    asked: int
    answered: int
    failed: int
    dropped: int
    cpu_s: float
    mean_age_s: float
    """Mean time from a request to its prediction."""


_KINDS: Final[dict[str, type[Header | Entry | Gauges | EngineMemory | PredictorAccount]]] = {
    "shadow": Header,
    "request": Entry,
    "engine": Gauges,
    "memory": EngineMemory,
    "account": PredictorAccount,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


class ShadowLog:
    """A log, open for writing inside `with`. A full disk does not stop requests: it is logged once."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.failed = 0
        self._header = header
        self._stream: TextIOWrapper | None = None

    def __enter__(self) -> Self:
        if not self.path.parent.is_dir():
            raise InputError("its folder does not exist", source=self.path, hint=f"make {self.path.parent} first")
        try:
            self._stream = self.path.open("x", encoding="utf-8")
        except FileExistsError as error:
            raise InputError("exists already", source=self.path, hint="name another with --log") from error
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", source=self.path) from error
        self.add(self._header)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def add(self, record: Header | Entry | Gauges | EngineMemory | PredictorAccount) -> None:
        """Append a record and flush."""
        if self._stream is None:
            raise RuntimeError("a ShadowLog is open inside `with` only")
        try:
            self._stream.write(json.dumps({"kind": _NAMES[type(record)], **asdict(record)}) + "\n")
            self._stream.flush()
        except OSError as error:
            self.failed += 1
            if self.failed == 1:
                _log.warning("%s cannot be written (%s): requests are served, the log is incomplete", self.path, error)


@dataclass(frozen=True)
class Logged:
    """The content of a log, requests in order of arrival."""

    header: Header
    entries: tuple[Entry, ...]
    gauges: tuple[Gauges, ...]
    memory: EngineMemory | None
    account: PredictorAccount | None


def read_log(path: Path) -> Logged:
    """Read a log; an incomplete last line is dropped, any other invalid line raises InputError."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"cannot be read: {reason}", source=path, hint="give a log of `lengthwise shadow`") from error
    records = [_record(line, row, path) for row, line in enumerate(lines, start=1)]
    if not records or not isinstance(records[0], Header):
        raise InputError("is not a log of `lengthwise shadow`", source=path, hint="its first line says so")
    if records[0].format > FORMAT:
        raise InputError(f"has format {records[0].format}, newer than {FORMAT}", source=path, hint="update lengthwise")
    entries = sorted((record for record in records if isinstance(record, Entry)), key=lambda entry: entry.arrival_s)
    return Logged(
        records[0],
        tuple(entries),
        tuple(record for record in records if isinstance(record, Gauges)),
        next((record for record in records if isinstance(record, EngineMemory)), None),
        next((record for record in reversed(records) if isinstance(record, PredictorAccount)), None),
    )


def _record(line: str, row: int, path: Path) -> Any:  # one of the kinds
    try:
        record = json.loads(line)
        kind = _KINDS[record["kind"]]
        known = {field.name for field in fields(kind)}
        return kind(**{name: value for name, value in record.items() if name in known})
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("is not a record of a shadow's log", source=path, row=row, hint="remove that line") from error
