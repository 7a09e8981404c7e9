"""What an operator gains who cannot add our scheduler: `python -m benchmarks.stock_order OURS STOCK --out FOLDER`.

Two running servers with the same LLM and options take turns. OURS has our scheduler and a bench token. STOCK is vLLM as
it comes, with `--scheduling-policy priority`, `--middleware benchmarks.forced_lengths.ForcedLengths` and
VLLM_SERVER_DEV_MODE=1 (its prefix cache is cleared between episodes):

    scripts/gpu_bench.sh stock-priority FOLDER SLOTS

In a block these arms serve the same burst, the next block another one in the reverse order; the client sends to the
engine or to a gateway of ours that was started for the block and has learned nothing:

    fcfs                      stock vLLM, no gateway
    fcfs, gateway             stock vLLM behind a gateway that passes everything on at once (--gateway-alone)
    lengthwise, priority      the gateway passes everything on at once, and the order as each request's `priority`
    lengthwise, held          the gateway holds requests back: as many run as the engine has slots
    lengthwise, engine        our scheduler inside vLLM, no gateway

The gateway does not know a length: it is in a field that only the middleware reads. FOLDER is laid out as that of
`lengthwise bench`: `lengthwise bench --no-run --out FOLDER` prints the table, ratios to stock vLLM within each block.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks import add_options
from benchmarks.forced_lengths import FIELD
from benchmarks.gateway import gateway, ours
from lengthwise.bench.analysis import analyse
from lengthwise.bench.episodes import DEFAULT_LLM, FCFS, Arm, Draw, Kind, TrafficPlan, Turn, draw, load_prompts
from lengthwise.bench.report import bench_tables
from lengthwise.bench.run import BenchServer, episode_table
from lengthwise.bench.store import BenchStore, read_measured
from lengthwise.client.client import EngineClient
from lengthwise.client.load import LoadPlan, LoadReport, run_load
from lengthwise.vllm.bench_switch import TOKEN_VARIABLE

PASSED: Final = "fcfs, gateway"
PRIORITY: Final = "lengthwise, priority"
HELD: Final = "lengthwise, held"
ENGINE: Final = "lengthwise, engine"
UNBOUNDED: Final = 4096
"""In flight: more than an episode has requests."""
PREDICTOR_LOADS_S: Final = 6.0
PATIENCE_S: Final = 600.0


def options_of(arm: Arm, slots: int) -> list[str]:
    """Return the gateway's options for an arm."""
    in_flight = slots if arm.policy == HELD else UNBOUNDED
    policy = FCFS if arm.policy == PASSED else "lengthwise"
    return ["--policy", policy, "--in-flight", str(in_flight)]


@contextmanager
def gateways(stock: str, arms: list[Arm], slots: int) -> Iterator[dict[Arm, str]]:
    """Run a fresh gateway for each arm that needs one; yield their URLs."""
    with ExitStack() as stack:
        found = {
            arm: stack.enter_context(
                gateway(arm.label, ours([stock], arm.predictor, *options_of(arm, slots)), ready="/ready")
            ).url
            for arm in arms
            if arm.policy in (PASSED, PRIORITY, HELD)
        }
        if found:
            time.sleep(PREDICTOR_LOADS_S)
        yield found


async def stock_episode(stock: str, url: str, drawn: Draw, cap: int) -> LoadReport:
    """Send a burst to stock vLLM, or to a gateway in front of it, with an empty prefix cache."""
    async with EngineClient(stock, keep=False) as client:
        answer = await client.post("/reset_prefix_cache", b"", {})
        answer.close()
        if answer.status != 200:
            raise SystemExit(f"{stock} answers {answer.status}; start it with VLLM_SERVER_DEV_MODE=1")
    extras = [
        {"temperature": 0.0, "ignore_eos": True, "max_tokens": cap, "vllm_xargs": {FIELD: length}}
        for length in drawn.workload.output_tokens.tolist()
    ]
    return await _sent(LoadPlan(url, DEFAULT_LLM, free=True, timeout_s=PATIENCE_S, extras=extras), drawn)


async def engine_episode(ours_url: str, token: str, arm: Arm, plan: TrafficPlan, drawn: Draw) -> LoadReport:
    """Send a burst to our scheduler, everything learned cleared."""
    async with EngineClient(ours_url, silence_timeout_s=PATIENCE_S, keep=False) as client:
        server = await BenchServer.connect(client, token)
        await server.begin(Arm("lengthwise", arm.predictor), plan)
        try:
            extras = [
                {"temperature": 0.0, "vllm_xargs": {"bench_token": token, "bench_row": row, "cap": plan.cap}}
                for row in range(len(drawn.workload))
            ]
            return await _sent(LoadPlan(ours_url, server.model, timeout_s=PATIENCE_S, extras=extras), drawn)
        finally:
            await server.end()
            await server.restore()


async def _sent(plan: LoadPlan, drawn: Draw) -> LoadReport:
    report = LoadReport(len(drawn.workload), plan)
    await run_load(drawn.workload, report, lambda: None)
    lengths = drawn.workload.output_tokens.tolist()
    if report.errors or [each.output_tokens for each in sorted(report.samples, key=lambda s: s.request)] != lengths:
        raise SystemExit(f"{plan.url}: failed {report.errors}, or answers of another length")
    return report


async def measure(asked: argparse.Namespace, store: BenchStore) -> None:
    """Run the blocks that the folder does not have."""
    plan, kind = (
        TrafficPlan(cap=asked.cap, scale=asked.scale, longest_prompt=asked.longest_prompt, seed=asked.seed),
        Kind.of("burst"),
    )
    prompts, n = load_prompts(plan), asked.per_slot * asked.slots
    arms = [Arm(FCFS), *([Arm(PASSED)] if asked.gateway_alone else [])]
    arms += [Arm(policy, name) for name in asked.predictor for policy in (PRIORITY, HELD, ENGINE)]
    store.update({
        "traffic": asdict(plan), "arms": [asdict(arm) for arm in arms], "requests": n, "data": prompts.origin,
        "left_out": prompts.left_out, "engine": {"engine": "vLLM", "model": DEFAULT_LLM, "max_num_seqs": asked.slots},
        "capacity": asked.capacity, "machine": asked.machine,
    })  # fmt: skip
    for block in range(asked.blocks):
        order = arms if block % 2 == 0 else arms[::-1]
        block_turns = [Turn(kind, block, place, arm) for place, arm in enumerate(order)]
        if store.has(block_turns):
            continue
        drawn = draw(prompts, plan, kind, block, n=n, capacity=asked.capacity)
        episodes: list[dict[str, Any]] = []
        tables: list[pa.Table] = []
        with gateways(asked.stock, arms, asked.slots) as urls:
            for turn in block_turns:
                began = time.time()
                if turn.arm.policy == ENGINE:
                    report = await engine_episode(asked.ours, asked.token, turn.arm, plan, drawn)
                else:
                    report = await stock_episode(asked.stock, urls.get(turn.arm, asked.stock), drawn, asked.cap)
                made = report.summary()
                print(f"block {block + 1}, {turn.arm.label}: mean {made.e2e_s.mean:.2f} s", flush=True)
                episodes.append({
                    "kind": kind.name, "block": block, "place": turn.place, **asdict(turn.arm), "began": began,
                    "makespan_s": made.makespan_s, "late_s": report.late_s, "schedule_ms": float("nan"),
                })  # fmt: skip
                tables.append(episode_table(turn, drawn, report, {"rows": []}))
        store.add(episodes, pa.concat_tables(tables))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", help="URL of vLLM with our scheduler")
    parser.add_argument("stock", help="URL of vLLM without it")
    add_options(parser, slots=32, per_slot=12, blocks=4, predictor=("fast",), capacity=10.0, gateway_alone=False)
    add_options(parser, cap=2048, scale=1.0, longest_prompt=1024, seed=0, machine=None)
    add_options(parser, token=os.environ.get(TOKEN_VARIABLE), out=Path("out/stock-order"))
    asked = parser.parse_args()
    store = BenchStore(asked.out)
    with store.locked():
        asyncio.run(measure(asked, store))
    for table in bench_tables(analyse(read_measured(store))):
        print(table)


if __name__ == "__main__":
    main()
