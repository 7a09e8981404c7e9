"""The demo's page in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.demo.conftest import SMALL, running_demo
from tests.gateway.browser_page import browser_page
from tests.reports.browser import find_browser

PIXELS = "board.context.getImageData(0, 0, board.canvas.width, board.canvas.height).data"
SIDES = "state.frame && state.frame.sides"


@pytest.mark.anyio
async def test_the_race_runs_can_be_changed_and_ends_with_a_verdict(short_answers: str) -> None:
    with running_demo(*SMALL, "--from", short_answers, "--load", "1.5") as (url, _):
        async with browser_page() as page:
            await page.open(url, width=1440, height=900, scheme="dark")
            await page.until("document.querySelector('#status').className === 'live'")
            await page.until(f"{SIDES}.every(side => side.slots.length > 0 && side.queue.length > 0)")
            await page.until(f"boards.every(board => {PIXELS}.some(value => value))")
            await page.until(f"{SIDES}.every(side => side.within != null && side.answered > 5)")
            assert "%" in await page.evaluate("document.querySelector('#side-1 .within').textContent")
            assert "requests wait" in await page.evaluate("document.querySelector('#side-0 canvas').ariaLabel")
            await page.until("document.querySelectorAll('#curve-0 .line').length > 0")

            await page.evaluate("document.querySelector('#load').focus()")
            await page.press("ArrowRight")
            await page.until("state.frame.load > 1.5")
            await page.evaluate("document.querySelector('#predictors [value=\"true lengths\"]').click()")
            await page.until("state.frame.predictor === 'true lengths'")
            await page.evaluate(
                "const p = document.querySelector('#policy'); p.value = 'sjf'; p.dispatchEvent(new Event('change'))"
            )
            await page.until("document.querySelector('#policy-name').textContent === 'sjf'")
            await page.until(f"{SIDES}[1].answered > 25")
            await page.evaluate("document.querySelector('#finish').click()")
            await page.until("state.frame.verdict", timeout_s=180.0)
            words = await page.evaluate("document.querySelector('#verdict').innerText")
            assert "sjf" in words
            assert "lengthwise serve --engine" in words

            await page.evaluate("document.querySelector('#restart').click()")
            await page.until("state.frame.lap === 2 && state.frame.state === 'running'")
            await page.until("document.querySelector('#verdict').hidden")
            await page.until(f"{SIDES}.every(side => side.slots.length > 0)")
            assert page.errors == []
            assert {address.split("/", 3)[2] for address in page.urls if address.startswith("http")} == {
                url.removeprefix("http://").rstrip("/")
            }


def test_a_race_is_recorded_to_its_verdict(short_answers: str, tmp_path: Path) -> None:
    find_browser()  # skips where there is none
    path = tmp_path / "demo.webp"
    options = ("--from", short_answers, "--load", "1.2", "--seconds", "5", "--record", str(path))
    with running_demo(*SMALL, *options) as (_, process):
        _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    with Image.open(path) as film:
        assert film.format == "WEBP"
        assert getattr(film, "n_frames", 1) >= 2


@pytest.mark.anyio
async def test_the_page_fits_a_phone_has_both_colours_and_names_for_screen_readers() -> None:
    with running_demo(*SMALL) as (url, _):
        async with browser_page() as page:
            await page.open(url, width=390, height=844, scheme="light")
            await page.until(f"{SIDES}.every(side => side.slots.length > 0)")
            overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.evaluate(overflow) <= 0
            background = "getComputedStyle(document.body).backgroundColor"
            light = await page.evaluate(background)
            await page.evaluate("document.querySelector('#theme').focus()")
            await page.press("Space")
            assert await page.evaluate(background) != light
            assert await page.controls_without_name() == []
            assert page.errors == []
