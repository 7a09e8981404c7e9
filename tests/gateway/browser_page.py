"""A page in headless Chromium, driven over its DevTools protocol: keys, layout and console."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.reports.browser import FLAGS, find_browser

START_S = 60.0
HOST_RULES = "--host-resolver-rules=MAP gateway.test 127.0.0.1"  # a host name that is not local


class BrowserPage:
    """One tab. `errors` has exceptions, console errors and failed loads; `urls` every requested address."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self.errors: list[str] = []
        self.urls: list[str] = []

    async def listen(self) -> None:
        """Receive answers and events until the browser ends."""
        async for message in self._socket:
            data = json.loads(message.data)
            if "id" in data:
                self._answers.pop(data["id"]).set_result(data)
            else:
                self._on_event(data["method"], data["params"])

    def _on_event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        found = await asyncio.wait_for(answer, 60.0)
        assert "error" not in found, found
        result: dict[str, Any] = found["result"]
        return result

    async def open(self, url: str, *, width: int, height: int, scheme: str) -> None:
        mobile = width < 600
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )
        await self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await self.send("Page.navigate", url=url)
        await self.until("location.protocol === 'http:' && document.readyState === 'complete'")

    async def evaluate(self, script: str) -> Any:
        found = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str, timeout_s: float = 60.0) -> Any:
        """Wait until a script is true, and return its value."""
        end = time.monotonic() + timeout_s
        while not (found := await self.evaluate(script)):
            assert time.monotonic() < end, f"{script} did not become true; errors: {self.errors}"
            await asyncio.sleep(0.1)
        return found

    async def press(self, key: str) -> None:
        text = {"Enter": "\r", "Space": " "}.get(key)
        code = {"Enter": 13, "Space": 32, "Tab": 9, "Escape": 27, "ArrowRight": 39}[key]
        name = " " if key == "Space" else key
        common = {"key": name, "code": key, "windowsVirtualKeyCode": code}
        await self.send("Input.dispatchKeyEvent", type="keyDown", **common, **({} if text is None else {"text": text}))
        await self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text: str) -> None:
        await self.send("Input.insertText", text=text)

    async def controls_without_name(self) -> list[str]:
        """Return the roles of controls and images without a name for screen readers."""
        await self.send("Accessibility.enable")
        nodes = (await self.send("Accessibility.getFullAXTree"))["nodes"]
        roles = {"button", "textbox", "checkbox", "combobox", "image", "img", "figure", "dialog", "list", "region"}
        return [
            node["role"]["value"]
            for node in nodes
            if not node.get("ignored")
            and node["role"]["value"] in roles
            and not node.get("name", {}).get("value")
            and node["role"]["value"] != "figure"
        ]

    async def screenshot(self, path: Path) -> None:
        found = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def browser_page() -> AsyncIterator[BrowserPage]:
    """Start a browser with one empty page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = [flag for flag in FLAGS if not flag.startswith("--window-size")]
        command = [find_browser(), *flags, HOST_RULES, "--remote-debugging-port=0", f"--user-data-dir={folder}"]
        null = subprocess.DEVNULL
        process = subprocess.Popen([*command, "about:blank"], stdout=null, stderr=null)
        try:
            port = await _port(Path(folder) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as http:
                async with http.get(f"http://127.0.0.1:{port}/json") as response:
                    target = next(each for each in await response.json() if each["type"] == "page")
                async with http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = BrowserPage(socket)
                    listening = asyncio.create_task(page.listen())
                    for domain in ("Runtime", "Log", "Page", "Network"):
                        await page.send(f"{domain}.enable")
                    try:
                        yield page
                    finally:
                        listening.cancel()
        finally:
            process.terminate()
            process.wait()


async def _port(path: Path) -> int:
    end = time.monotonic() + START_S
    while not path.exists() or "\n" not in path.read_text():
        assert time.monotonic() < end, "the browser did not start"
        await asyncio.sleep(0.05)
    return int(path.read_text().splitlines()[0])
