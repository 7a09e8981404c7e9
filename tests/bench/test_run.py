"""`lengthwise bench` on a real vLLM, the one that the tests share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lengthwise.bench.analysis import analyse
from lengthwise.bench.episodes import ORACLE, Kind, TrafficPlan, arms_of
from lengthwise.bench.run import BenchPlan, BenchProgress, BenchServer, capacity, run_bench
from lengthwise.bench.store import BenchStore, read_measured
from lengthwise.client.client import EngineClient
from lengthwise.client.load import LoadPlan, LoadReport, Sample
from lengthwise.errors import InputError
from lengthwise.vllm.embedded import EmbeddedEngine
from lengthwise.workloads import Workload
from lengthwise.workloads.formats import write_workload
from tests.conftest import BENCH_TOKEN


@pytest.fixture
def plan(tmp_path: Path) -> BenchPlan:
    path = tmp_path / "w.parquet"
    columns = {
        "arrival_s": np.arange(12.0),
        "input_tokens": np.full(12, 5),
        "output_tokens": np.arange(1, 13),
        "prompt": [f"Number {number}?" for number in range(12)],
    }
    write_workload(Workload.from_table(columns, name="w"), path)
    traffic = TrafficPlan(llm=None, workload=str(path), cap=8, longest_prompt=100)
    return BenchPlan([Kind.of("burst")], arms_of(["lengthwise"], ["fast", ORACLE], noise=False), 1, traffic, requests=6)


async def policy_of(url: str, token: str) -> str:
    async with EngineClient(url, connect_timeout_s=10, silence_timeout_s=60, keep=False) as client:
        server = await BenchServer.connect(client, token)
        return str((await server.restore())["policy"])


@pytest.mark.engine
def test_a_real_engine_is_measured_resumed_and_restored(
    embedded_engine: EmbeddedEngine, plan: BenchPlan, tmp_path: Path
) -> None:
    store = BenchStore(tmp_path / "out")
    messages: list[str] = []
    bars: list[str] = []
    progress = BenchProgress(messages.append, lambda what, _: bars.append(what))
    asyncio.run(run_bench(plan, store, embedded_engine.url, BENCH_TOKEN, progress))
    assert [*dict.fromkeys(bars)][:2] == ["warm-up", "capacity"], "an engine's first requests compile kernels"
    assert asyncio.run(policy_of(embedded_engine.url, BENCH_TOKEN)) == "sjf"
    rows = store.rows()
    assert len(rows) == 3 * 6
    by_arm = [rows.filter(rows["place"].to_numpy() == place) for place in range(3)]
    for name in ("due_s", "prompt", "output_tokens", "input_tokens"):
        assert by_arm[0][name].equals(by_arm[1][name]), "every arm serves the same requests"
        assert by_arm[0][name].equals(by_arm[2][name])
    assert by_arm[0]["mu"].null_count == 6
    assert store.episodes()[1]["predictions"]["asked"] >= 6, "an answer of one token may end before its prediction"
    assert analyse(read_measured(store)).arms[0].requests == 6
    before = len(messages)
    asyncio.run(run_bench(plan, store, embedded_engine.url, BENCH_TOKEN, progress))
    assert "0 episodes" in messages[before], "a complete measurement is not run again"


@pytest.mark.engine
def test_with_own_answers_every_arm_serves_the_same_prompts(
    embedded_engine: EmbeddedEngine, plan: BenchPlan, tmp_path: Path
) -> None:
    own = replace(plan, arms=arms_of(["sjf"], ["fast"], noise=False), traffic=replace(plan.traffic, own_answers=True))
    store = BenchStore(tmp_path / "out")
    asyncio.run(run_bench(own, store, embedded_engine.url, BENCH_TOKEN, BenchProgress(print, lambda *_: None)))
    rows = store.rows()
    fcfs, sjf = (rows.filter(rows["place"].to_numpy() == place) for place in range(2))
    assert fcfs["prompt"].equals(sjf["prompt"])
    assert max(rows["output_tokens"].to_pylist()) <= own.traffic.cap
    assert [each["probe"] for each in store.episodes()] == [None, None]
    assert store.episodes()[1]["predictions"]["asked"] < 2 * len(sjf), "only those of this episode"


def test_oracle_needs_forced_lengths_and_a_probe_needs_own_answers(plan: BenchPlan) -> None:
    own = replace(plan.traffic, own_answers=True)
    with pytest.raises(InputError, match="leave out oracle"):
        replace(plan, traffic=own)
    with pytest.raises(InputError, match="leave out inverted"):
        replace(plan, arms=arms_of(["sjf"], ["inverted"], noise=False), traffic=own)
    with pytest.raises(InputError, match="add --own-answers"):
        replace(plan, arms=arms_of(["srpt"], ["fast+probe"], noise=False))


@pytest.mark.engine
def test_a_wrong_token_is_refused_before_anything_is_measured(
    embedded_engine: EmbeddedEngine, plan: BenchPlan, tmp_path: Path
) -> None:
    store = BenchStore(tmp_path / "out")
    with pytest.raises(InputError, match="no bench switch, or another token"):
        asyncio.run(run_bench(plan, store, embedded_engine.url, "guess", BenchProgress(print, lambda *_: None)))
    assert not store.episodes()


def test_capacity_counts_the_time_in_which_all_slots_are_busy() -> None:
    # Two slots, 10 tokens/s each: four requests of 10 tokens and then one of 100 that runs alone.
    report = LoadReport(5, LoadPlan("http://localhost"))
    for row, (first, finished, tokens) in enumerate([(0, 1, 10), (0, 1, 10), (1, 2, 10), (1, 2, 10), (2, 12, 100)]):
        report.samples.append(Sample(row, 0.0, tokens, 0.0, float(first), float(finished), tokens))
    assert capacity(report, slots=2) == pytest.approx(20 / 28)
