"""An engine for the soak, which fails at random: `python -m benchmarks.faulty_engine PORT SEED ANSWER_S JOURNAL`.

It notes which requests it has executed and answered whole, by their field `user`. No module but the standard library's
is imported, so that a killed one is back soon.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

RESPONSES: Final = "/v1/responses"
UNREAD_TOKENS: Final = 2_000_000
"""The longest answer, one byte each."""
FAULTS: Final = {
    "none": 940,
    "500": 10,
    "503": 20,  # a 429 is the gateway's
    "lost before the answer": 10,
    "lost within the answer": 10,
    "garbage": 6,
    "brackets": 2,
    "hang": 2,
}
_MODELS: Final = b'{"data":[{"id":"stand-in"}]}'
_NAME: Final = re.compile(rb'"user":\s*"([^"]*)"')
_TOKENS: Final = re.compile(rb'"max_(?:output_)?tokens":\s*(\d+)')


def _answer(status: int, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} ?\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class FaultyEngine:
    """An engine on one port that fails at random, and writes down which requests it executed and answered."""

    def __init__(self, seed: int, answer_s: float, journal: Path) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._answer_s = answer_s
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def serve(self, port: int) -> None:
        """Serve until the process is killed."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=1000)
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, EOFError):
            while await self._exchange(reader, writer):
                await writer.drain()
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(length[1]) if length else 0)
        path = head.split()[1].decode()
        if not head.startswith(b"POST"):
            writer.write(_answer(200, _stored(path) if RESPONSES in path else _MODELS if "models" in path else b""))
            return True
        fault = self._random.choices(list(FAULTS), list(FAULTS.values()))[0]
        found = _TOKENS.search(body)
        tokens = min(int(found[1]) if found else 5, UNREAD_TOKENS)
        await asyncio.sleep(self._random.expovariate(1 / self._answer_s) * (2 if tokens > 100 else 1))
        if fault == "503":
            writer.write(_answer(503, b'{"error":{"message":"at random"}}'))
            return True
        name = _NAME.search(body)
        self._note(name, b"executed")
        whole = _whole(path, tokens, stream=re.search(rb'"stream":\s*true', body) is not None)
        match fault:
            case "none":
                self._note(name, b"answered")
                writer.write(whole)
                return True
            case "500":
                writer.write(_answer(500, b'{"error":{"message":"at random"}}'))
                return True
            case "hang":
                await reader.read()  # until the gateway gives up
            case "lost within the answer":
                writer.write(whole[: len(whole) // 2])
            case "garbage":
                writer.write(self._random.randbytes(50))
            case "brackets":
                writer.write(_answer(200, b"[" * 100_000))
        return False

    def _note(self, name: re.Match[bytes] | None, what: bytes) -> None:
        if name is not None:
            os.write(self._journal, b"%s %s\n" % (name[1], what))


_ids = itertools.count()


def _stored(path: str) -> bytes:
    """Return an answer of /v1/responses: the engine has one for every id."""
    found = {"id": path.removeprefix(RESPONSES).split("/")[1], "object": "response", "status": "completed"}
    return json.dumps({**found, "output": [], "usage": {"input_tokens": 1, "output_tokens": 5}}).encode()


def _whole(path: str, tokens: int, *, stream: bool) -> bytes:
    """Return a complete answer."""
    usage = {"prompt_tokens": 1, "completion_tokens": tokens}
    if path == RESPONSES:
        return _answer(200, _stored(f"{RESPONSES}/resp_{os.getpid()}x{next(_ids)}"))
    if not stream:
        choices = [{"index": 0, "text": "x" * tokens, "finish_reason": "stop"}]
        return _answer(200, json.dumps({"choices": choices, "usage": usage}).encode())
    pieces = ["x" * (tokens // 5)] * 5
    events: list[Any] = [{"choices": [{"index": 0, "text": piece, "finish_reason": None}]} for piece in pieces]
    events += [{"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
    data = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events)
    return _answer(200, data + b"data: [DONE]\n\n", "text/event-stream")


if __name__ == "__main__":
    port, seed, answer_s, journal = sys.argv[1:]
    asyncio.run(FaultyEngine(int(seed), float(answer_s), Path(journal)).serve(int(port)))
