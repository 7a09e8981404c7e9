"""The compiled engine's host: it lays out the memory, calls the kernel, and answers its questions with the policy.

The kernel is the accelerator of `simulator.engine`, and gives the same outcome bit for bit. Where a policy decides that
is not compiled (`kernel.policy`), it returns a code and the host asks the policy, on columns.

Numba caches compiled code (`lengthwise.compiled`) and checks only the module of the function that is called. The
entry functions therefore carry a fingerprint of all sources of kernel and policies, so that a change in any of them
recompiles.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.compiled import announce, compiled
from lengthwise.lengths import log_t
from lengthwise.policies import Job, JobColumns, Policy, QueueView, Rounds, TokenRate, WaitingJobs, selects
from lengthwise.policies.arrival_order import Boost, Hrrn, Preble
from lengthwise.policies.base import BasePolicy, last_of_largest
from lengthwise.policies.calibration import LengthCalibration, length_bins
from lengthwise.policies.job import COLUMN_NAMES
from lengthwise.policies.lengthwise import Lengthwise
from lengthwise.policies.ontime import OnTime
from lengthwise.policies.preemptive import Gittins, Srpt
from lengthwise.policies.slo import Slo
from lengthwise.simulator import costs
from lengthwise.simulator.engine import EngineEvent, FleetEngines, policy_calls
from lengthwise.simulator.fleet import EngineSpec, Fleet
from lengthwise.simulator.kernel import loop, memory
from lengthwise.simulator.kernel import records as r
from lengthwise.simulator.kernel.records import Record
from lengthwise.simulator.kernel.sources import kernel_fingerprint
from lengthwise.simulator.outcome import MAX_SAMPLES, SAMPLE, SAMPLE_EVERY_S, EngineOutcome, Timeline
from lengthwise.simulator.traffic import JobTable, Records, Rows, Table, Traffic, block_ratio

_log = logging.getLogger(__name__)
_run, _run_due, _cached_blocks = loop.run, loop.run_due, memory.cached_blocks
_UNSENT: Final = np.zeros(1, r.PROGRESS)
_UNSENT["heap_index"] = r.NONE
_UNLIMITED: Final = np.iinfo(np.int64).max
_EVENTS: Final = 1024  # read at once
_KEYS_BYTES: Final = 64 << 20  # for columns of keys, one per level of the queue
_LEVELS: Final = 4096  # remembered levels: a power of two
_REKEY: Final = {"never": r.NEVER, "on_level": r.ON_LEVEL, "on_progress": r.ON_PROGRESS, "on_time": r.ON_TIME}
_COMPILED: Final[dict[type, int]] = {
    Lengthwise: r.LENGTHWISE,
    Preble: r.PREBLE,
    Slo: r.SLO,
    Hrrn: r.HRRN,
    Boost: r.BOOST,
    Srpt: r.SRPT,
    Gittins: r.GITTINS,
    OnTime: r.ONTIME,
}
_GENERATED, _CACHED, _ROUND, _PREEMPTIONS = (
    COLUMN_NAMES.index(name) for name in ("generated", "cached_tokens", "round_number", "preemptions")
)
_ADMISSION: Final = {"prompt": r.WHOLE_PROMPT, "peak": r.FUTURE_PEAK, "reserve": r.RESERVATION}


def _advance(fingerprint: int) -> Callable[[Records, float], int]:
    def advance(engines: Records, until: float) -> int:
        if fingerprint < 0:  # the use makes it part of this function
            return -1
        return _run(engines[0], until)

    return advance


def _cached(fingerprint: int) -> Callable[[Records, int, int], int]:
    def cached(engines: Records, row: int, tokens: int) -> int:
        if fingerprint < 0:
            return -1
        return _cached_blocks(engines[0], row, tokens)[0]

    return cached


def _advance_group(
    fingerprint: int,
) -> Callable[[NDArray[np.int64], Table, int, int, float, Records], tuple[int, int, int]]:
    def advance_group(
        engines: NDArray[np.int64], next_event_s: Table, first: int, last: int, until: float, found: Records
    ) -> tuple[int, int, int]:
        if fingerprint < 0:
            return -1, 0, 0
        return _run_due(engines, next_event_s, first, last, until, found)

    return advance_group


_advance_kernel = compiled(_advance(kernel_fingerprint()))
"""Run every step that begins before a time and return why it stopped; called again, it continues."""

_group_kernel = compiled(_advance_group(kernel_fingerprint()))
"""The same for all engines that may have new events, and write these."""

_cached_kernel = compiled(_cached(kernel_fingerprint()))
"""Leading blocks of a request's first tokens, except the last token, that are in the prefix cache."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Some requests at one moment: their records, what the kernel notes of them, and the answer tokens that exist."""

    rows: Rows
    requests: Records
    progress: Records
    generated: Rows

    def of(self, table: Table) -> Table:
        """Return the columns of these requests."""
        columns = table[:, self.rows]
        columns[_GENERATED], columns[_CACHED] = self.generated, self.progress["cached"]
        columns[_ROUND], columns[_PREEMPTIONS] = self.progress["round"], self.requests["preemptions"]
        return columns

    def jobs(self, known: JobTable, now: float) -> JobColumns:
        """Return the columns at a time, with the predictions that have arrived by then."""
        columns = self.of(known.predicted)
        if known.late is not None:
            columns = np.where(now < self.requests["arrival"] + known.delay_s, self.of(known.late), columns)
        return JobColumns(*columns)


class PolicyKeys:
    """The policy's keys for all engines of a simulation, and what the kernel notes of each request (`progress`).

    `keys[column, stage, request]` holds what is known in advance: one column where keys never go stale, one per level
    of the queue where they depend on it; a stage each before and after a late prediction.
    """

    def __init__(self, policy: Policy, jobs: JobTable) -> None:
        self.policy = policy
        self.jobs = jobs
        self.changed = 0  # how often columns were reassigned to other levels
        self._columns: dict[int, int] = {}
        self._records: dict[EngineSpec, Records] = {}
        self.keys = np.zeros((1, len(jobs.tables), len(jobs)))
        self.progress = np.repeat(_UNSENT, len(jobs))
        self._most = max(2, _KEYS_BYTES // max(1, self.keys.nbytes))
        self._views: dict[int, QueueView] = {}
        if policy.rekey in ("never", "on_progress"):
            self._views[0] = QueueView()
            self._fill(0, QueueView(), 0.0)

    def engine_record(self, spec: EngineSpec, traffic: Traffic) -> Records:
        """Return the record of an empty engine."""
        if spec not in self._records:
            with policy_calls(self.policy):
                self._records[spec] = _engine_record(spec, self.policy, traffic)
        return self._records[spec].copy()

    @cached_property
    def selects(self) -> bool:
        """Whether the policy selects from the whole queue."""
        return selects(self.policy)

    @cached_property
    def compiled(self) -> int:
        """The code of the policy if its decisions are compiled, else OTHER."""
        if type(self.policy) is Slo and not np.isinf([jobs.deadline for jobs in self.jobs.stages]).all():
            return r.OTHER
        if type(self.policy) is Lengthwise and self.jobs.llms > 1:
            return r.OTHER  # the kernel has one calibration
        return _COMPILED.get(type(self.policy), r.OTHER)

    @cached_property
    def compiled_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that a compiled policy reads, the same for all engines."""
        arrivals = np.array(self.jobs.stages[0].arrival, np.float64).view(r.REAL)
        if self.compiled in (r.LENGTHWISE, r.SLO, r.ONTIME):
            return {**self._predicted_lengths(), "arrivals": arrivals, **self._limits()}
        if self.compiled not in (r.HRRN, r.SRPT, r.GITTINS):
            return {"arrivals": arrivals}
        jobs = np.concatenate([self._rank_inputs(stage, jobs) for stage, jobs in enumerate(self.jobs.stages)])
        if self.compiled == r.HRRN:
            return {"jobs": jobs, "arrivals": arrivals}
        return {"jobs": jobs, "rank_tables": log_t.remaining_tables().view(r.REAL)}

    def _limits(self, rows: slice = slice(None)) -> dict[str, NDArray[Any]]:
        """Return the limits of requests under `ontime`."""
        if not isinstance(self.policy, OnTime):
            return {}
        jobs = JobColumns(*self.jobs.tables[0][:, rows])
        found = np.zeros(len(jobs), r.LIMITS)
        found["due"] = jobs.arrival + self.policy.first_token_limit(jobs)
        found["per_token"], found["deadline"] = self.policy.limit_per_token(jobs), jobs.deadline
        return {"limits": found}

    def _rank_inputs(self, stage: int, jobs: JobColumns) -> NDArray[Any]:
        found = np.zeros(len(jobs), r.JOB)
        for name in ("expected", "initial_expected", "mu", "cap"):
            found[name] = getattr(jobs, name)
        found["median"], found["cap_integral"], found["fresh"] = np.exp(jobs.mu), np.nan, self.keys[0, stage]
        found["sigma_index"] = np.where(jobs.sigma > 0.0, log_t.sigma_index(jobs.sigma), r.NONE)
        return found

    def _predicted_lengths(self) -> dict[str, NDArray[Any]]:
        """Medians, caps and bins by stage and request; medians are computed as the policy does."""
        mu, sigma, cap = (
            np.concatenate([getattr(jobs, name) for jobs in self.jobs.stages]) for name in ("mu", "sigma", "cap")
        )
        exp = np.array([math.exp(each) for each in mu.tolist()]) if self.compiled == r.LENGTHWISE else np.exp(mu)
        medians = np.minimum(exp, cap)
        bins = length_bins(mu, sigma, medians).astype(np.int32)
        return {"medians": medians.view(r.REAL), "caps": cap.view(r.REAL), "bins": bins.view(r.INT)}

    def column(self, view: QueueView) -> int:
        """Return the column of keys for the level of a queue."""
        level = self.policy.level(view)
        if level not in self._columns:
            if len(self._columns) == self._most:
                self._columns.clear()
                self.changed += 1
            number = len(self._columns)
            if number == len(self.keys):
                columns = min(2 * number, self._most)
                self.keys = np.concatenate([self.keys, np.zeros((columns - number, *self.keys.shape[1:]))])
            self._fill(number, view, 0.0)
            self._columns[level], self._views[number] = number, view
        return self._columns[level]

    def released(self, row: int) -> None:
        """Compute again what depends on the arrival of a request, which has become known."""
        rows = np.array([row])
        for stage, table in enumerate(self.jobs.tables):
            job = JobColumns(*table[:, rows])
            for column, view in self._views.items():
                self.keys[column, stage, rows] = self._keys_of(job, view, 0.0)
        if self.compiled:
            arrays = self.compiled_arrays
            if "arrivals" in arrays:
                arrays["arrivals"]["value"][row] = self.jobs.stages[0].arrival[row]
            if "limits" in arrays:
                one = slice(row, row + 1)
                arrays["limits"][one] = self._limits(one)["limits"]

    def _fill(self, column: int, view: QueueView, now: float) -> None:
        for stage, jobs in enumerate(self.jobs.stages):
            self.keys[column, stage] = self._keys_of(jobs, view, now)

    def _keys_of(self, jobs: JobColumns, view: QueueView, now: float) -> Table:
        """Return the policy's keys; an InputError if it raises or one is not a number."""
        with policy_calls(self.policy):
            keys = self.policy.keys(jobs, view, now)
            if np.isnan(keys).any():
                raise ValueError("a key is not a number")
        return keys

    def rekey(self, progress: JobProgress, view: QueueView, now: float) -> None:
        """Compute the keys of some requests again, in the only column."""
        if self.policy.rekey == "on_time":
            self.keys[0, :, progress.rows] = self._keys_of(progress.jobs(self.jobs, now), view, now)[:, None]
            return
        for stage, table in enumerate(self.jobs.tables):  # a late prediction may arrive while they wait
            self.keys[0, stage, progress.rows] = self._keys_of(JobColumns(*progress.of(table)), view, now)


class CompiledEngine:
    """An engine that the kernel runs, empty at first.

    It writes to `traffic.requests`, which engines share, but only to the rows sent to it.
    """

    def __init__(self, spec: EngineSpec, keys: PolicyKeys, traffic: Traffic, *, decision_s: float = 0.0) -> None:
        announce("the simulator kernel", f"kernel-{kernel_fingerprint():x}")
        self._keys = keys
        self._spec = spec
        self._slots = spec.max_num_seqs
        self._traffic = traffic
        with policy_calls(keys.policy):
            self._rounds = None if keys.compiled else keys.policy.rounds(lambda: spec.max_num_seqs)
        self._jobs: dict[int, Job] = {}
        self._rounds_seen = self._sent = 0
        self._keys_changed = keys.changed
        self._engine = keys.engine_record(spec, traffic)
        self.record: Record = self._engine[0]
        """Limits, clock and counts."""
        self.address: int = self._engine.ctypes.data
        self._engine["decision_s"] = decision_s
        self._arrays: dict[str, NDArray[Any]] = {}
        arrays = _engine_arrays(spec, traffic, by_level=keys.policy.rekey == "on_level")
        shared = {name: getattr(traffic, name) for name in r.SHARED}
        self._rows = arrays["rows"]["value"]
        self._use(**arrays, **shared, keys=keys.keys, progress=keys.progress)
        if keys.compiled:
            self._use(**_policy_state(keys.policy, keys.compiled), **keys.compiled_arrays)
            _use_compiled(self.record, keys.policy, keys.compiled)
        self.record["positions"] = arrays["tables"].shape[1]

    def submit(self, rows: Sequence[int] | NDArray[np.integer]) -> None:
        """Send requests, in order of arrival; none arrives before one that was sent earlier."""
        have, self._sent = self._sent, self._sent + len(rows)
        if self._sent > len(self._rows):
            known = np.empty(max(self._sent, 2 * have), r.INT)
            known[:have] = self._arrays["rows"][:have]
            self._use(rows=known)
            self._rows = known["value"]
        if len(rows) == 1:  # as when a router sends one after the other: half the time of a slice
            self._rows[have] = rows[0]
        else:
            self._rows[have : self._sent] = rows
        self._engine["n_rows"][0] = self._sent

    def advance(self, until: float = np.inf, *, settle: int | None = None) -> bool:
        """Run every step that begins before `until`, or until `settle` more requests are settled."""
        record = self.record
        record["pause_at"] = _UNLIMITED if settle is None else record["settled"] + settle
        while True:
            self.use_keys()
            code = _advance_kernel(self._engine, until)
            if code in (r.DONE, r.PAUSED):
                return bool(code == r.DONE)
            self.answer(code)

    def use_keys(self) -> None:
        """Use the keys of the policy where they are now."""
        if self._arrays["keys"] is not self._keys.keys:
            self._use(keys=self._keys.keys)

    def _use(self, **arrays: NDArray[Any]) -> None:
        """Give the kernel the addresses of these arrays; `_arrays` keeps them alive."""
        record = self.record
        for name, array in arrays.items():
            record[name] = array.ctypes.data
            if name in r.SIZED:
                record[f"{name}_size"] = len(array)
        self._arrays |= arrays

    @property
    def rows(self) -> NDArray[np.int32]:
        """Requests that were sent here, in order of arrival."""
        return self._rows[: self._sent]

    def cached_tokens(self, row: int) -> int:
        """Tokens of a request's prompt that are in the prefix cache now."""
        prompt = int(self._traffic.requests["prompt"][row])
        return int(_cached_kernel(self._engine, row, prompt + 1)) * self._spec.block_size

    @property
    def settled(self) -> int:
        """Number of requests that are finished or refused."""
        return int(self.record["settled"])

    def unfinished(self, by: float) -> NDArray[np.int64]:
        """Rows sent here that have not finished by a time; refused ones are left out."""
        record, requests = self.record, self._traffic.requests
        rows = self.rows.astype(np.int64)
        here = requests[rows]
        refused = (np.arange(len(rows)) < record["arrived"]) & ~self._spec.can_hold(here["prompt"], here["output"])
        return np.asarray(rows[~((here["finish"] <= by) | refused)])

    def outcome(self) -> EngineOutcome:
        """Return what this engine has done so far."""
        record = self.record
        events = self._arrays["events"]["value"][: int(record["n_events"])]
        samples = self._arrays["samples"][: int(record["n_samples"])]
        blocks, busy_s = int(record["n_blocks"]), float(record["busy_s"])
        return EngineOutcome(
            steps=int(record["steps"]),
            busy_s=busy_s,
            kv_mean=float(record["block_seconds"]) / (busy_s * blocks) if busy_s else 0.0,
            kv_peak=int(record["peak_blocks"]) / blocks,
            admissions=events[events >= 0],
            timeline=Timeline.of(samples, blocks),
        )

    @property
    def _view(self) -> QueueView:
        engine = self.record
        return QueueView(
            int(engine["n_waiting"]), int(engine["n_running"]), self._slots, float(engine["rate"]["per_s"])
        )

    def answer(self, code: int) -> None:
        """Answer a question of the kernel."""
        with policy_calls(self._keys.policy):
            self._answer(code)

    def _answer(self, code: int) -> None:
        engine, policy = self.record, self._keys.policy
        now = float(engine["now"])
        if code == r.ASK_LEVEL:
            self._answer_level()
        elif code == r.ASK_KEYS:
            self._keys.rekey(self._waiting(self._arrays["waiting"]["row"][: int(engine["n_waiting"])]), self._view, now)
            engine["keyed_at"], engine["column"] = now, r.STALE
        elif code == r.ASK_KEY:
            self._keys.rekey(self._waiting(engine["asked_row"]), self._view, now)
        elif code == r.ASK_VICTIM:
            engine["answer"] = last_of_largest(policy.eviction_scores(self._running().jobs(self._keys.jobs, now), now))
        elif code == r.ASK_HEAD_VICTIM:
            running = self._running().jobs(self._keys.jobs, now)
            candidate = self._waiting(engine["asked_row"]).jobs(self._keys.jobs, now)
            victim = policy.find_victim(running, candidate, now)
            engine["answer"] = r.NONE if victim is None else victim
        elif code == r.ASK_ARRIVAL:
            self._answer_arrival(int(engine["asked_row"]), now)
        elif code == r.ASK_PREDICTION:
            self._answer_prediction(int(engine["asked_row"]))
        elif code == r.ASK_SELECTION:
            self._answer_selection(now)
        else:
            self._grow()

    def _answer_level(self) -> None:
        view, engine = self._view, self.record
        column = self._keys.column(view)
        levels = self._arrays["levels"]
        if self._keys_changed != self._keys.changed:
            self._keys_changed = self._keys.changed
            levels["pair"] = -1
            engine["column"] = r.STALE
        pair = view.waiting * (view.slots + 1) + view.running
        levels[pair & (len(levels) - 1)] = (pair, column)

    def _answer_selection(self, now: float) -> None:
        """Let the policy select among the waiting requests of the most urgent priority, in the order of joining."""
        if self._rounds is not None:
            self._update_rounds(self._rounds)
        waiting = self._arrays["waiting"][: int(self.record["n_waiting"])]
        urgent = waiting[waiting["priority"] == waiting["priority"].min()]
        rows = urgent["row"][np.argsort(np.abs(urgent["order"]))]
        jobs = self._waiting(rows).jobs(self._keys.jobs, now)
        index = self._keys.policy.select(WaitingJobs(jobs, self._view, self._rounds), now)  # type: ignore[attr-defined]
        self.record["answer"] = rows[index]

    def _answer_arrival(self, row: int, now: float) -> None:
        """Set the round and the key of a request that has arrived, after admissions and finishes are counted."""
        if self._rounds is not None:
            self._update_rounds(self._rounds)
            self._jobs[row] = job = self._traffic.job(row)
            job.cached_tokens = int(self._keys.progress["cached"][row])
            self._keys.progress["round"][row] = self._rounds.enter(job)
        if self._keys.policy.rekey == "on_progress":
            self._keys.rekey(self._waiting(row), self._view, now)

    def _answer_prediction(self, row: int) -> None:
        """Set the prediction of a job, and its round if it waits."""
        if self._rounds is not None:
            self._update_rounds(self._rounds)
            job, progress = self._jobs.get(row), self._keys.progress
            if job is None:  # refused or finished
                return
            before = job.median
            self._traffic.jobs.set_prediction(job, row, stage=-1)
            if progress["heap_index"][row] >= 0:
                progress["round"][row] = self._rounds.prediction_changed(job, int(progress["round"][row]), before)

    def _update_rounds(self, rounds: Rounds) -> None:
        """Count admissions and finishes since the last call."""
        requests = self._traffic.requests
        for event in self._arrays["events"]["value"][self._rounds_seen : int(self.record["n_events"])].tolist():
            if event >= 0:
                rounds.admitted(int(self._keys.progress["round"][event]))
                if self._keys.selects:
                    rounds.selected(self._jobs[event])  # type: ignore[attr-defined]
            else:
                job = self._jobs.pop(-1 - event)
                job.generated = int(requests["generated"][-1 - event])
                rounds.finished(job)
        self._rounds_seen = int(self.record["n_events"])

    def _waiting(self, rows: NDArray[np.integer] | int) -> JobProgress:
        rows = np.atleast_1d(rows)
        requests = self._traffic.requests[rows]
        return JobProgress(rows, requests, self._keys.progress[rows], requests["generated"])

    def _running(self) -> JobProgress:
        running = self._arrays["running"][: int(self.record["n_running"])]
        rows = running["row"]
        requests = self._traffic.requests[rows]
        return JobProgress(rows, requests, self._keys.progress[rows], running["tokens"] - requests["prompt"])

    def _grow(self) -> None:
        full = ["waiting", "by_deadline"] if self.record["n_waiting"] + 1 >= self.record["waiting_size"] else ["events"]
        self._use(**{name: np.resize(self._arrays[name], 2 * len(self._arrays[name])) for name in full})


class CompiledGroup(FleetEngines[CompiledEngine]):
    """Compiled engines; one call of the kernel asks all of them what happened."""

    def __init__(self, fleet: Fleet, policy: Policy, traffic: Traffic, *, decision_s: float = 0.0) -> None:
        super().__init__(fleet)
        self._traffic, self._decision_s = traffic, decision_s
        self._keys = PolicyKeys(policy, traffic.jobs)
        self._keys_used = self._keys.keys
        self._addresses = np.zeros(len(fleet), np.int64)
        self._found = cast("Records", np.zeros(_EVENTS, r.EVENT))

    def make(self, spec: EngineSpec) -> CompiledEngine:
        """Return an empty engine."""
        return CompiledEngine(spec, self._keys, self._traffic, decision_s=self._decision_s)

    def start(self, number: int) -> CompiledEngine:
        """Start an engine that is not running, and return it, empty."""
        engine = super().start(number)
        self._addresses[number] = engine.address
        return engine

    def released(self, row: int) -> None:
        """Note that the arrival of a request has become known."""
        with policy_calls(self._keys.policy):
            self._keys.released(row)

    def stop(self, number: int) -> None:
        """Remove an engine and its requests, which may be sent to another one."""
        self._keys.progress[self._running(number).rows] = _UNSENT
        super().stop(number)

    def happened(self, until: float, only: int | None = None) -> list[EngineEvent]:
        """Return new events up to a time, in the order of the fleet; `only`: of one engine."""
        first, last = 0, len(self.engines)
        if only is not None:
            first, last, self.next_event_s[only] = only, only + 1, until
        events: list[EngineEvent] = []
        while True:
            if self._keys_used is not self._keys.keys:
                self._keys_used = self._keys.keys
                for engine in self.engines:
                    if engine is not None:
                        engine.use_keys()
            code, first, count = _group_kernel(self._addresses, self.next_event_s, first, last, until, self._found)
            events += self._found[:count].tolist()
            if code == r.DONE:
                return events
            if code != r.FULL:
                self._running(first).answer(code)

    def _running(self, number: int) -> CompiledEngine:
        engine = self.engines[number]
        assert engine is not None  # noqa: S101  # the caller has the number of one
        return engine


@lru_cache(maxsize=64)
def _parameters(cost: costs.CostModel) -> Record:
    return cost.parameters()


def _engine_record(spec: EngineSpec, policy: Policy, traffic: Traffic) -> Records:
    """Return an engine's record with its limits and options."""
    engine = np.zeros(1, r.ENGINE)
    record = engine[0]
    for limit in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
        record[limit] = getattr(spec, limit)
    record["n_blocks"] = record["free"] = spec.kv_blocks
    record["cost"] = _parameters(spec.cost)
    record["rekey"], record["preempts"] = _REKEY[policy.rekey], policy.preempts
    if selects(policy):
        record["rekey"] = r.SELECTED
    record["evicts_last"] = getattr(type(policy), "eviction_scores", None) is BasePolicy.eviction_scores
    record["rate"] = r.state_record(TokenRate())[0]
    record["preempt_check_interval"] = policy.preempt_check_interval
    reports_cached = spec.prefix_caching and traffic.workload.has_blocks
    record["reports_cached"] = reports_cached and (
        policy.rekey in ("on_progress", "on_time") or policy.rounds() is not None
    )
    record["asks_on_arrival"] = policy.rounds() is not None or (reports_cached and policy.rekey == "on_progress")
    record["cache_mode"] = _caches(spec, traffic)
    record["blocks_per_hash"], record["hashes_per_block"] = block_ratio(spec, traffic.workload)
    record["admission"] = _ADMISSION[spec.admission]
    record["chunked_prefill"] = spec.chunked_prefill
    record["prediction_delay"] = traffic.jobs.delay_s
    record["answer"] = r.NO_ANSWER
    for row in ("asked_row", "pending", "no_victim_for", "retained_first", "retained_last", "selected"):
        record[row] = r.NONE
    record["keyed_at"] = -np.inf
    record["column"] = r.STALE if policy.rekey == "on_level" else 0
    record["sample_every"] = SAMPLE_EVERY_S
    record["stages"] = len(traffic.jobs.tables)
    return cast("Records", engine)


def _use_compiled(record: Record, policy: Policy, code: int) -> None:
    """Let the kernel decide in place of the policy."""
    record["policy"], record["asks_on_arrival"] = code, 0
    if code in (r.SLO, r.ONTIME, r.HRRN):
        record["rekey"] = r.SELECTED
    elif code in (r.BOOST, r.SRPT, r.GITTINS):
        record["rekey"] = r.NEVER  # the kernel computes a key whenever a request joins the queue
    parameters: dict[type, tuple[str, ...]] = {
        Boost: ("horizon", "scale"),
        Srpt: ("margin", "times", "c"),
        Gittins: ("margin", "times"),
    }
    for place, name in enumerate(parameters.get(type(policy), ())):
        record["policy_parameters"][place] = getattr(policy, name)
    if isinstance(policy, Slo):
        record["policy_parameters"][0] = np.nan if isinstance(policy.seconds, str) else policy.seconds


def _policy_state(policy: Policy, code: int) -> dict[str, NDArray[Any]]:
    """Return the state of a compiled policy for one engine."""
    name = {r.LENGTHWISE: "lanes", r.SLO: "target", r.ONTIME: "target", r.PREBLE: "groups"}.get(code)
    if name is None:
        return {}
    return {name: r.state_record(policy.rounds()), "calibration": r.state_record(LengthCalibration())}


def _engine_arrays(spec: EngineSpec, traffic: Traffic, *, by_level: bool) -> dict[str, NDArray[Any]]:
    """Return the arrays of an empty engine, all blocks free."""
    seqs = min(spec.max_num_seqs, len(traffic.requests))
    blocks, entries, tables = 0, 1, (1, 1)
    if _caches(spec, traffic) == r.BY_BLOCK:
        blocks = spec.kv_blocks
        entries = 1 << (2 * blocks).bit_length()
        tables = (seqs, -(-min(traffic.longest, spec.max_model_len) // spec.block_size))
    free = np.zeros(blocks + 1, r.BLOCK)
    free["before"], free["after"] = np.arange(-1, blocks), np.arange(1, blocks + 2)
    free["before"][0], free["after"][-1] = blocks, 0
    levels = np.zeros(_LEVELS if by_level else 1, r.LEVEL)
    levels["pair"] = -1
    return {
        "rows": np.empty(64, r.INT),
        "waiting": np.empty(64, r.WAITING),
        "by_deadline": np.empty(64, r.BY_DEADLINE),
        "running": np.empty(seqs + 1, r.RUNNING),
        "levels": levels,
        "events": np.empty(1024, r.INT),
        "samples": np.empty(MAX_SAMPLES, SAMPLE),
        "blocks": free,
        "index": np.zeros(entries, r.INDEX),
        "tables": np.empty(tables, r.INT),
        "demands": np.empty(seqs + 2, r.DEMAND),
        "growth": np.empty(spec.block_size, r.INT),
        "free_tables": np.arange(seqs, dtype=np.int32).view(r.INT),
    }


def _caches(spec: EngineSpec, traffic: Traffic) -> int:
    """Return what the prefix cache tracks: single blocks only where requests may share prefixes."""
    if not spec.prefix_caching:
        return r.NOTHING
    return r.BY_BLOCK if traffic.workload.has_blocks else r.OWN_ONLY
