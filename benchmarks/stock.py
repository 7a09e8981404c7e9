"""Throughput of a backlog on our scheduler and on stock vLLM: `python -m benchmarks.stock OURS STOCK`.

Two running servers with the same LLM and options, OURS with our scheduler and a bench token, STOCK without. STOCK is
started with VLLM_SERVER_DEV_MODE=1, so that its prefix cache can be cleared. In a block stock vLLM, the plug-in's fcfs
and every other policy serve the same requests, all sent at once, one server at a time; the next block has other
requests and the reverse order. Throughput: tokens per second until only as many requests are left as there are slots,
because the end of a drain depends on the last answer. Rows are written to --out as JSON. --slots is the
--max-num-seqs of both servers, --per-slot the requests of the backlog for each, --scale a factor on lengths.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path
from typing import Any

from benchmarks import add_options
from lengthwise.bench.episodes import Arm, Kind, TrafficPlan, arms_of, draw, load_prompts
from lengthwise.bench.run import BenchServer, capacity
from lengthwise.client.client import EngineClient
from lengthwise.client.load import LoadPlan, LoadReport, run_load
from lengthwise.intervals import over_pairs
from lengthwise.reports.tables import multiple
from lengthwise.vllm.bench_switch import TOKEN_VARIABLE
from lengthwise.workloads import Workload

STOCK = "stock"
PATIENCE_S = 600.0


async def stock_episode(url: str, workload: Workload) -> LoadReport:
    """Send the backlog to stock vLLM, its prefix cache cleared."""
    async with EngineClient(url, keep=False) as client:
        answer = await client.post("/reset_prefix_cache", b"", {})
        answer.close()
        if answer.status != 200:
            raise SystemExit(f"{url} answers {answer.status}; start it with VLLM_SERVER_DEV_MODE=1")
    return await backlog(url, workload, [{"temperature": 0.0}] * len(workload))


async def our_episode(url: str, token: str, arm: Arm, plan: TrafficPlan, workload: Workload) -> LoadReport:
    """Send the backlog to our scheduler under a policy, everything learned cleared."""
    async with EngineClient(url, silence_timeout_s=PATIENCE_S, keep=False) as client:
        server = await BenchServer.connect(client, token)
        await server.begin(arm, plan)
        try:
            extras = [
                {"temperature": 0.0, "vllm_xargs": {"bench_token": token, "bench_row": row, "cap": plan.cap}}
                for row in range(len(workload))
            ]
            return await backlog(url, workload, extras)
        finally:
            await server.end()
            await server.restore()


async def backlog(url: str, workload: Workload, extras: list[dict[str, Any]]) -> LoadReport:
    """Send all requests at once; every answer has the workload's length."""
    plan = LoadPlan(url, timeout_s=PATIENCE_S, extras=extras)
    report = LoadReport(len(workload), plan)
    await run_load(workload, report, lambda: None)
    if report.errors or report.lengths_differ or report.interrupted:
        raise SystemExit(f"{url}: failed {report.errors}, {report.lengths_differ} answers of another length")
    return report


async def measure(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per episode."""
    plan = TrafficPlan(cap=asked.cap, scale=asked.scale, seed=asked.seed)
    prompts = load_prompts(plan)
    arms: list[Arm | None] = [None, *arms_of(asked.policy, [asked.predictor], noise=False)]
    rows = []
    for block in range(asked.blocks):
        drawn = draw(prompts, plan, Kind("backlog", None), block, n=asked.per_slot * asked.slots, capacity=1.0)
        for arm in arms if block % 2 == 0 else reversed(arms):
            if arm is None:
                report = await stock_episode(asked.stock, drawn.workload)
            else:
                report = await our_episode(asked.ours, asked.token, arm, plan, drawn.workload)
            rate = capacity(report, asked.slots) * float(drawn.workload.output_tokens.mean())
            row = {
                "block": block,
                "arm": STOCK if arm is None else arm.label,
                "requests": len(drawn.workload),
                "tokens_per_s": rate,
                "makespan_s": report.summary().makespan_s,
            }
            rows.append(row)
            print(
                f"block {block + 1}, {row['arm']}: {rate:,.0f} tokens/s, makespan {row['makespan_s']:.1f} s", flush=True
            )
            asked.out.write_text(json.dumps({"slots": asked.slots, "rows": rows}, indent=1))
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("ours", help="URL of vLLM with our scheduler")
    arguments.add_argument("stock", help="URL of vLLM without it")
    add_options(arguments, slots=256, per_slot=6, blocks=4, policy=("lengthwise",), predictor="default", cap=2048)
    add_options(arguments, scale=1.0, seed=0, token=os.environ.get(TOKEN_VARIABLE), out=Path("stock.json"))
    rows = asyncio.run(measure(arguments.parse_args()))
    by_arm: dict[str, dict[int, float]] = {}
    for row in rows:
        by_arm.setdefault(row["arm"], {})[row["block"]] = row["tokens_per_s"]
    blocks = sorted(by_arm[STOCK])
    for arm, rates in by_arm.items():
        if arm != STOCK:
            ratio = over_pairs([rates[b] for b in blocks], [by_arm[STOCK][b] for b in blocks])
            print(f"{arm} over stock: {multiple(ratio)}, {len(blocks)} blocks")


if __name__ == "__main__":
    main()
