"""CPU time of a routing decision: `python -m benchmarks.routing [--quick] [--write | --rates]`.

Microseconds of CPU time, less the cost of reading the clock: of hashing a prompt of 2,000 tokens, and of one choice
with all its work (look-up, cost, update). Prompts share 29 of their 31 blocks with one of the prefixes, all of them
cached on an engine; for each job that is sent another finishes, so that the number of live jobs is constant. The best
of three rounds, because other processes only add. E2, after Preble's code, and least_outstanding are in the same run.

Last, the time of each router per request of the paper's ReAct traffic (10 workloads, lengths 1 or 300, 128 requests
per second for 30 s), with 4 to 32 engines: the mean of the choice and of all later events of the request, in the better
of two rounds. `--write` measures only that and writes the times that `lengthwise simulate` charges each router
(src/lengthwise/simulator/routing_times.json).

`--rates` measures E2 and least_outstanding at 8 to 128 requests per second, lengths of 150, with 4, 8 and 32 engines:
the overheads that the text on figure 1C of length-aware Preble reports.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from benchmarks import Figure, cpu_microseconds, options
from experiments.routing import FIXED, VARIED, React
from lengthwise.lengths import LogT
from lengthwise.policies import Job
from lengthwise.prefixes import BLOCK_TOKENS, hash_tokens
from lengthwise.reports.page import processor_name
from lengthwise.routers import ROUTERS, Decision, EngineId, EngineInfo, Event, Finished, make_router
from lengthwise.simulator import Fleet, simulate
from lengthwise.simulator.routing import ROUTING_TIMES_FILE

TOKENS = 2000
SHARED, UNSHARED = 29, 2  # blocks of a prompt
LIVE_PER_ENGINE = 32
RATE_PER_ENGINE = 4.0
ROUNDS = 3
REACT_ENGINES = (4, 8, 16, 32)
REACT_RATE, REACT_S, REACT_ROUNDS = 128.0, 30.0, 2
PAPER_RATES, PAPER_ENGINES = (8.0, 16.0, 32.0, 64.0, 128.0), (4, 8, 32)


@dataclass(frozen=True)
class Setting:
    """Engines, the prefixes that they cache, and the number of timed choices."""

    engines: int
    prefixes: int
    choices: int

    @property
    def info(self) -> str:
        """Description of the setting."""
        blocks = self.prefixes * (SHARED + UNSHARED)
        return f"{self.engines:,} engines, {self.prefixes:,} prefixes, {blocks:,} blocks"

    def kv_tokens(self) -> int:
        """Return the KV tokens of one engine: enough for its share of the prefixes and its live jobs."""
        prompts = self.prefixes / self.engines + 4 * LIVE_PER_ENGINE
        return int(1.2 * prompts * (SHARED + UNSHARED) * BLOCK_TOKENS)


def hashing() -> Figure:
    """Time the hashing of a prompt, in the fastest of several rounds."""
    ids = np.random.default_rng(0).integers(0, 128_000, TOKENS).astype(np.uint32)
    took = cpu_microseconds(lambda: hash_tokens(ids), repeats=2000)
    return Figure(f"hash {TOKENS:,} tokens in blocks of {BLOCK_TOKENS}", took, 15)


def choices(spec: str, setting: Setting) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the microseconds of each timed choice, after every prefix was sent once."""
    rng = np.random.default_rng(0)
    prefixes = rng.integers(0, 2**64, (setting.prefixes, SHARED), dtype=np.uint64)
    router = make_router(spec)
    for number in range(setting.engines):
        router.engine_up(EngineInfo(number, kv_tokens=setting.kv_tokens(), block_tokens=BLOCK_TOKENS))
    predictions = [LogT(rng.normal(5.5, 0.8), rng.uniform(0.3, 1.0), 8192) for _ in range(64)]
    order = np.concatenate([rng.permutation(setting.prefixes), rng.integers(0, setting.prefixes, setting.choices)])
    live: deque[tuple[str, int | str]] = deque()
    took = np.zeros(len(order))
    for number, prefix in enumerate(order.tolist()):
        now = number / (RATE_PER_ENGINE * setting.engines)
        blocks = np.concatenate([prefixes[prefix], rng.integers(0, 2**64, UNSHARED, dtype=np.uint64)])
        job = Job(str(number), now, TOKENS, predictions[number % 64], 4096, blocks=blocks)
        among = [number % setting.engines] if number < setting.prefixes else None  # spread the prefixes at first
        start = time.process_time_ns()
        decision = router.choose(job, now, among)
        took[number] = time.process_time_ns() - start
        live.append((job.id, decision.engine))
        if len(live) > LIVE_PER_ENGINE * setting.engines:
            name, engine = live.popleft()
            router.observe(Finished(name, engine, now, 200, ttft_s=0.2))
    return (took[setting.prefixes :] - clock_ns()) / 1e3


def clock_ns() -> float:
    """Return the cost of reading the clock."""
    readings = [-time.process_time_ns() + time.process_time_ns() for _ in range(10_000)]
    return float(np.median(readings))


def measured(spec: str, setting: Setting, median: float | None, p99: float | None = None) -> list[Figure]:
    rounds = [np.quantile(choices(spec, setting), [0.5, 0.99]) for _ in range(ROUNDS)]
    middle, high = np.min(rounds, axis=0).tolist()
    return [
        Figure(f"{spec}, {setting.info}, median", middle, median),
        Figure(f"{spec}, {setting.info}, p99", high, p99),
    ]


class TimedRouter:
    """A router that measures the CPU time of its choices and events."""

    def __init__(self, spec: str) -> None:
        self._router = make_router(spec)
        self.name, self.uses_predictions = self._router.name, self._router.uses_predictions
        self.engine_up, self.engine_down = self._router.engine_up, self._router.engine_down
        self.took_ns, self.calls = 0, 0

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        start = time.process_time_ns()
        decision = self._router.choose(job, now, among)
        self._count(start)
        return decision

    def observe(self, event: Event) -> None:
        start = time.process_time_ns()
        self._router.observe(event)
        self._count(start)

    def _count(self, start: int) -> None:
        self.took_ns += time.process_time_ns() - start
        self.calls += 1


def per_request(spec: str, engines: int, requests: int, *, lengths: str = VARIED, rate: float = REACT_RATE) -> float:
    """Return the microseconds of a router per request of the paper's traffic, for its choice and its events."""
    workload = React(lengths, requests).draws(own_arrivals=False, slots=0)(0)
    workload = workload.replace(arrival_s=workload.arrival_s / rate)
    fleet = Fleet.parse(f"{engines}*mistral-7b@a6000")
    timed = TimedRouter(spec)
    simulate(workload, fleet, "fcfs", router=timed, predictor="oracle")
    return (timed.took_ns - timed.calls * clock_ns()) / requests / 1e3


def on_react(*, quick: bool) -> dict[str, dict[str, float]]:
    """Measure and print every router, by number of engines."""
    requests = int(REACT_RATE * REACT_S) // (16 if quick else 1)
    print(f"microseconds for a request of ReAct traffic, {REACT_RATE:g} requests/s, {requests:,} requests")
    print(f"{'engines':<20}" + "".join(f"{engines:>10}" for engines in REACT_ENGINES))
    found: dict[str, dict[str, float]] = {}
    for spec in ROUTERS:
        per_request(spec, 2, 100)  # compile or load the kernels
        found[spec] = {
            str(engines): round(min(per_request(spec, engines, requests) for _ in range(REACT_ROUNDS)), 1)
            for engines in REACT_ENGINES
        }
        print(f"{spec:<20}" + "".join(f"{us:>10,.1f}" for us in found[spec].values()), flush=True)
    return found


def by_rate(*, quick: bool) -> None:
    """Measure and print the overheads of figure 1C's text."""
    print(f"microseconds for a request of ReAct traffic, lengths {FIXED}, {REACT_S:g} s, by requests/s")
    print(f"{'engines':>7} {'router':<20}" + "".join(f"{rate:>10g}" for rate in PAPER_RATES))
    for spec in ("e2", "least_outstanding"):
        per_request(spec, 2, 100)  # compile or load the kernels
    for engines in PAPER_ENGINES:
        for spec in ("e2", "least_outstanding"):
            took = [
                min(
                    per_request(spec, engines, int(rate * REACT_S) // (4 if quick else 1), lengths=FIXED, rate=rate)
                    for _ in range(REACT_ROUNDS)
                )
                for rate in PAPER_RATES
            ]
            print(f"{engines:>7} {spec:<20}" + "".join(f"{us:>10,.1f}" for us in took), flush=True)


def write(us: dict[str, dict[str, float]]) -> None:
    """Write the times that routers are charged."""
    measured_times = {
        "command": "python -m benchmarks.routing --write",
        "processor": processor_name(),
        "traffic": f"ReAct, lengths {VARIED}, {REACT_RATE:g} requests/s for {REACT_S:g} s, mistral-7b@a6000",
        "us": us,
    }
    ROUTING_TIMES_FILE.write_text(json.dumps(measured_times, indent=2) + "\n", encoding="utf-8")
    print(f"written: {ROUTING_TIMES_FILE.name}")


def main() -> None:
    given = options(__doc__, quick=False, write=False, rates=False)
    quick = given.quick
    if given.rates:
        by_rate(quick=quick)
        return
    if given.write:
        write(on_react(quick=quick))
        return
    small = Setting(8, 1_000 if quick else 10_000, 2_000 if quick else 10_000)
    few = Setting(8, small.prefixes, 300)  # E2 is slow
    large = Setting(1024, 3_300 if quick else 33_000, 2_000 if quick else 10_000)
    for spec in ("lengthwise", "least_outstanding"):
        choices(spec, Setting(2, 100, 100))  # compile or load the kernels
    print("microseconds of CPU time, and the target")
    print(hashing())
    for figures in (
        measured("lengthwise", small, 20, 60),
        measured("least_outstanding", small, None),
        measured("e2", few, None),
        measured("lengthwise", large, 40),
        measured("least_outstanding", large, None),
    ):
        for figure in figures:
            print(figure, flush=True)
    on_react(quick=quick)


if __name__ == "__main__":
    main()
