"""The application on a real Ray cluster of three nodes, with simulated engines as replicas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from experiments.__main__ import main as experiments
from lengthwise.client.scrape import read_gauges
from lengthwise.client.simulated_server import SimulatedEngines
from lengthwise.errors import InputError
from lengthwise.ray.sweep import on_ray
from lengthwise.simulator.sweep import SweepConfig, run_sweep
from lengthwise.simulator.tasks import ResultCache, in_processes
from tests.gateway.helpers import until
from tests.ray.conftest import ENGINE, NODES, LocalCluster

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'lengthwise[ray]'")

pytestmark = pytest.mark.xdist_group("ray")


@dataclass(frozen=True)
class SimpleTask:
    key: str

    def run(self) -> dict[str, Any]:
        return {"key": self.key}


@dataclass
class Answer:
    status: int
    text: str
    replica: str | None
    cached_tokens: int
    whole: bool


@asynccontextmanager
async def client(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(60)) as http:

        async def healthy() -> bool:
            async with http.get("/health") as response:
                engines = (await response.json())["engines"] if await response.read() else []
                return response.status == 200 and all(engine["up"] for engine in engines)

        await until(healthy, 60.0)
        yield http


async def complete(
    http: aiohttp.ClientSession, prompt: str, tokens: int = 8, *, began: asyncio.Event | None = None, **fields: Any
) -> Answer:
    body = {"model": "llama-3-8b", "prompt": prompt, "vllm_xargs": {"simulated_tokens": tokens}, **fields}
    async with http.post("/v1/completions", json={"max_tokens": 4000, **body}) as response:
        replica = response.headers.get("x-lengthwise-replica")
        if began is not None:
            began.set()
        raw = await response.read()
    if not fields.get("stream"):
        content = json.loads(raw)
        if response.status != 200:
            return Answer(response.status, str(content), replica, 0, whole=False)
        cached = content["usage"]["prompt_tokens_details"]["cached_tokens"]
        return Answer(response.status, content["choices"][0]["text"], replica, cached, whole=True)
    events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
    text = "".join(event["choices"][0]["text"] for event in events if event.get("choices"))
    return Answer(response.status, text, replica, 0, whole=raw.rstrip().endswith(b"[DONE]"))


@pytest.fixture(scope="module")
def single_engine() -> Iterator[str]:
    with SimulatedEngines(ENGINE) as engines:
        yield engines.urls[0]


def test_answers_are_those_of_a_single_engine(application: LocalCluster, single_engine: str) -> None:
    prompts = [f"question {number}: " + "why " * number for number in range(12)]

    async def answers(url: str) -> list[tuple[int, str, bool]]:
        async with client(url) as http:
            calls = [
                complete(http, prompt, 5 + number, stream=number % 2 == 0) for number, prompt in enumerate(prompts)
            ]
            return [(each.status, each.text, each.whole) for each in await asyncio.gather(*calls)]

    clustered, single = asyncio.run(answers(application.url)), asyncio.run(answers(single_engine))
    assert clustered == single
    assert {status for status, _, whole in single if whole} == {200}


def test_a_prompt_goes_to_the_replica_that_has_its_prefix(application: LocalCluster) -> None:
    prefixes = [f"{name} " * 800 for name in ("alpha", "beta", "gamma")]

    async def converse() -> list[tuple[Answer, list[Answer]]]:
        async with client(application.url) as http:
            openers = await asyncio.gather(*(complete(http, prefix, 1000) for prefix in prefixes))
            followers = [[await complete(http, f"{prefix} and {n}") for n in range(3)] for prefix in prefixes]
            return list(zip(openers, followers, strict=True))

    conversations = asyncio.run(converse())
    assert len({opener.replica for opener, _ in conversations}) > 1
    for opener, followers in conversations:
        assert {each.replica for each in followers} == {opener.replica}
        assert min(each.cached_tokens for each in followers) >= 800


def test_a_client_that_disconnects_frees_its_slot_on_the_replica(application: LocalCluster) -> None:
    from ray import serve

    handle = serve.get_deployment_handle("engine", "lengthwise").options(stream=True)

    async def disconnect() -> None:
        async with client(application.url) as http:
            began = [asyncio.Event() for _ in range(6)]
            calls = [asyncio.create_task(complete(http, "x", 3900, began=each, stream=True)) for each in began]
            await asyncio.gather(*(each.wait() for each in began))
            for each in calls:
                each.cancel()
            await asyncio.wait(calls)

    def running(*avoid: str) -> tuple[str, int]:
        head, *rest = list(handle.forward.remote("GET", "/metrics", b"", [], avoid=avoid))
        found = read_gauges((head.body + b"".join(rest)).decode())
        return dict(head.headers)[b"x-lengthwise-replica"].decode(), 0 if found is None else found.running

    asyncio.run(disconnect())
    seen: tuple[str, ...] = ()
    for _ in range(NODES):
        replica, left = running(*seen)
        for _ in range(200):
            if not left:
                break
            _, left = running(*seen)
        assert left == 0
        seen += (replica,)
    assert len(set(seen)) == NODES


def test_a_sweep_on_the_cluster_gives_the_rows_of_this_machine_and_fills_the_cache(
    ray_cluster: LocalCluster, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "workload": "castillo",
        "fleet": "2*llama-3-8b@a100",
        "limits": {"max_num_seqs": 4},
        "requests": 40,
        "router": ["round_robin", "lengthwise"],
        "load": [0.9],
        "seeds": 2,
    }
    config = SweepConfig(**given)
    cache, address = ResultCache(tmp_path), ray_cluster.cluster.address
    there = run_sweep(config, cache, on_ray(address))
    assert there.computed > 0
    assert there.rows == run_sweep(config, ResultCache(tmp_path / "here"), in_processes(1)).rows
    again = run_sweep(config, cache, on_ray(address))
    assert (again.rows, again.computed) == (there.rows, 0)


def test_a_node_with_other_code_is_refused(ray_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.ray.sweep.code_version", lambda: "0.0.0+other")
    with pytest.raises(InputError, match=r"install the same version on every node"):
        list(on_ray(ray_cluster.cluster.address)([SimpleTask("a")]))


def test_a_study_on_the_cluster_is_cached_like_any_other(
    ray_cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["requests=64", "loads=0.9", "engines=2", "seeds=2", "workloads=react"]
    command = ["run", "router_grid", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    command += [part for setting in grid for part in ("--set", setting)]
    assert experiments([*command, "--ray", ray_cluster.cluster.address]) == 0
    assert experiments(command) == 0
    assert "from the cache" in capsys.readouterr().err


def test_a_killed_node_loses_no_request_that_has_no_first_byte(application: LocalCluster) -> None:
    tokens, streams = 1500, 24

    async def kill_a_node() -> list[Answer]:
        async with client(application.url) as http:
            began = [asyncio.Event() for _ in range(streams)]
            calls = [complete(http, f"s{n}", tokens, began=began[n], stream=True) for n in range(streams)]
            running = [
                asyncio.create_task(each) for each in [*calls, *(complete(http, f"w{n}", tokens) for n in range(24))]
            ]
            await asyncio.gather(*(each.wait() for each in began[:8]))
            await asyncio.to_thread(application.cluster.remove_node, application.nodes[0], allow_graceful=False)
            return list(await asyncio.gather(*running))

    async def afterwards() -> list[Answer]:
        async with client(application.url) as http:
            return list(await asyncio.gather(*(complete(http, f"after {n}") for n in range(8))))

    answers = asyncio.run(kill_a_node())
    broken = [number for number, each in enumerate(answers) if not each.whole]
    assert all(number < streams and answers[number].text for number in broken), "lost before its first byte"
    for number, each in enumerate(answers):
        assert each.status == 200
        assert number in broken or len(each.text.split()) == tokens
    survivors = {each.replica for each in asyncio.run(afterwards()) if each.whole}
    assert len(survivors) == NODES - 1
    assert {each.replica for each in answers[streams:]} <= survivors | {answers[number].replica for number in broken}
