"""What a routing decision costs: `python -m benchmarks.routing [--quick] [--write]`.

Microseconds of CPU time, the clock's own cost taken off: of hashing a prompt of 2,000 tokens, and of one choice with
everything a router does at it (look-up, cost, book-keeping). Prompts share 29 of their 31 blocks with one of the
prefixes, all of which are held somewhere; a job finishes for each that is sent, so that about as many stay live.
The best of three rounds: what else goes on in a machine only adds. `lengthwise` is to be as cheap as a hash look-up;
E2, read off Preble's code, and least outstanding are in the same run.

Last, what each router takes for a request of the paper's ReAct traffic (10 workloads, lengths 1 or 300, 128 requests
per second for 30 s), with 4 to 32 engines: the mean of the choice and of all it is told of the request later, in the
better of two rounds. `--write` measures that alone and keeps it as what `lengthwise simulate` charges each router
(src/lengthwise/simulator/routing_times.json).
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.preble.study import VARIED, React
from lengthwise.lengths import LogT
from lengthwise.policies import Job
from lengthwise.routers import ROUTERS, Decision, EngineId, EngineInfo, Event, Finished, make_router
from lengthwise.simulator import Fleet, simulate
from lengthwise.simulator.routing import ROUTING_TIMES_FILE
from lengthwise.workloads.blocks import BLOCK_TOKENS, hash_tokens

TOKENS = 2000
SHARED, OWN = 29, 2  # blocks of a prompt
LIVE_PER_ENGINE = 32
RATE_PER_ENGINE = 4.0
ROUNDS = 3
REACT_ENGINES = (4, 8, 16, 32)
REACT_RATE, REACT_S, REACT_ROUNDS = 128.0, 30.0, 2


@dataclass(frozen=True)
class Figure:
    """Something measured, and the most that it should be."""

    name: str
    microseconds: float
    most: float | None = None

    def __str__(self) -> str:
        verdict = "ok" if self.most is None or self.microseconds <= self.most else "MISSED"
        wanted = "" if self.most is None else f"{self.most:>12,.0f}  {verdict}"
        return f"{self.name:<64}{self.microseconds:>10,.1f}{wanted}"


@dataclass(frozen=True)
class Setting:
    """Engines, the prefixes they hold, and the choices that are timed."""

    engines: int
    prefixes: int
    choices: int

    @property
    def info(self) -> str:
        """In words."""
        blocks = self.prefixes * (SHARED + OWN)
        return f"{self.engines:,} engines, {self.prefixes:,} prefixes, {blocks:,} blocks"

    def kv_tokens(self) -> int:
        """Of one engine: enough for its share of the prefixes and for who is live."""
        prompts = self.prefixes / self.engines + 4 * LIVE_PER_ENGINE
        return int(1.2 * prompts * (SHARED + OWN) * BLOCK_TOKENS)


def hashing() -> Figure:
    """The fastest of several rounds."""
    ids = np.random.default_rng(0).integers(0, 128_000, TOKENS).astype(np.uint32)
    rounds = []
    for _ in range(9):
        begun = time.process_time_ns()
        for _ in range(2000):
            hash_tokens(ids)
        rounds.append((time.process_time_ns() - begun) / 2000 / 1e3)
    return Figure(f"hash {TOKENS:,} tokens in blocks of {BLOCK_TOKENS}", min(rounds), 15)


def choices(spec: str, setting: Setting) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Microseconds of each timed choice, after every prefix has been sent somewhere once."""
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
        blocks = np.concatenate([prefixes[prefix], rng.integers(0, 2**64, OWN, dtype=np.uint64)])
        job = Job(str(number), now, TOKENS, predictions[number % 64], 4096, blocks=blocks)
        among = [number % setting.engines] if number < setting.prefixes else None  # spread at first
        begun = time.process_time_ns()
        decision = router.choose(job, now, among)
        took[number] = time.process_time_ns() - begun
        live.append((job.id, decision.engine))
        if len(live) > LIVE_PER_ENGINE * setting.engines:
            name, engine = live.popleft()
            router.observe(Finished(name, engine, now, 200, ttft_s=0.2))
    return (took[setting.prefixes :] - clock_ns()) / 1e3


def clock_ns() -> float:
    """What it costs to look at the clock."""
    looks = [-time.process_time_ns() + time.process_time_ns() for _ in range(10_000)]
    return float(np.median(looks))


def measured(spec: str, setting: Setting, median: float | None, p99: float | None = None) -> list[Figure]:
    rounds = [np.quantile(choices(spec, setting), [0.5, 0.99]) for _ in range(ROUNDS)]
    middle, high = np.min(rounds, axis=0).tolist()
    return [
        Figure(f"{spec}, {setting.info}, median", middle, median),
        Figure(f"{spec}, {setting.info}, p99", high, p99),
    ]


class TimedRouter:
    """A router with the CPU time of its choices and events."""

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


def per_request(spec: str, engines: int, requests: int) -> float:
    """Microseconds of a router for a request of the paper's traffic, its choice and its events together."""
    workload = React(VARIED, requests).draws(own_arrivals=False, slots=0)(0)
    workload = workload.replace(arrival_s=workload.arrival_s / REACT_RATE)
    fleet = Fleet.parse(f"{engines}*mistral-7b@a6000")
    timed = TimedRouter(spec)
    simulate(workload, fleet, "fcfs", router=timed, predictor="oracle")
    return (timed.took_ns - timed.calls * clock_ns()) / requests / 1e3


def on_react(*, quick: bool) -> dict[str, dict[str, float]]:
    """Of every router by number of engines, printed as they come."""
    requests = int(REACT_RATE * REACT_S) // (16 if quick else 1)
    print(f"microseconds for a request of ReAct traffic, {REACT_RATE:g} requests/s, {requests:,} requests")
    print(f"{'engines':<20}" + "".join(f"{engines:>10}" for engines in REACT_ENGINES))
    found: dict[str, dict[str, float]] = {}
    for spec in ROUTERS:
        per_request(spec, 2, 100)  # compiled, or loaded
        found[spec] = {
            str(engines): round(min(per_request(spec, engines, requests) for _ in range(REACT_ROUNDS)), 1)
            for engines in REACT_ENGINES
        }
        print(f"{spec:<20}" + "".join(f"{us:>10,.1f}" for us in found[spec].values()), flush=True)
    return found


def write(us: dict[str, dict[str, float]]) -> None:
    """Keep what was measured as what routers are charged."""
    kept = {
        "command": "python -m benchmarks.routing --write",
        "processor": processor(),
        "traffic": f"ReAct, lengths {VARIED}, {REACT_RATE:g} requests/s for {REACT_S:g} s, mistral-7b@a6000",
        "us": us,
    }
    ROUTING_TIMES_FILE.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    print(f"written: {ROUTING_TIMES_FILE.name}")


def processor() -> str:
    """What this machine calls it."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    if "--write" in sys.argv[1:]:
        write(on_react(quick=quick))
        return
    small = Setting(8, 1_000 if quick else 10_000, 2_000 if quick else 10_000)
    few = Setting(8, small.prefixes, 300)  # E2 takes its time
    large = Setting(1024, 3_300 if quick else 33_000, 2_000 if quick else 10_000)
    for spec in ("lengthwise", "least_outstanding"):
        choices(spec, Setting(2, 100, 100))  # compiled, or loaded
    print("microseconds of CPU time, and the most that is wanted")
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
