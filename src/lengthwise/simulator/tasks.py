"""The runner of simulations: what is simulated as tasks, a result cache keyed by content, workers and progress.

A task is a small value with a `key` (a digest of everything its result depends on) and a `run` that returns JSON.
`TaskRunner` takes results from the cache, computes the missing ones and stores each as soon as it is known, so that an
interrupted run continues where it stopped. Grids, sweeps, capacity plans, comparisons and studies describe what to run
as tasks. `SimulationTask.outcome` is the same simulation in this process, with the times of every request.
"""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from lengthwise.errors import InputError
from lengthwise.files import atomic_path
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.predictors.resolve import model_path, parse_predictor_spec
from lengthwise.processes import end_with_parent
from lengthwise.simulator.cluster import Capacity, as_predictions, at_rate, measure_capacity, simulate
from lengthwise.simulator.disaggregated import Pools
from lengthwise.simulator.fleet import Fleet, FleetEvent
from lengthwise.simulator.fleet_run import Progress
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.predictions import RequestPredictions, learns
from lengthwise.version import ROOT, package_version
from lengthwise.workloads import Workload

_CODE: Final = ("lengths", "policies", "predictors", "routers", "simulator", "traffic", "workloads")
"""Packages whose code determines the result of a simulation, beside the files at the root."""

Report = Callable[[str, float], None]
"""Receives a label and the share that is done."""
SettingT = TypeVar("SettingT")


class Task(Protocol):
    """A computation with a cacheable result."""

    @property
    def key(self) -> str:
        """Digest of everything the result depends on."""

    def run(self) -> dict[str, Any]:
        """Compute the result, ready for JSON."""


Workers = Callable[[Sequence[Task]], Iterator[tuple[int, dict[str, Any]]]]
"""Runs tasks; yields the index of each and its result, in the order of completion."""


class WorkloadSource(Hashable, Protocol):
    """The source of a workload: a small value that can be compared, hashed and sent to a worker."""

    @property
    def name(self) -> str:
        """Name shown in tables."""

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """Return a function from a seed to a workload, at one request per second unless it keeps its own arrivals."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload, drawn with a seed, on a fleet."""

    source: WorkloadSource
    fleet: Fleet
    seed: int
    own_arrivals: bool = False

    @property
    def workload(self) -> Workload:
        """The workload at one request per second, unless it keeps its own arrivals."""
        return _draw(self.source, self.fleet.slots, self.own_arrivals, self.seed)

    def workload_at(self, rate: float | None) -> Workload:
        """The workload at `rate` requests per second; None: as drawn."""
        return at_rate(self.workload, rate)

    @property
    def key(self) -> str:
        """Digest of the workload's content and the fleet's engines."""
        return _setting_key(self.source, self.fleet, self.seed, self.own_arrivals)


@dataclass(frozen=True, eq=False)
class DrawnSetting:
    """A workload that is at hand, on a fleet."""

    workload: Workload
    fleet: Fleet
    seed: int = 0

    def workload_at(self, rate: float | None) -> Workload:
        """The workload at `rate` requests per second; None: as it is."""
        return at_rate(self.workload, rate)

    @property
    def key(self) -> str:
        """Digest of the workload's content and the fleet's engines."""
        return _content_of(self.workload, self.fleet, self.seed)


@dataclass(frozen=True, slots=True)
class CapacityTask:
    """The capacity of a fleet."""

    setting: Setting | DrawnSetting
    accelerate: bool | None = None

    @property
    def key(self) -> str:
        """Digest of everything the result depends on."""
        return content_key(kind="capacity", code=code_version(), setting=self.setting.key)

    def run(self) -> dict[str, Any]:
        """Requests per second under backlog."""
        capacity = self.capacity()
        return {"requests_per_s": capacity.requests_per_s, "steady": capacity.steady}

    def capacity(self, on_progress: Progress | None = None) -> Capacity:
        """Measure the capacity in this process."""
        workload, fleet = self.setting.workload, self.setting.fleet
        return measure_capacity(workload, fleet, on_progress=on_progress, accelerate=self.accelerate)


@dataclass(frozen=True, slots=True)
class SimulationTask:
    """One simulation. `rate` is in requests per second; None keeps the workload's own arrivals."""

    setting: Setting | DrawnSetting
    rate: float | None = None
    policy: str = "fcfs"
    router: str = "round_robin"
    predictor: str | RequestPredictions = "oracle"
    """A name, or predictions that are at hand."""
    prediction_delay_s: float = 0.0
    decision_s: float = 0.0
    routing_s: float = 0.0
    fleet_events: tuple[FleetEvent, ...] = ()
    pools: Pools | None = None
    refresh: str | RequestPredictions | None = None
    explain: bool = False
    accelerate: bool | None = None

    @property
    def key(self) -> str:
        """Digest of everything the result depends on; a model file counts by its bytes."""
        return content_key(
            kind="simulation",
            code=code_version(),
            setting=self.setting.key,
            rate=self.rate,
            policy=self.policy,
            router=self.router,
            predictor=_predictor_key(self.predictor),
            times=(self.prediction_delay_s, self.decision_s, self.routing_s),
            fleet_events=self.fleet_events,
            pools=self.pools,
            refresh=None if self.refresh is None else _predictor_key(self.refresh),
        )

    def run(self) -> dict[str, Any]:
        """The offered rate, the share of requests within the default limits and the summary of the simulation."""
        outcome = self.outcome()
        return {
            "offered_per_s": self.setting.workload_at(self.rate).rate,
            "within_slo": float(outcome.within(LatencyLimits()).mean()),
            **outcome.summary.to_dict(),
        }

    def outcome(self, on_progress: Progress | None = None) -> Outcome:
        """Simulate in this process, to the last request."""
        return simulate(
            self.setting.workload_at(self.rate),
            self.setting.fleet,
            self.policy,
            router=self.router,
            predictor=self._known(self.predictor),
            prediction_delay_s=self.prediction_delay_s,
            decision_s=self.decision_s,
            routing_s=self.routing_s,
            fleet_events=self.fleet_events,
            pools=self.pools,
            refresh=None if self.refresh is None else self._known(self.refresh),
            explain=self.explain,
            accelerate=self.accelerate,
            on_progress=on_progress,
        )

    def _known(self, predictor: str | RequestPredictions) -> RequestPredictions:
        if isinstance(predictor, RequestPredictions):
            return predictor
        # Only what a predictor that learns has seen depends on the rate.
        return _predictions(self.setting, predictor, self.rate if learns(predictor) else None)


class ResultCache:
    """Results in a folder, one JSON file each, written atomically so that concurrent runs may share it.

    A file that cannot be read counts as missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the stored result, or None."""
        try:
            found = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def put(self, key: str, result: dict[str, Any]) -> None:
        """Store a result."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(result, sort_keys=True), encoding="utf-8")

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


class TaskRunner:
    """Runs tasks through the cache and counts the results found there and those computed."""

    def __init__(self, cache: ResultCache, workers: Workers, report: Report | None = None) -> None:
        self.cache, self.workers = cache, workers
        self.report: Report = report or (lambda _what, _done: None)
        self.from_cache = self.computed = 0

    def results(self, label: str, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """Return the result of each task, in order; `label` names the batch in progress reports."""
        keys = [task.key for task in tasks]
        known = {key: self.cache.get(key) for key in dict.fromkeys(keys)}
        missing = {key: task for key, task in zip(keys, tasks, strict=True) if known[key] is None}
        self.from_cache += len(known) - len(missing)
        names = list(missing)
        for done, (number, result) in enumerate(self.workers(list(missing.values())) if missing else (), start=1):
            self.cache.put(names[number], result)
            known[names[number]] = result
            self.computed += 1
            self.report(label, done / len(missing))
        return [result for result in (known[key] for key in keys) if result is not None]

    def by_seed(
        self, label: str, settings: Sequence[SettingT], seeds: int, task: Callable[[SettingT, int], Task]
    ) -> dict[SettingT, tuple[dict[str, Any], ...]]:
        """Return the results of each setting for every seed; seeds are the outer loop: neighbours share a workload."""
        found = self.results(label, [task(setting, seed) for seed in range(seeds) for setting in settings])
        return {setting: tuple(found[place :: len(settings)]) for place, setting in enumerate(settings)}


@dataclass(frozen=True, kw_only=True)
class SeedResults:
    """The result of one setting for each seed. A figure is named by its path in a result: `"e2e_s", "mean"`."""

    seeds: tuple[Mapping[str, Any], ...]

    def values(self, *path: str) -> list[float]:
        """A figure by seed, NaN where there is none."""
        found: list[Any] = list(self.seeds)
        for name in path:
            found = [each[name] for each in found]
        return [math.nan if value is None else float(value) for value in found]

    def mean(self, *path: str) -> float:
        """A figure averaged over seeds."""
        return float(np.mean(self.values(*path)))

    def over(self, base: SeedResults, *path: str) -> Ratio:
        """Ratio to another setting on the same seeds with its 95 % interval; 1 to itself."""
        return Ratio(1.0, 1.0, 1.0) if base is self else over_seeds(self.values(*path), base.values(*path))


class Steps:
    """Turns the progress of each step into that of the whole."""

    def __init__(self, report: Report | None, total: int) -> None:
        self._report, self._total, self._done = report, total, 0

    def next(self, what: str, *, steps: int = 1) -> Progress:
        """Return the progress callback of the next step, or of the next `steps` together."""
        start = self._done
        self._done += steps

        def report(share: float) -> None:
            if self._report is not None:
                self._report(what, (start + steps * share) / self._total)

        return report


def in_processes(jobs: int) -> Workers:
    """Run tasks in `jobs` processes, started once and kept for later calls; with one, in this process."""
    if jobs < 1:
        raise InputError(f"{jobs} processes", field="jobs", hint="give at least 1")
    pool: ProcessPoolExecutor | None = None

    def run(tasks: Sequence[Task]) -> Iterator[tuple[int, dict[str, Any]]]:
        nonlocal pool
        if jobs == 1 or len(tasks) == 1:
            for number, task in enumerate(tasks):
                yield number, run_task(task)
            return
        if pool is None:
            # Spawned, not forked: a fork of a process with threads (Arrow's, Numba's) may hang.
            # Ctrl-C ends a worker at once, without a traceback of its own: this process has the results.
            spawn = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(jobs, mp_context=spawn, initializer=end_with_parent)
        complete = False
        try:
            pending = {pool.submit(run_task, task): number for number, task in enumerate(tasks)}
            for done in as_completed(pending):
                yield pending[done], done.result()
            complete = True
        finally:
            if not complete:
                pool.shutdown(wait=False, cancel_futures=True)
                pool = None

    return run


def run_task(task: Task) -> dict[str, Any]:
    """Run a task: a module-level function, so that it can be sent to a worker."""
    return task.run()


def content_key(**parts: object) -> str:
    """Digest of the parts; each is JSON or has a repr that shows all of its content."""
    return sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()


@cache
def file_digest(path: Path) -> str:
    """Digest of a file's bytes."""
    return sha256(path.read_bytes()).hexdigest()


@cache
def code_version() -> str:
    """The package's version and a digest of the code that determines results: a change there invalidates the cache."""
    digest = sha256()
    for file in sorted([*ROOT.glob("*.py"), *(file for package in _CODE for file in (ROOT / package).rglob("*.py"))]):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return f"{package_version()}+{digest.hexdigest()[:16]}"


def _predictor_key(name: str | RequestPredictions) -> tuple[str, str | None]:
    if isinstance(name, RequestPredictions):
        return name.predictor, sha256(b"".join(each.tobytes() for each in (name.mu, name.sigma, name.cap))).hexdigest()
    spec = parse_predictor_spec(name)
    if spec.learns and spec.model:
        return name, _predictor_key(spec.model)[1]
    return name, file_digest(model_path(spec.model)) if spec.kind == "model" and spec.model else None


@lru_cache(maxsize=8)
def _draw(source: WorkloadSource, slots: int, own_arrivals: bool, seed: int) -> Workload:
    return source.draws(own_arrivals=own_arrivals, slots=slots)(seed)


@lru_cache(maxsize=4096)
def _setting_key(source: WorkloadSource, fleet: Fleet, seed: int, own_arrivals: bool) -> str:
    return _content_of(_draw(source, fleet.slots, own_arrivals, seed), fleet, seed)


def _content_of(workload: Workload, fleet: Fleet, seed: int) -> str:
    return content_key(workload=workload.content_hash, fleet=[repr(engine) for engine in fleet.engines], seed=seed)


@lru_cache(maxsize=8)
def _predictions(setting: Setting | DrawnSetting, predictor: str, rate: float | None) -> RequestPredictions:
    return as_predictions(setting.workload_at(rate), setting.fleet, predictor, seed=setting.seed)
