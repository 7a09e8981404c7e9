"""A race as a small animation: screenshots of the page in headless Chromium, one WebP file."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Self

from lengthwise.errors import InputError
from lengthwise.files import atomic_path

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS: Final = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--hide-scrollbars",
)
_WIDTH: Final = 1280
_HEIGHT: Final = 860
_SHOWN_WIDTH: Final = 880
_EVERY_S: Final = 0.4
_FASTER: Final = 2.0  # it plays, than the race was
_LAST_S: Final = 5.0  # of the verdict
_QUALITY: Final = 40
_ANSWERS_IN_S: Final = 60.0
# The browser reads file 3 and writes file 4.
_START: Final = (
    "import os, sys; r, w, *run = sys.argv[1:]; os.dup2(int(r), 3); os.dup2(int(w), 4); os.execv(run[0], run)"
)


class Recording:
    """Records the race at a URL until its verdict; what is missing is an error before anything starts."""

    def __init__(self, path: Path) -> None:
        from PIL import Image  # an extra

        browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
        if browser is None:
            raise InputError(
                "a recording needs Chromium, which is not found", hint="install chromium, or drop --record"
            )
        self._image, self._browser, self._path = Image, browser, path

    async def __call__(self, url: str) -> None:
        """Record the page, and write the file."""
        shots: list[tuple[float, bytes]] = []  # with the time of each: a busy machine takes fewer
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with _Chromium(self._browser, folder) as page:
                await page.open(url)
                while not await page.evaluate("Boolean(state.frame && state.frame.verdict)"):
                    began = time.monotonic()
                    shots.append((began, await page.screenshot()))
                    await asyncio.sleep(max(0.0, _EVERY_S - (time.monotonic() - began)))
                await asyncio.sleep(1.0)  # until the verdict has moved in
                shots.append((time.monotonic(), await page.screenshot()))
        await asyncio.to_thread(self._write, shots)

    def _write(self, shots: list[tuple[float, bytes]]) -> None:
        size = (_SHOWN_WIDTH, _SHOWN_WIDTH * _HEIGHT // _WIDTH)
        images = [self._image.open(io.BytesIO(shot)).convert("RGB").resize(size) for _, shot in shots]
        until = [at for at, _ in shots[1:]]
        durations = [round(1000 * (end - at) / _FASTER) for (at, _), end in zip(shots, until, strict=False)]
        durations.append(round(1000 * _LAST_S))
        with atomic_path(self._path) as path:
            images[0].save(
                path, "WEBP", save_all=True, append_images=images[1:], duration=durations, loop=0, quality=_QUALITY,
                method=4, kmax=30,
            )  # fmt: skip


class _Chromium:
    """A headless browser with one page, driven over its DevTools pipe: JSON that ends in a zero byte."""

    def __init__(self, browser: str, folder: str) -> None:
        self._browser, self._folder = browser, folder
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None

    async def __aenter__(self) -> Self:
        to_browser, self._out = os.pipe()
        answers, from_browser = os.pipe()
        flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={self._folder}"]
        start = [sys.executable, "-c", _START, str(to_browser), str(from_browser), self._browser]
        null = subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            *start, *flags, "--remote-debugging-pipe", "about:blank", pass_fds=(to_browser, from_browser),
            stdin=null, stdout=null, stderr=null, process_group=0,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        reader = asyncio.StreamReader(limit=1 << 26)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(answers, "rb", 0)
        )
        self._reading = asyncio.create_task(self._read(reader))
        try:
            target = await self.call("Target.createTarget", url="about:blank")
            attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        except BaseException:
            await self.__aexit__()
            raise
        self._session = attached["sessionId"]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        self._transport.close()
        os.close(self._out)
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # the browser has ended
            while True:
                message = json.loads((await reader.readuntil(b"\0"))[:-1])
                if (answer := self._answers.pop(message.get("id"), None)) is not None and not answer.done():
                    answer.set_result(message)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._failed())

    def _failed(self) -> InputError:
        return InputError(f"{self._browser} does not answer", hint="try another Chromium, or drop --record")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        try:
            os.write(self._out, json.dumps(message).encode() + b"\0")
            found = await asyncio.wait_for(answer, _ANSWERS_IN_S)
        except (BrokenPipeError, TimeoutError):
            raise self._failed() from None
        result: dict[str, Any] = found.get("result", {})
        return result

    async def open(self, url: str) -> None:
        """Open a page in dark colours, and wait for its first frame."""
        size = {"width": _WIDTH, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await self.call("Emulation.setEmulatedMedia", features=dark)
        await self.call("Page.navigate", url=url)
        while not await self.evaluate("typeof state === 'object' && Boolean(state.frame)"):
            await asyncio.sleep(0.1)

    async def evaluate(self, script: str) -> Any:
        """Return the value of a script."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return found.get("result", {}).get("value")

    async def screenshot(self) -> bytes:
        """Return a picture of the page."""
        found = await self.call("Page.captureScreenshot", format="jpeg", quality=92)
        return base64.b64decode(found["data"])
