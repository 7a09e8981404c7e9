"""The expected work of each engine, updated by every choice and event from predicted lengths.

Nothing is computed between two events. Every running job gets a token in each decode step, so one number per engine,
its clock in steps, serves them all: a job that starts at step s with r tokens to generate ends at s + r, and the engine
has sum(ends) - running * clock tokens left. The clock advances at the engine's speed and stops while prompts are
computed. A job that outlives its prediction gets a new end from the remaining length at its age, by a heap of ends:
O(log n).

Feedback may be late, duplicated, out of order or missing. Each job is entered once, under its id, with the amounts it
adds to each sum, and exactly these are subtracted when it leaves; events about a job that is not on that engine are
ignored. Without `Admitted`, jobs are assumed to run as soon as a slot is free, in order of arrival. A job without
events for `SILENCE_S` is dropped; a scrape that reports fewer jobs than the ledger has drops those silent for longest,
and one that reports more adds the difference as foreign load.

Jobs are rows of numbers, linked into lists and heaps by their row numbers. What runs for every event is compiled; row
numbers and numbers of engines are int64 there, so that each function is compiled once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.compiled import Form, as_compiled, compiled, inlined, inlined_copies
from lengthwise.lengths import TIE_NU, log_t
from lengthwise.policies import Job
from lengthwise.policies.job import CVAR_ALPHA
from lengthwise.policies.residual import expected_remaining
from lengthwise.routers.base import EngineInfo, Scraped

Number = TypeVar("Number", bound=np.generic)
Int = Any
"""A NumPy integer of any width."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

SILENCE_S: Final = 3600.0
"""A job without events for this long is dropped."""
GRACE_S: Final = 5.0
"""A scrape may not yet include a job with an event this shortly before it."""
_TAIL_SIGMAS: Final = 1.755  # CVaR at 0.9 of a normal distribution, in standard deviations above the mean

# Columns of `loads`. Sums are over live jobs: those sent to the engine and not finished. `lengthwise.py` repeats the
# numbers, because the cache of compiled code notices changes of functions only, not of constants.
UP = 0  # 1 or 0
LIVE = 1  # jobs
RUNNING = 2  # live jobs that are assumed to run
ENDS = 3  # sum over running jobs of the decode step at which each is expected to end
WAITING_TOKENS = 4  # expected output tokens of waiting jobs
CLOCK = 5  # decode steps taken, as far as can be known
STARTS = 6  # sum over running jobs of the decode step at which each started its answer
BUSY_UNTIL = 7  # seconds: when the prompts sent so far are computed; the clock stops until then
UNCACHED = 8  # prompt tokens that had to be computed
PROMPT_S = 9  # seconds of prefill for these
CONTEXT = 10  # tokens of prompts and expected answers
PRIVATE = 11  # the same without cached prompt tokens: what is not shared
SPREAD = 12  # variance of PRIVATE, tokens squared
_MAX_FOREIGN = 32.0  # requests of others for one of this router's
FOREIGN = 13  # requests that the engine reports and that this router did not send
SCRAPED_AT = 14  # seconds
KV_USE = 15  # share of KV memory as scraped; NaN if unknown
PREFILL_TOKEN_S = 16
PREFILL_PAIR_S = 17
STEP_S = 18
SEQUENCE_S = 19
KV_TOKEN_S = 20
MAX_NUM_SEQS = 21
KV_TOKENS = 22
BLOCK_TOKENS = 23
LOAD_COLUMNS: Final = 24

# Columns of `jobs`.
SENT, NEWS, TOKENS, MU, SIGMA, CAP, EXPECTED, BEFORE = 0, 1, 2, 3, 4, 5, 6, 7
OWN_UNCACHED, OWN_CONTEXT, OWN_PRIVATE, OWN_SPREAD, START, END, OWN_PROMPT_S = 8, 9, 10, 11, 12, 13, 14
JOB_COLUMNS: Final = 15
# Columns of `links`: engine, or NONE for a free row; position in the heap, or NONE for a waiting job; two lists.
ENGINE, PLACE, QUEUE_BEFORE, QUEUE_AFTER, NEWS_BEFORE, NEWS_AFTER = 0, 1, 2, 3, 4, 5
LINK_COLUMNS: Final = 6
FIRST, LAST, FREE = 0, 1, 2
NONE: Final = -1

_CLOCK_SLACK: Final = 0.1  # of a certain length that the clock, which is not exact, says is outlived

*_, _expected_rest = inlined_copies(log_t.survival, log_t.integrate_survival, log_t.expected_rest)
(_integrate_tail,) = inlined_copies(log_t.integrate_tail)
_DENSITY, _FIRST, _WIDTH, _T, _WEIGHTS, _MASS_ABOVE, _FIRST_TAIL_NODE = log_t.tail_rule(TIE_NU, CVAR_ALPHA)[2:]


class LedgerArrays(NamedTuple):
    """The memory of a ledger."""

    loads: Floats  # [number, column]
    jobs: Floats  # [job, column]
    links: Ints  # [job, column]
    heaps: Ints  # [number, position]: running jobs as a heap, the one that ends first at 0
    queues: Ints  # [number, FIRST or LAST]: waiting jobs, in order of arrival
    news: Ints  # FIRST and LAST of all jobs by their last event, the oldest first; then the first free row


@compiled
def log_t_moments(mu: float, sigma: float, cap: float) -> tuple[float, float]:
    """Return E[min(X, cap)] and its CVaR for a log-t X."""
    return _integrate_tail(
        mu, sigma, cap, TIE_NU, CVAR_ALPHA, _DENSITY, _FIRST, _WIDTH, _T, _WEIGHTS, _MASS_ABOVE, _FIRST_TAIL_NODE
    )


@inlined
def remaining_after(job: Any, generated: float) -> float:
    """Return the expected tokens after `generated`, which the clock implies; at least one."""
    if generated <= 0.0:
        return max(1.0, job[TOKENS])
    age = job[BEFORE] + generated
    if job[SIGMA] <= 0.0:
        return max(1.0, job[EXPECTED] - age if age < job[EXPECTED] else _CLOCK_SLACK * job[EXPECTED])
    return max(1.0, _expected_rest(job[MU], job[SIGMA], job[CAP], age))


@inlined
def rise(jobs: Floats, links: Ints, heap: Any, place: Int) -> None:
    """Move a job up its heap."""
    job = heap[place]
    while place > 0:
        above = (place - 1) >> 1
        if jobs[heap[above], END] <= jobs[job, END]:
            break
        heap[place] = heap[above]
        links[heap[place], PLACE] = place
        place = above
    heap[place] = job
    links[job, PLACE] = place


@inlined
def sink(jobs: Floats, links: Ints, heap: Any, place: Int, size: Int) -> None:
    """Move a job down its heap."""
    job = heap[place]
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and jobs[heap[below + 1], END] < jobs[heap[below], END]:
            below += 1
        if jobs[job, END] <= jobs[heap[below], END]:
            break
        heap[place] = heap[below]
        links[heap[place], PLACE] = place
        place = below
    heap[place] = job
    links[job, PLACE] = place


@inlined
def list_append(links: Ints, ends: Any, job: Int, before: Int, after: Int) -> None:
    """Append a job to a doubly linked list, whose links are two columns of `links`."""
    links[job, before], links[job, after] = ends[LAST], NONE
    if ends[LAST] == NONE:
        ends[FIRST] = job
    else:
        links[ends[LAST], after] = job
    ends[LAST] = job


@inlined
def list_remove(links: Ints, ends: Any, job: Int, before: Int, after: Int) -> None:
    """Remove a job from a list."""
    if links[job, before] == NONE:
        ends[FIRST] = links[job, after]
    else:
        links[links[job, before], after] = links[job, after]
    if links[job, after] == NONE:
        ends[LAST] = links[job, before]
    else:
        links[links[job, after], before] = links[job, before]


@inlined
def stop(ledger: LedgerArrays, job: Int) -> None:
    """Remove a job from the running or the waiting ones."""
    jobs, links = ledger.jobs, ledger.links
    number, place = np.int64(links[job, ENGINE]), np.int64(links[job, PLACE])
    load = ledger.loads[number]
    if place == NONE:
        list_remove(links, ledger.queues[number], job, QUEUE_BEFORE, QUEUE_AFTER)
        load[WAITING_TOKENS] -= jobs[job, TOKENS]
        return
    load[ENDS] -= jobs[job, END]
    load[STARTS] -= jobs[job, START]
    load[RUNNING] -= 1.0
    heap, size = ledger.heaps[number], int(load[RUNNING])
    links[job, PLACE] = NONE
    if place < size:
        other = heap[size]
        heap[place] = other
        links[other, PLACE] = place
        rise(jobs, links, heap, place)
        sink(jobs, links, heap, np.int64(links[other, PLACE]), size)


@inlined
def run(ledger: LedgerArrays, job: Int, generated: float) -> None:
    """Let a job run that has `generated` tokens."""
    stop(ledger, job)
    number = np.int64(ledger.links[job, ENGINE])
    load, row, heap = ledger.loads[number], ledger.jobs[job], ledger.heaps[number]
    row[START] = load[CLOCK] - generated
    row[END] = load[CLOCK] + remaining_after(row, generated)
    place = int(load[RUNNING])
    load[ENDS] += row[END]
    load[STARTS] += row[START]
    load[RUNNING] += 1.0
    heap[place] = job
    rise(ledger.jobs, ledger.links, heap, place)


@inlined
def admit_waiting(ledger: LedgerArrays, number: Int) -> None:
    """Let waiting jobs run while slots are free, in order of arrival."""
    load, queue = ledger.loads[number], ledger.queues[number]
    while queue[FIRST] != NONE and load[RUNNING] < load[MAX_NUM_SEQS]:
        run(ledger, np.int64(queue[FIRST]), 0.0)


@inlined
def settle(ledger: LedgerArrays, number: Int, now: float) -> None:
    """Advance an engine's clock to `now` and give jobs that outlived their prediction a new end."""
    load = ledger.loads[number]
    elapsed = now - load[BUSY_UNTIL]
    if elapsed <= 0.0:
        return
    load[BUSY_UNTIL] = now
    running = load[RUNNING]
    if running == 0.0:
        return
    context = load[CONTEXT] * running / load[LIVE]
    load[CLOCK] += elapsed / (load[STEP_S] + load[SEQUENCE_S] * running + load[KV_TOKEN_S] * context)
    while True:
        job = np.int64(ledger.heaps[number, 0])
        if ledger.jobs[job, END] > load[CLOCK]:
            return
        run(ledger, job, load[CLOCK] - ledger.jobs[job, START])


@compiled
def send(
    number: int,
    now: float,
    tokens: float,
    mu: float,
    sigma: float,
    cap: float,
    expected: float,
    before: float,
    prompt: float,
    cached: float,
    spread: float,
    loads: Floats,
    jobs: Floats,
    links: Ints,
    heaps: Ints,
    queues: Ints,
    news: Ints,
) -> int:
    """Enter a job and return its row.

    Functions that Python calls take the arrays one by one: Numba reads a named tuple twice as slowly.
    """
    ledger = LedgerArrays(loads, jobs, links, heaps, queues, news)
    settle(ledger, number, now)
    job = np.int64(news[FREE])
    news[FREE] = links[job, NEWS_AFTER]
    load, row = loads[number], jobs[job]
    uncached = max(1.0, prompt - cached)
    prompt_s = uncached * (load[PREFILL_TOKEN_S] + load[PREFILL_PAIR_S] * (prompt + prompt - uncached))
    row[SENT] = row[NEWS] = now
    row[TOKENS], row[MU], row[SIGMA], row[CAP] = tokens, mu, sigma, cap
    row[EXPECTED], row[BEFORE] = expected, before
    row[OWN_UNCACHED], row[OWN_CONTEXT] = uncached, prompt + tokens
    row[OWN_PRIVATE], row[OWN_SPREAD], row[OWN_PROMPT_S] = uncached + tokens, spread, prompt_s
    links[job, ENGINE], links[job, PLACE] = number, NONE
    load[BUSY_UNTIL] = max(now, load[BUSY_UNTIL]) + prompt_s
    load[LIVE] += 1.0
    load[UNCACHED] += uncached
    load[PROMPT_S] += prompt_s
    load[CONTEXT] += prompt + tokens
    load[PRIVATE] += uncached + tokens
    load[SPREAD] += spread
    load[WAITING_TOKENS] += tokens
    list_append(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    list_append(links, queues[number], job, QUEUE_BEFORE, QUEUE_AFTER)
    admit_waiting(ledger, number)
    return int(job)


@compiled
def admit(
    job: int, now: float, loads: Floats, jobs: Floats, links: Ints, heaps: Ints, queues: Ints, news: Ints
) -> None:
    """Record that the engine starts to compute a job."""
    ledger = LedgerArrays(loads, jobs, links, heaps, queues, news)
    row = jobs[job]
    number = np.int64(links[job, ENGINE])
    row[NEWS] = max(row[NEWS], now)
    list_remove(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    list_append(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    if links[job, PLACE] != NONE or loads[number, RUNNING] < heaps.shape[1]:
        settle(ledger, number, now)
        run(ledger, job, 0.0)


@compiled
def leave(
    job: int, now: float, loads: Floats, jobs: Floats, links: Ints, heaps: Ints, queues: Ints, news: Ints
) -> None:
    """Remove a job and subtract everything it added."""
    ledger = LedgerArrays(loads, jobs, links, heaps, queues, news)
    number = np.int64(links[job, ENGINE])
    settle(ledger, number, now)
    stop(ledger, job)
    load, row = loads[number], jobs[job]
    load[LIVE] -= 1.0
    load[UNCACHED] -= row[OWN_UNCACHED]
    load[PROMPT_S] -= row[OWN_PROMPT_S]
    load[CONTEXT] -= row[OWN_CONTEXT]
    load[PRIVATE] -= row[OWN_PRIVATE]
    load[SPREAD] -= row[OWN_SPREAD]
    list_remove(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    links[job, ENGINE], links[job, NEWS_AFTER] = NONE, news[FREE]
    news[FREE] = job
    if load[LIVE] == 0.0:  # sums of floats need not return to exactly 0
        load[LIVE : SPREAD + 1] = 0.0
        load[BUSY_UNTIL] = -math.inf
    else:
        admit_waiting(ledger, number)


def remaining_and_variance(job: Job) -> tuple[float, float]:
    """Return the expected tokens that a job has left, and the variance of its output length.

    The variance is that of the distance of the prediction's CVaR to its mean.
    """
    expected, tail = job.compute_moments(log_t_moments)
    above = max(0.0, tail - expected) / _TAIL_SIGMAS
    tokens = expected if job.generated <= 0 else expected_remaining(job)
    return float(tokens), float(above * above)


class Ledger:
    """The work of all engines, by their numbers."""

    def __init__(self, form: Form = as_compiled) -> None:
        self._send, self._admit, self._leave = form(send), form(admit), form(leave)
        self._foreign_per_job = 0.0
        self._rows: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._blocks: list[NDArray[np.uint64] | None] = []
        self._arrays = LedgerArrays(
            loads=np.zeros((8, LOAD_COLUMNS)),
            jobs=np.zeros((0, JOB_COLUMNS)),
            links=np.zeros((0, LINK_COLUMNS), np.int32),
            heaps=np.zeros((8, 8), np.int32),
            queues=np.full((8, 2), NONE, np.int32),
            news=np.array([NONE, NONE, 0], np.int32),
        )

    @property
    def loads(self) -> NDArray[np.float64]:
        """One row per engine, in the columns above; read only."""
        return self._arrays.loads

    def __len__(self) -> int:
        """Return the number of live jobs."""
        return len(self._rows)

    def __contains__(self, job: str) -> bool:
        return job in self._rows

    def add(self, number: int, engine: EngineInfo) -> None:
        """Add an engine, or update the description of a known one."""
        arrays = self._arrays
        size, width = arrays.heaps.shape
        while number >= size:
            size *= 2
        width = max(width, engine.max_num_seqs)
        if (size, width) != arrays.heaps.shape:
            self._arrays = arrays._replace(
                loads=_grown(arrays.loads, (size, LOAD_COLUMNS)),
                heaps=_grown(arrays.heaps, (size, width)),
                queues=_grown(arrays.queues, (size, 2), NONE),
            )
        row, speed = self.loads[number], engine.speed
        if not row[UP]:
            row[BUSY_UNTIL] = row[SCRAPED_AT] = -math.inf
            row[KV_USE] = math.nan
        row[UP] = 1.0
        row[PREFILL_TOKEN_S:] = (
            speed.prefill_token_s,
            speed.prefill_pair_s,
            speed.step_s,
            speed.sequence_s,
            speed.kv_token_s,
            engine.max_num_seqs,
            engine.kv_tokens,
            engine.block_tokens,
        )

    def remove(self, number: int) -> None:
        """Remove an engine and its jobs."""
        for row in np.flatnonzero(self._arrays.links[:, ENGINE] == number).tolist():
            self._drop(row, -math.inf)
        self.loads[number] = 0.0

    def sent(self, job: Job, number: int, now: float, cached: float, blocks: NDArray[np.uint64]) -> None:
        """Enter a job on an engine that has `cached` tokens of its prompt; a retry replaces the earlier entry."""
        if job.id in self._rows:
            self._drop(self._rows[job.id], now)
        if len(self._rows) == len(self._ids):
            self._grow()
        tokens, spread = remaining_and_variance(job)
        row = self._send(
            number,
            float(now),  # always a float: an int would be compiled as a second specialisation
            tokens,
            float(job.mu),
            float(job.sigma),
            float(job.cap),
            tokens if job.generated <= 0 else float(job.expected),
            float(job.generated),
            float(job.prompt_tokens + job.generated),
            cached,
            spread,
            *self._arrays,
        )
        self._rows[job.id] = row
        self._ids[row], self._blocks[row] = job.id, blocks
        # Other routers see the same reports and choose alike: until the next report each job stands for theirs too,
        # or all of them would send to the engine that was the emptiest.
        if self._foreign_per_job:
            self.loads[number, FOREIGN] += self._foreign_per_job

    def admitted(self, job: str, number: int, now: float) -> None:
        """Record that the engine starts to compute a job."""
        row = self._row(job, number)
        if row is not None:
            self._admit(row, float(now), *self._arrays)

    def finished(self, job: str, number: int, now: float) -> NDArray[np.uint64] | None:
        """Remove a finished job and return the blocks of its prompt; None for an unknown job."""
        row = self._row(job, number)
        return None if row is None else self._drop(row, now)

    def scraped(self, number: int, metrics: Scraped) -> None:
        """Reconcile with an engine's metrics: drop silent jobs if it reports fewer, add foreign load if more."""
        load = self.loads[number]
        if metrics.now < load[SCRAPED_AT]:
            return
        load[SCRAPED_AT] = metrics.now
        load[KV_USE] = math.nan if metrics.kv_use is None else metrics.kv_use
        jobs, links = self._arrays.jobs, self._arrays.links
        known = int(load[LIVE])
        for row in self._by_news(LAST, NEWS_BEFORE):
            if jobs[row, NEWS] <= metrics.now:
                break
            known -= int(links[row, ENGINE] == number and jobs[row, SENT] > metrics.now)
        excess = known - metrics.running - metrics.waiting
        load[FOREIGN] = max(0, -excess)
        self._foreign_per_job = min(self.loads[:, FOREIGN].sum() / max(1.0, self.loads[:, LIVE].sum()), _MAX_FOREIGN)
        for row in self._by_news(FIRST, NEWS_AFTER) if excess > 0 else ():
            if excess == 0 or jobs[row, NEWS] > metrics.now - GRACE_S:
                return
            if links[row, ENGINE] == number:
                self._drop(row, metrics.now)
                excess -= 1

    def drop_silent(self, now: float) -> None:
        """Drop jobs without events for `SILENCE_S`."""
        arrays = self._arrays
        while (row := int(arrays.news[FIRST])) != NONE and arrays.jobs[row, NEWS] < now - SILENCE_S:
            self._drop(row, now)

    def _row(self, job: str, number: int) -> int | None:
        row = self._rows.get(job)
        return row if row is not None and self._arrays.links[row, ENGINE] == number else None

    def _drop(self, row: int, now: float) -> NDArray[np.uint64] | None:
        self._leave(row, float(now), *self._arrays)
        job, blocks = self._ids[row], self._blocks[row]
        self._ids[row] = self._blocks[row] = None
        if job is not None:
            del self._rows[job]
        return blocks

    def _by_news(self, end: int, link: int) -> Iterator[int]:
        """Iterate over live jobs by their last event, from either end; the current one may be dropped."""
        row = int(self._arrays.news[end])
        while row != NONE:
            following = int(self._arrays.links[row, link])
            yield row
            row = following

    def _grow(self) -> None:
        """Double the capacity for jobs; free rows are chained."""
        arrays, before = self._arrays, len(self._ids)
        after = max(256, 2 * before)
        links = _grown(arrays.links, (after, LINK_COLUMNS))
        links[before:, ENGINE] = NONE
        links[before:, NEWS_AFTER] = np.arange(before + 1, after + 1)
        self._arrays = arrays._replace(jobs=_grown(arrays.jobs, (after, JOB_COLUMNS)), links=links)
        self._ids += [None] * (after - before)
        self._blocks += [None] * (after - before)


def _grown(old: NDArray[Number], shape: tuple[int, int], fill: int = 0) -> NDArray[Number]:
    new = np.full(shape, fill, old.dtype)
    new[: old.shape[0], : old.shape[1]] = old
    return new
