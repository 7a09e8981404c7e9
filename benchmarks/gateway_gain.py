"""What the gateway brings end to end: simulated engines in real time, bursts that drain, the same traffic for each arm.

    python -m benchmarks.gateway_gain [--seeds 8] [--speed 2] [--predictor fast] [--out rows.parquet]
    python -m benchmarks.gateway_gain simulated [--seeds 8]                      # the same bursts in the simulator

Four simulated engines (`lengthwise engine --simulated`), a gateway as its own process and an open-loop client. A seed
is one burst: CASTILLO's test prompts with lengths of Llama-3.1-8B arrive at twice the fleet's capacity until 12
requests per slot have arrived, then the fleet drains. Each arm gets the same arrivals, prompts and lengths, with fresh
engines and a fresh gateway. The gateway does not know a length: it is in a field that only simulated engines read.
Requests wait in the gateway (--in-flight is the engines' slots). Times are the engines' seconds, so --speed cancels
out. `simulated` replays the bursts in the simulator: the two arms on the same fleet, the same with bursts three times
as long, and policies on one engine with the slots of all four.

Ratios are baseline / arm, above 1 is better: geometric means over seeds with a paired bootstrap interval. `late` is the
most that the machine was behind the simulated engines: far above a step of 12 ms, rerun with a lower --speed.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import add_options
from benchmarks.gateway import gateway, ours
from lengthwise.bench.episodes import DEFAULT_LLM, Kind, TrafficPlan, draw, load_prompts
from lengthwise.client.load import LoadPlan, LoadReport, run_load
from lengthwise.client.simulated_server import SimulatedEngines
from lengthwise.intervals import over_pairs
from lengthwise.reports.tables import multiple
from lengthwise.simulator import Fleet, measure_capacity, simulate
from lengthwise.workloads import Workload

ENGINES: Final = 4
PER_SLOT: Final = 12
WARM_UP_S: Final = 6.0  # until a gateway's predictor is loaded
FIGURES: Final = ("per_token", "mean", "p50", "p99", "throughput")
SINGLE_QUEUE_POLICIES: Final = ("lengthwise", "sjf", "srpt", "bounded(sjf)", "slo")


BASELINE: Final = "round_robin + fcfs"


def command(arm: str, urls: Sequence[str], slots: int) -> list[str]:
    """Return the gateway of an arm: the baseline, or "lengthwise, PREDICTOR"."""
    if arm == BASELINE:
        return ours(urls, "none", "--in-flight", str(slots), "--router", "round_robin", "--policy", "fcfs")
    return ours(urls, arm.removeprefix("lengthwise, "), "--in-flight", str(slots))


@dataclass(frozen=True)
class Episode:
    """The measurements of one arm on one burst, in the engines' seconds."""

    figures: dict[str, float]
    e2e_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    tokens: np.ndarray[tuple[int], np.dtype[np.int64]]
    late_s: float


def episode(arm: str, spec: str, workload: Workload, slots: int, speed: float) -> Episode:
    lengths = workload.output_tokens.tolist()
    extras = [{"vllm_xargs": {"simulated_tokens": length}} for length in lengths]
    with SimulatedEngines(spec) as engines, gateway(arm, command(arm, engines.urls, slots), ready="/ready") as one:
        time.sleep(WARM_UP_S)
        report = LoadReport(len(workload), LoadPlan(one.url, speed=speed, free=True, extras=extras))
        asyncio.run(run_load(workload, report, lambda: None))
        metrics = "\n".join(urllib.request.urlopen(engine + "/metrics").read().decode() for engine in engines.urls)  # noqa: S310
    assert not report.errors, report.errors
    samples = sorted(report.served, key=lambda sample: sample.request)
    assert [sample.output_tokens for sample in samples] == lengths
    sent, finished = (np.array([getattr(s, name) for s in samples]) * speed for name in ("arrival_s", "finished_s"))
    e2e_s, tokens = finished - sent, np.array(lengths)
    figures = {
        "per_token": float((e2e_s / tokens).mean()),
        "mean": float(e2e_s.mean()),
        "p50": float(np.quantile(e2e_s, 0.5)),
        "p99": float(np.quantile(e2e_s, 0.99)),
        "throughput": float((finished.max() - sent.min()) / len(samples)),  # seconds per request: less is better
    }
    late = max(map(float, re.findall(r"^simulated_late_seconds (\S+)", metrics, re.MULTILINE)))
    return Episode(figures, e2e_s, tokens, late)


def bursts(fleet: Fleet, options: argparse.Namespace, per_slot: int = PER_SLOT) -> list[Workload]:
    plan, n = TrafficPlan(seed=options.first), per_slot * fleet.slots
    prompts = load_prompts(plan)
    backlog = draw(prompts, plan, Kind.of("backlog"), 0, n=n, capacity=1.0).workload
    capacity = measure_capacity(backlog, fleet).requests_per_s
    print(f"{fleet}, {fleet.slots} slots; {n} requests per burst at 2 x {capacity:.1f} "
          f"requests/s, {prompts.origin}", flush=True)  # fmt: skip
    return [
        draw(prompts, plan, Kind.of("burst"), seed, n=n, capacity=capacity).workload for seed in range(options.seeds)
    ]


def print_ratios(name: str, base: Sequence[dict[str, float]], here: Sequence[dict[str, float]]) -> None:
    for figure in FIGURES:
        ratio = over_pairs([each[figure] for each in base], [each[figure] for each in here])
        print(f"{name:32} {figure:12} {multiple(ratio)}", flush=True)


def run_simulated(options: argparse.Namespace) -> None:
    fleet = Fleet.parse(f"{ENGINES}*{options.engine}").limited_to(max_num_seqs=options.slots)
    one = Fleet.parse(f"1*{options.engine}").limited_to(max_num_seqs=ENGINES * options.slots)
    predictors = [*options.predictor, "oracle"]
    pairs = [("lengthwise", "lengthwise", predictor) for predictor in predictors]
    single = [(policy, "round_robin", predictors[0]) for policy in SINGLE_QUEUE_POLICIES]
    for place, per_slot, arms in ((fleet, PER_SLOT, pairs), (fleet, 3 * PER_SLOT, pairs), (one, PER_SLOT, single)):
        workloads = bursts(place, options, per_slot)
        base = [simulated_figures(workload, place, "fcfs", "round_robin", "none") for workload in workloads]
        for policy, router, predictor in arms:
            here = [simulated_figures(workload, place, policy, router, predictor) for workload in workloads]
            print_ratios(f"{policy}, {predictor}", base, here)


def simulated_figures(workload: Workload, fleet: Fleet, policy: str, router: str, predictor: str) -> dict[str, float]:
    summary = simulate(workload, fleet, policy, router=router, predictor=predictor).summary
    e2e = summary.e2e_s
    return {
        "per_token": summary.per_token_s.mean,
        "mean": e2e.mean,
        "p50": e2e.p50,
        "p99": e2e.p99,
        "throughput": 1 / summary.requests_per_s,
    }


def run(options: argparse.Namespace) -> list[pa.Table]:
    arms = (BASELINE, *(f"lengthwise, {predictor}" for predictor in options.predictor))
    limits = f"speed={options.speed:g}&max_num_seqs={options.slots}"
    spec = f"{ENGINES}*{options.engine}?{limits}&model={DEFAULT_LLM}&chunk_s=1"
    fleet = Fleet.parse(f"{ENGINES}*{options.engine}").limited_to(max_num_seqs=options.slots)
    workloads = bursts(fleet, options)
    n = len(workloads[0])
    episodes: dict[str, list[Episode]] = {arm: [] for arm in arms}
    rows = []
    for seed, workload in enumerate(workloads):
        for arm in arms if seed % 2 == 0 else tuple(reversed(arms)):
            done = episode(arm, spec, workload, options.slots, options.speed)
            episodes[arm].append(done)
            rows.append(pa.table({
                "arm": [arm] * n, "seed": [seed] * n, "e2e_s": done.e2e_s.astype(np.float32),
                "tokens": done.tokens.astype(np.int32),
            }))  # fmt: skip
            shown = "  ".join(f"{name} {done.figures[name]:.4g}" for name in FIGURES)
            print(f"  seed {seed} {arm:32} {shown}  late {done.late_s:.3f} s", flush=True)
    for arm in arms[1:]:
        print_ratios(arm, [e.figures for e in episodes[BASELINE]], [e.figures for e in episodes[arm]])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("gain", "simulated"), default="gain")
    add_options(parser, seeds=8, first=0, speed=2.0, slots=8, engine="llama-3-8b@a100", predictor=("fast",), out=None)
    options = parser.parse_args()
    if options.what == "simulated":
        run_simulated(options)
        return
    rows = run(options)
    if options.out:
        pq.write_table(pa.concat_tables(rows), options.out, compression="zstd")


if __name__ == "__main__":
    main()
