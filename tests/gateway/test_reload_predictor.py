"""A running gateway loads a new model file; an invalid one changes nothing."""

from __future__ import annotations

import asyncio
import logging
import math
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.gateway import GatewayConfig
from lengthwise.predictors import PredictionInput, load_predictor
from lengthwise.predictors.learner import Learner
from lengthwise.predictors.model_file import LEARNED, read_model_file, write_model_file
from lengthwise.predictors.resolve import packaged_predictors, predictor_label
from tests.gateway.helpers import body, gateway, post, until

pytestmark = pytest.mark.anyio


def write_file(path: Path, shift: float) -> Path:
    """Write `fast` with another median for one model."""
    file = read_model_file(packaged_predictors()["fast"])
    learner = Learner(load_predictor("fast"))
    for number in range(100):
        request = PredictionInput(f"Why is the sky blue? {number}", "stand-in")
        learner.observe(request, round(math.exp(float(learner.alone([request]).mu[0]) + shift)))
    card = {key: value for key, value in file.card.items() if key != "format"}
    write_model_file(path, card, {**file.parts, LEARNED: learner.learned({"stand-in"})})
    return path


async def health(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.get(url + "/health") as response:
        return dict(await response.json())


async def median(http: aiohttp.ClientSession, url: str) -> float:
    sent = {"model": "stand-in", "prompt": "Why is the sky blue?", "max_tokens": 8000}
    async with http.post(url + "/lengthwise/v1/predict", json=sent) as response:
        return float((await response.json())["quantiles"]["0.5"])


async def until_version(http: aiohttp.ClientSession, url: str, path: Path) -> None:
    wanted = predictor_label(path)

    async def used() -> bool:
        return bool((await health(http, url))["predictor_version"] == wanted)

    await until(used, 60)


async def test_a_new_file_is_loaded_under_load_without_losing_a_request(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    path = write_file(tmp_path / "my.lw", 0.0)
    statuses, swapped = [], asyncio.Event()

    async def clients(url: str) -> None:
        while not swapped.is_set():
            statuses.append((await post(http, url, body(prompt="Why is the sky blue?")))[0])

    with gateway(engine_url, predictor=str(path), policy="sjf", watch=True) as url:
        before = await median(http, url)
        work = [asyncio.create_task(clients(url)) for _ in range(2)]
        write_file(path, 1.0)
        await until_version(http, url, path)
        swapped.set()
        await asyncio.gather(*work)
        assert await median(http, url) == pytest.approx(before * 2.718, rel=0.05)
        state = (await health(http, url))["watch"]
    assert set(statuses) == {200}
    assert (state["file"], state["error"]) == (str(path), None)
    assert state["since"] > 1.7e9


async def test_an_invalid_file_changes_nothing_and_is_reported_until_a_valid_one_arrives(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_file(tmp_path / "my.lw", 0.0)
    good, first = path.read_bytes(), predictor_label(path)

    with gateway(engine_url, predictor=str(path), watch=True) as url, caplog.at_level(logging.WARNING):

        async def refused() -> bool:
            return (await health(http, url))["watch"]["error"] is not None

        for bad in (good[: len(good) // 2], b"not a model"):
            path.write_bytes(bad)
            await until(refused, 60)
            found = await health(http, url)
            assert "is not a complete model file" in found["watch"]["error"]
            assert found["predictor_version"] == first
            assert (await post(http, url, body()))[0] == 200
        assert f"the predictor stays {first}; its new version is not used" in caplog.text
        write_file(path, 0.5)
        await until_version(http, url, path)
        assert (await health(http, url))["watch"]["error"] is None


async def test_a_model_file_that_appears_in_the_traffic_log_replaces_the_packaged_predictor(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    with gateway(engine_url, predictor="fast", log=tmp_path, watch=True) as url:
        assert (await health(http, url))["predictor_version"] == predictor_label("fast")
        assert (await health(http, url))["predictor"] == "fast"
        await until_version(http, url, write_file(tmp_path / "predictor.lw", 0.5))
        assert (await health(http, url))["predictor"] == str(tmp_path / "predictor.lw")


def test_watch_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no file to watch"):
        GatewayConfig.model_validate({"engines": ["http://x"], "watch": True})
