"""Questions between the workers of one gateway, so that an answer of any worker covers all.

With `--workers N` each worker answers on a Unix socket in the workers' private folder. Nothing is exchanged unless a
worker asks, and a worker alone has no others.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

_log = logging.getLogger(__name__)

_ANSWER_S: Final = 2.0
_SIZE_BYTES: Final = 8


class WorkerExchange:
    """Asks the workers of a gateway, and answers them."""

    def __init__(self) -> None:
        self._answers: dict[str, Callable[[Any], bytes]] = {}
        self._folder: Path | None = None
        self.number = 0

    def join(self, folder: Path, number: int) -> None:
        """Be worker `number` of those whose sockets are in `folder`."""
        self._folder, self.number = folder, number

    @property
    def joined(self) -> bool:
        """Whether it is one of several workers."""
        return self._folder is not None

    def answer(self, question: str, with_: Callable[[Any], bytes]) -> None:
        """Answer a question by a function of its argument, which is JSON."""
        self._answers[question] = with_

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer the other workers, if there are any."""
        if self._folder is None:
            yield
            return
        path = self._folder / f"{self.number}.sock"
        path.unlink(missing_ok=True)  # of a worker that died
        try:
            server = await asyncio.start_unix_server(self._serve, path)
        except OSError as error:  # a path of more than 107 bytes
            _log.warning("other workers do not show the requests of worker %d: %s", self.number, error)
            yield
            return
        try:
            yield
        finally:
            server.close()

    async def ask(self, question: str, argument: object) -> dict[int, bytes]:
        """Return this worker's answer, and those of the others that give one within 2 s, by number."""
        others: dict[int, Path] = {}
        if self._folder is not None:
            others = {int(path.stem): path for path in self._folder.glob("*.sock") if int(path.stem) != self.number}
        line = json.dumps([question, argument]).encode() + b"\n"
        answers = await asyncio.gather(*(_ask(path, line) for path in others.values()))
        found = {number: answer for number, answer in zip(others, answers, strict=True) if answer is not None}
        return {self.number: self._answer(line), **found}

    def _answer(self, line: bytes) -> bytes:
        question, argument = json.loads(line)
        return self._answers[question](argument)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):  # the other worker has ended
                answer = self._answer(await reader.readline())
                writer.write(len(answer).to_bytes(_SIZE_BYTES) + answer)
                await writer.drain()
        except (ValueError, TypeError, LookupError) as error:
            _log.warning("worker %d does not answer another worker: %.300r", self.number, error)
        writer.close()


async def _ask(path: Path, line: bytes) -> bytes | None:
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):  # it stops, starts or is busy
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(line)
                return await reader.readexactly(int.from_bytes(await reader.readexactly(_SIZE_BYTES)))
            finally:
                writer.close()
    return None
