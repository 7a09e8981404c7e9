"""Answers kept as they come: a header with the settings, then one JSON line each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Self

from lengthwise.errors import InputError
from lengthwise.workloads.files import atomic_path


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: to which prompt, the how-manieth, and how long it was."""

    prompt: str
    sample: int
    tokens: int
    capped: bool
    input_tokens: int


class Journal:
    """Open for more answers inside `with`; what an earlier run with the same settings left is in `answers`.

    A last line cut short by a crash is forgotten.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        self._settings = settings
        self._stream: TextIOWrapper | None = None
        self.answers: dict[tuple[str, int], Answer] = {}

    def __enter__(self) -> Self:
        header, found = self._read()
        if header is not None and header != self._settings:
            raise InputError(
                f"was begun with other settings ({_difference(header, self._settings)})",
                source=self._path,
                hint="ask for the same again, or remove it to begin afresh",
            )
        self.answers = {(answer.prompt, answer.sample): answer for answer in found}
        # Written anew, since a line that was cut short must not run into the next.
        with atomic_path(self._path) as fresh:
            lines = [self._settings, *map(asdict, found)]
            fresh.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        self._stream = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def add(self, answer: Answer) -> None:
        """Keep one more, at once."""
        if self._stream is None:
            raise RuntimeError("a Journal is written inside `with`")
        self._stream.write(json.dumps(asdict(answer)) + "\n")
        self._stream.flush()

    def _read(self) -> tuple[Any, list[Answer]]:
        if not self._path.is_file():
            return None, []
        try:
            pieces = self._path.read_text(encoding="utf-8").split("\n")[:-1]
            lines = [json.loads(piece) for piece in pieces]
            return (lines[0], [Answer(**line) for line in lines[1:]]) if lines else (None, [])
        except (ValueError, TypeError) as error:
            raise InputError("is not a journal of answers", source=self._path, hint="remove it") from error


def _difference(begun: Any, wanted: dict[str, Any]) -> str:  # noqa: ANN401  (whatever the file holds)
    if not isinstance(begun, dict):
        return "no header"
    return ", ".join(f"{key} {begun.get(key)!r}, now {now!r}" for key, now in wanted.items() if begun.get(key) != now)
