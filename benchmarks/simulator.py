"""Requests simulated per CPU second, with targets and, if it is installed, DynoSim.

    LENGTHWISE_DATA=... python -m benchmarks.simulator [--quick]
    LENGTHWISE_DYNOSIM_PYTHON=/elsewhere/bin/python ...      # a Python with `ai-dynamo`: DynoSim in the same run

CPU time of one process with prefix cache, timeline, predictions and the policy's `keys`. "simulation" is `simulate` and
its summary, best of three, without loading the file; "process" is a fresh Python from start to end. Last, the cost of a
request behind each router, beside round robin in the same run: rounds of all routers alternate, and the best counts.
`--routed` measures only that.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import Figure, options
from lengthwise.policies import POLICIES
from lengthwise.routers import ROUTERS
from lengthwise.simulator import Fleet, Outcome, RequestPredictions, measure_capacity, predict_workload, simulate
from lengthwise.workloads import Workload, load_trace, redraw

TRACE = "conv_r8_n100000"
ENGINE = "llama-3-8b@a100"
RATE_PER_ENGINE = 5.0
PEER = "LENGTHWISE_DYNOSIM_PYTHON"
ROUNDS = 3
SEARCHING = ("e2", "e2_length")  # routers whose choice takes longer the more requests their window has
SEARCHED = 2000  # requests that they are measured with


def per_second(
    workload: Workload,
    fleet: Fleet,
    policy: str,
    predictions: str | RequestPredictions = "oracle",
    rounds: int = ROUNDS,
    router: str = "round_robin",
) -> tuple[float, Outcome]:
    """Return requests per CPU second of a simulation with its summary, the best of several rounds, and the outcome."""
    best, outcome = float("inf"), None
    for _ in range(rounds):
        start = time.process_time()
        outcome = simulate(workload, fleet, policy, router=router, predictor=predictions)
        assert outcome.summary.requests == len(workload)
        best = min(best, time.process_time() - start)
    assert outcome is not None
    return len(workload) / best, outcome


def child(*arguments: str, **environment: str) -> tuple[float, float, str]:
    """Return CPU seconds and peak megabytes of a fresh Python, and the line it prints before its peak, the last line.

    The child reports its peak, because the one that the parent sees includes the parent's memory at the fork.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(arguments, check=True, capture_output=True, text=True, env={**os.environ, **environment})  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    *_, result, peak_kb = done.stdout.split("\n")[:-1]
    return seconds, int(peak_kb) / 1024, result


_DYNOSIM = """
import sys
from importlib.metadata import version
import dynamo._core as core
trace, *limits = sys.argv[1:]
names = ("num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")
engine = {"backend": "vllm", **dict(zip(names, map(int, limits), strict=True))}
config = core._normalize_mocker_config({"engine": engine})
core.run_mocker_trace_replay([trace], extra_engine_args=config, num_workers=8, trace_block_size=512)
print(version("ai-dynamo"))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
_CHILD = f"""
import time
from lengthwise.simulator import Fleet, simulate
from lengthwise.workloads import load_trace
workload = load_trace("{TRACE}")
start = time.process_time()
simulate(workload.head(REQUESTS), Fleet.parse("8*{ENGINE}")).summary
print(time.process_time() - start)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def compilation() -> None:
    """Print the time of compilation, once per machine, and of loading compiled code at each start."""
    program = _CHILD.replace("REQUESTS", "10")
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = (float(child(sys.executable, "-c", program, NUMBA_CACHE_DIR=folder)[2]) for _ in range(2))
    print(f"compiling, once per machine: {cold - warm:.1f} CPU s; loading compiled code, each start: {warm:.2f} CPU s")


def process(requests: int) -> list[Figure]:
    seconds, megabytes, _ = child(sys.executable, "-c", _CHILD.replace("REQUESTS", str(requests)))
    name = "fcfs, 8 engines, process from start to end"
    return [Figure(name, requests / seconds, least=35_000, remark=f"{megabytes:.0f} MB, at most 400")]


def simulations(workload: Workload) -> list[Figure]:
    fleet = Fleet.parse(f"8*{ENGINE}")
    figures = [Figure("fcfs, 8 engines, simulation", per_second(workload, fleet, "fcfs")[0], least=50_000)]
    small = fleet.limited_to(kv_tokens=fleet.engines[0].kv_tokens // 4)
    busy = workload.replace(
        arrival_s=workload.arrival_s * (workload.rate / (1.1 * measure_capacity(workload, small).requests_per_s))
    )
    predictions = predict_workload(busy, "noisy:0.6")
    for policy in (*POLICIES, "slo:seconds=30"):
        rate, outcome = per_second(busy, small, policy, predictions)
        remark = f"{outcome.summary.preemptions:,} preemptions, mean {outcome.summary.e2e_s.mean:.0f} s"
        figures.append(Figure(f"{policy}, load 1.1, a quarter of the KV memory", rate, least=50_000, remark=remark))
    conversations = load_trace("mooncake_conversation")
    rate, outcome = per_second(conversations, fleet, "fcfs")
    cached = outcome.cached_tokens.sum() / outcome.input_tokens.sum()
    figures.append(
        Figure("Mooncake conversation with its hashes", rate, least=5_000, remark=f"{cached:.0%} of prompts cached")
    )
    return figures


def flatness(workload: Workload, counts: tuple[int, ...], engines: tuple[int, ...]) -> None:
    """Microseconds per request behind round robin at the same load per engine; largest over smallest at most 1.5."""
    for what, cases in (
        ("requests", [(n, 8) for n in counts]),
        ("engines", [(counts[1], number) for number in engines]),
    ):
        costs = []
        for n, number in cases:
            drawn = redraw(workload, requests=n, rate=RATE_PER_ENGINE * number, seed=1)
            rounds = max(2, 300_000 // n)  # short runs are noisy
            costs.append(1e6 / per_second(drawn, Fleet.parse(f"{number}*{ENGINE}"), "fcfs", rounds=rounds)[0])
        sizes = (n if what == "requests" else number for n, number in cases)
        text = ", ".join(f"{size:,}: {cost:.1f}" for size, cost in zip(sizes, costs, strict=True))
        spread = max(costs) / min(costs)
        verdict = "ok" if spread <= 1.5 else "MISSED"
        print(f"round robin, microseconds per request by {what}: {text}; spread {spread:.2f} ({verdict})")


def routed(workload: Workload, *, quick: bool) -> None:
    """Print the cost of a request behind each router; those of Preble search their window, and have no target."""
    routers = [name for name in ROUTERS if name not in (*SEARCHING, "round_robin")]
    for engines, requests, most in ((64, 20_000, 60.0), (1024, 20_000 if quick else 100_000, 120.0)):
        drawn = redraw(workload, requests=requests, rate=RATE_PER_ENGINE * engines, seed=1)
        fleet, oracle = Fleet.parse(f"{engines}*{ENGINE}"), predict_workload(drawn, "oracle")
        best = dict.fromkeys(("round_robin", *routers), float("inf"))
        for _ in range(1 if quick else ROUNDS):
            for router in best:
                took = 1e6 / per_second(drawn, fleet, "fcfs", oracle, rounds=1, router=router)[0]
                best[router] = min(best[router], took)
        few = drawn.head(SEARCHED)
        for router in SEARCHING:
            best[router] = (
                1e6 / per_second(few, fleet, "fcfs", oracle.take(slice(SEARCHED)), rounds=1, router=router)[0]
            )
        for router, took in best.items():
            remark = f"{took / best['round_robin']:.1f} times round robin" + (", at most 15" if engines == 64 else "")
            target = most if router in routers else None
            print(
                Figure(f"{router}, {engines:,} engines, microseconds per request", took, target, remark=remark),
                flush=True,
            )


def peer(workload: Workload) -> list[Figure]:
    """Run DynoSim on the same requests; its process from start to end, as it has no Python API for less."""
    python = os.environ.get(PEER)
    if python is None:
        print(f"DynoSim is not in this run: {PEER} names no Python with ai-dynamo")
        return []
    spec = Fleet.parse(ENGINE).engines[0]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        _write_trace(workload, trace)
        limits = (spec.kv_blocks, spec.block_size, spec.max_num_seqs, spec.max_num_batched_tokens)
        seconds, megabytes, version = child(python, "-c", _DYNOSIM, str(trace), *map(str, limits))
    remark = f"{megabytes:.0f} MB, ai-dynamo {version}"
    return [Figure("DynoSim, fcfs, 8 engines, process", len(workload) / seconds, remark=remark)]


def _write_trace(workload: Workload, path: Path) -> None:
    """Write Mooncake's lines with hashes that no two requests share; DynoSim requires hashes."""
    blocks = -(-workload.input_tokens // 512)
    firsts = np.cumsum(blocks) - blocks
    columns = (workload.arrival_s * 1e3, workload.input_tokens, workload.output_tokens, firsts, blocks)
    with path.open("w") as stream:
        for ms, prompt, answer, first, count in zip(*(column.tolist() for column in columns), strict=True):
            line = {"timestamp": ms, "input_length": prompt, "output_length": answer}
            stream.write(json.dumps({**line, "hash_ids": list(range(first, first + count))}) + "\n")


def main() -> None:
    given = options(__doc__, quick=False, routed=False)
    quick = given.quick
    workload = load_trace(TRACE)
    if quick:
        workload = workload.head(20_000)
    simulate(workload.head(100), Fleet.parse(ENGINE))  # compile or load the kernel
    if given.routed:
        routed(workload, quick=quick)
        return
    print(f"{len(workload):,} requests of {workload.name}, {ENGINE}; requests per CPU second, and the target")
    for figure in (*simulations(workload), *process(len(workload)), *peer(workload)):
        print(figure)
    compilation()
    flatness(
        workload, (10_000, 20_000) if quick else (10_000, 100_000, 1_000_000), (1, 8, 64) if quick else (1, 8, 64, 256)
    )
    routed(workload, quick=quick)


if __name__ == "__main__":
    main()
