"""Server-sent events: the only reader of an engine's event stream.

Bytes go in as they arrive; complete lines and the payloads of their events come out. An event of an engine has one
`data:` line. Functions take complete lines, as `EventReader` returns them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

from lengthwise.client.client import EngineBrokenError, EngineResponse

DONE: Final = b"[DONE]"
"""The last payload of a stream in OpenAI's completion APIs."""
EVENT_ENDS: Final = b"\n\n", b"\r\n\r\n"
"""How the bytes of a complete event end."""
MAX_LINE: Final = 1 << 25
"""Bytes of one line, which is held until it is complete."""

_DATA: Final = b"data:"
_DELTA: Final = re.compile(rb"^event: ?\S+delta\r?$", re.MULTILINE)


class EventReader:
    """Returns complete lines of a stream that arrives in any pieces, and holds the start of an incomplete one."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = b""
        """The start of a line whose end has not arrived."""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that `data` completes; EngineBrokenError if one is longer than 32 MiB."""
        if self.held:
            data = self.held + data
        if data.endswith(b"\n"):
            self.held = b""
            return data
        end = data.rfind(b"\n") + 1
        self.held = data[end:]
        if len(self.held) > MAX_LINE:
            raise EngineBrokenError("the engine sent a line that is too long")
        return data[:end]


def payload(line: bytes) -> bytes | None:
    """Return the data of a line; None if it has none: a comment, a field of another name, a blank line."""
    return line[len(_DATA) :].strip() if line.startswith(_DATA) else None


def payloads(lines: bytes) -> list[bytes]:
    """Return the data of each event."""
    return [line[len(_DATA) :].strip() for line in lines.splitlines() if line.startswith(_DATA)]


def count_events(lines: bytes) -> int:
    """Return the number of events with data."""
    return lines.count(b"\ndata:") + lines.startswith(b"data:")


def count_deltas(lines: bytes) -> int:
    """Return the number of events whose name ends with `delta`, as in the Responses and Messages APIs."""
    return len(_DELTA.findall(lines))


def is_done(lines: bytes) -> bool:
    """Whether one of the events is `[DONE]`."""
    return DONE in lines and DONE in payloads(lines)


async def read_events(answer: EngineResponse) -> AsyncIterator[list[bytes]]:
    """Yield the payloads of the events that have arrived, each time that some bytes arrive."""
    reader = EventReader()
    while data := await answer.chunk():
        yield payloads(reader.feed(data))
