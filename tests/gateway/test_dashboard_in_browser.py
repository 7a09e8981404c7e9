"""The dashboard in a real browser, with live traffic through simulated engines."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from lengthwise.client.simulated_server import SimulatedEngines
from lengthwise.gateway import dashboard
from lengthwise.gateway.keys import add_key
from tests.gateway.browser_page import browser_page
from tests.gateway.helpers import CHAT, TOKEN, gateway

pytestmark = pytest.mark.anyio

LAST_POINT = r"""Math.max(...[...document.querySelectorAll('#series .line')].flatMap(line =>
  [...line.getAttribute('d').matchAll(/[ML]([\d.]+)/g)].map(found => Number(found[1]))))
  / document.querySelector('#series').clientWidth"""


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    with SimulatedEngines("2*llama-3-8b@a100?speed=20&max_num_seqs=4") as started:
        yield started.urls


@asynccontextmanager
async def traffic(url: str, key: str | None = None, clients: int = 16) -> AsyncIterator[None]:
    """Send streams of different lengths; each client sends one after the other."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    numbers = itertools.count()

    async def client(http: aiohttp.ClientSession) -> None:
        while True:
            number = next(numbers)
            xargs = {"simulated_tokens": (3, 40, 200, 900)[number % 4]}
            words = {"messages": [{"role": "user", "content": f"a question with the number {number}"}]}
            sent = {"model": "llama-3-8b", "stream": True, "vllm_xargs": xargs, **words}
            async with http.post(url + CHAT, json=sent, headers=headers) as response:
                await response.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        tasks = [asyncio.create_task(client(http)) for _ in range(clients)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_token_in_the_address_switches_the_policy_and_is_shown_no_longer(engines: list[str]) -> None:
    with gateway(*engines, policy="fair(fcfs)") as url:
        async with browser_page() as page:
            await page.open(f"{url}/#token={TOKEN}", width=1600, height=1000, scheme="dark")
            await page.until("document.querySelector('#status').className === 'live'")
            assert await page.evaluate("location.href") == f"{url}/"
            await page.until("state.last !== null")
            await page.evaluate("document.querySelector('#switch').click()")
            await page.until("document.querySelector('#switch-dialog').open")
            assert await page.evaluate("document.querySelector('#switch-policy').value") == "fair(fcfs)"
            assert await page.evaluate("document.querySelector('#switch-access').hidden"), "the token is known"
            await page.type("sjf")
            note = await page.evaluate("document.querySelector('#switch-note').textContent")
            assert note == "This drops fair(...): write fair(sjf) to keep it."
            await page.press("Enter")
            await page.until("document.querySelector('#policy').textContent === 'sjf'")


async def test_an_administrator_can_switch_the_policy_and_run_what_if(
    engines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_MAX_ANSWER_S", 300.0)  # the machine may be busy
    keys = tmp_path / "keys.json"
    admin, client = add_key(keys, "ops", {"admin": True}), add_key(keys, "chat", {})
    with gateway(*engines, keys=str(keys), in_flight=4, policy="fcfs") as url:
        remote = url.replace("127.0.0.1", "gateway.test")  # not a local host name: a key is required
        async with traffic(url, client), browser_page() as page:
            await page.open(remote, width=1600, height=1000, scheme="dark")
            await page.until("document.querySelector('#key-dialog').open")
            await page.type(admin)
            await page.press("Enter")
            await page.until("document.querySelector('#status').className === 'live'")
            refused = [error for error in page.errors if "401" not in error]  # the browser logs the 401
            assert refused == []
            page.errors.clear()

            await page.until("document.querySelectorAll('#lane-queue .row').length > 0")
            await page.until("document.querySelectorAll('#lane-slots .row').length > 0")
            await page.until("document.querySelectorAll('#lane-ended .row').length > 0")
            await page.until("/M/.test(document.querySelector('#scatter .dots').getAttribute('d'))")
            words = await page.evaluate("document.querySelector('#engines').innerText")
            assert "engine-0" in words
            assert "%" in words  # KV and prefix hits as the engine reports them
            label = "document.querySelector('#lane-ended .row').ariaLabel"
            assert "prompt of" in await page.evaluate(label)

            await page.evaluate("document.querySelector('#switch').focus()")
            await page.press("Enter")
            await page.until("document.querySelector('#switch-dialog').open")
            await page.type("no_such_policy")
            await page.press("Enter")
            assert "no_such_policy" in await page.until("document.querySelector('#switch-error').textContent")
            await page.evaluate("document.querySelector('#switch-policy').select()")
            await page.type("sjf")
            await page.press("Enter")
            await page.until("document.querySelector('#policy').textContent === 'sjf'")
            assert not await page.evaluate("document.querySelector('#switch-dialog').open")
            page.errors[:] = [error for error in page.errors if "400" not in error]

            await page.evaluate("document.querySelector('#lane-slots .row').click()")
            await page.until("document.querySelector('#request-dialog').open")
            await page.until("/reason|ended/.test(document.querySelector('#request-facts').innerText)")
            await page.evaluate("document.querySelector('#request-close').click()")
            page.errors[:] = [error for error in page.errors if "404" not in error]  # it may have ended meanwhile

            await page.until("document.querySelectorAll('#lane-ended .row').length > 0")
            ended = await page.evaluate("document.querySelector('#lane-ended .row').title")
            assert re.search(r"request \d+, chat, .* tokens, median .* on engine-[01] in .*, of which it waited", ended)
            await page.until("state.series.length > 0")
            assert await page.evaluate(LAST_POINT) > 0.7
            assert await page.evaluate(f"state.last.now += 1000; drawLatency(); {LAST_POINT}") < 0.5, (
                "the axis ends now"
            )
            await page.until("state.ended.length >= 60")
            await page.evaluate("document.querySelector('#what-if .primary').click()")
            answer = await page.until(
                "!document.querySelector('#what-if .primary').disabled && document.querySelector('#answers').innerText",
                timeout_s=300.0,
            )
            assert "on 2 engines" in answer
            assert page.errors == []
            assert {address.split("/", 3)[2] for address in page.urls if address.startswith("http")} == {
                remote.removeprefix("http://")
            }


async def test_the_page_fits_a_phone_has_both_colours_and_names_for_screen_readers(engines: list[str]) -> None:
    with gateway(*engines, in_flight=4) as url:
        async with traffic(url, clients=6), browser_page() as page:
            await page.open(url, width=390, height=844, scheme="light")
            await page.until("document.querySelectorAll('#lane-slots .row').length > 0")
            overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.evaluate(overflow) <= 0
            background = "getComputedStyle(document.body).backgroundColor"
            light = await page.evaluate(background)
            await page.evaluate("document.querySelector('#theme').focus()")
            await page.press("Space")
            assert await page.evaluate(background) != light
            assert await page.controls_without_name() == []
            assert page.errors == []
