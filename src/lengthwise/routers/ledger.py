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
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from lengthwise.lengths import TIE_NU
from lengthwise.policies import Job
from lengthwise.policies.residual import expected_remaining
from lengthwise.routers import ledger_kernel as kernel
from lengthwise.routers.contract import EngineInfo, Scraped
from lengthwise.routers.ledger_kernel import FIRST, FREE, LAST, NEWS_AFTER, NEWS_BEFORE, NONE, SLOT, LedgerArrays

Number = TypeVar("Number", bound=np.generic)

SILENCE_S: Final = 3600.0
"""A job without events for this long is dropped."""
GRACE_S: Final = 5.0
"""A scrape may not yet include a job with an event this shortly before it."""
_TAIL_SIGMAS: Final = 1.755  # CVaR at 0.9 of a normal distribution, in standard deviations above the mean
SURVIVAL_CURVE = stdtr(TIE_NU, -np.sinh(np.arange(-kernel.CURVE_REACH, kernel.CURVE_REACH, kernel.CURVE_STEP)))
"""P(Z > z) of the standard t distribution, at equal steps of asinh z."""


class Load(IntEnum):
    """The columns of `Ledger.loads`. Sums are over live jobs: those sent to the engine and not finished.

    Compiled modules repeat the numbers, because Numba's cache notices changes of the defining file only.
    """

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


def variance(job: Job) -> float:
    """Return the variance of the output length, from the distance of the prediction's CVaR to its mean."""
    above = max(0.0, job.tail - job.expected) / _TAIL_SIGMAS
    return float(above * above)


class Ledger:
    """The work of all engines, by slot."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._blocks: list[NDArray[np.uint64] | None] = []
        self._arrays = LedgerArrays(
            loads=np.zeros((8, len(Load))),
            jobs=np.zeros((0, kernel.JOB_COLUMNS)),
            links=np.zeros((0, kernel.LINK_COLUMNS), np.int32),
            heaps=np.zeros((8, 8), np.int32),
            queues=np.full((8, 2), NONE, np.int32),
            news=np.array([NONE, NONE, 0], np.int32),
            curve=SURVIVAL_CURVE,
        )

    @property
    def loads(self) -> NDArray[np.float64]:
        """One row per slot, in the columns of `Load`; read only."""
        return self._arrays.loads

    def __len__(self) -> int:
        """Return the number of live jobs."""
        return len(self._rows)

    def __contains__(self, job: str) -> bool:
        return job in self._rows

    def add(self, slot: int, engine: EngineInfo) -> None:
        """Add an engine, or update the description of a known one."""
        arrays = self._arrays
        size, width = arrays.heaps.shape
        while slot >= size:
            size *= 2
        width = max(width, engine.max_num_seqs)
        if (size, width) != arrays.heaps.shape:
            self._arrays = arrays._replace(
                loads=_grown(arrays.loads, (size, len(Load))),
                heaps=_grown(arrays.heaps, (size, width)),
                queues=_grown(arrays.queues, (size, 2), NONE),
            )
        row, speed = self.loads[slot], engine.speed
        if not row[Load.UP]:
            row[Load.BUSY_UNTIL] = row[Load.SCRAPED_AT] = -math.inf
            row[Load.KV_USE] = math.nan
        row[Load.UP] = 1.0
        row[Load.PREFILL_TOKEN_S :] = (
            speed.prefill_token_s,
            speed.prefill_pair_s,
            speed.step_s,
            speed.sequence_s,
            speed.kv_token_s,
            engine.max_num_seqs,
            engine.kv_tokens,
            engine.block_tokens,
        )

    def remove(self, slot: int) -> None:
        """Remove an engine and its jobs."""
        for row in np.flatnonzero(self._arrays.links[:, SLOT] == slot).tolist():
            self._drop(row, -math.inf)
        self.loads[slot] = 0.0

    def sent(self, job: Job, slot: int, now: float, cached: float, blocks: NDArray[np.uint64]) -> None:
        """Enter a job on an engine that has `cached` tokens of its prompt; a retry replaces the earlier entry."""
        if job.id in self._rows:
            self._drop(self._rows[job.id], now)
        if self._arrays.news[FREE] >= len(self._ids):
            self._grow()
        row = kernel.send(
            *self._arrays,
            slot,
            float(now),  # always a float: an int would be compiled as a second specialisation
            float(expected_remaining(job)),
            float(job.mu),
            float(job.sigma),
            float(job.cap),
            float(job.expected),
            float(job.generated),
            float(job.prompt_tokens + job.generated),
            cached,
            variance(job),
        )
        self._rows[job.id] = row
        self._ids[row], self._blocks[row] = job.id, blocks

    def progressed(self, job: str, slot: int, now: float, generated: int = 0) -> None:
        """Record that a job started (0) or has `generated` tokens; fewer than known before is out of date."""
        row = self._row(job, slot)
        if row is not None:
            kernel.on_progress(*self._arrays, row, float(now), float(generated))

    def finished(self, job: str, slot: int, now: float) -> NDArray[np.uint64] | None:
        """Remove a finished job and return the blocks of its prompt; None for an unknown job."""
        row = self._row(job, slot)
        return None if row is None else self._drop(row, now)

    def scraped(self, slot: int, metrics: Scraped) -> None:
        """Reconcile with an engine's metrics: drop silent jobs if it reports fewer, add foreign load if more."""
        load = self.loads[slot]
        if metrics.now < load[Load.SCRAPED_AT]:
            return
        load[Load.SCRAPED_AT] = metrics.now
        load[Load.KV_USE] = math.nan if metrics.kv_use is None else metrics.kv_use
        jobs, links = self._arrays.jobs, self._arrays.links
        known = int(load[Load.LIVE])
        for row in self._by_news(LAST, NEWS_BEFORE):
            if jobs[row, kernel.NEWS] <= metrics.now:
                break
            known -= int(links[row, SLOT] == slot and jobs[row, kernel.SENT] > metrics.now)
        excess = known - metrics.running - metrics.waiting
        load[Load.FOREIGN] = max(0, -excess)
        for row in self._by_news(FIRST, NEWS_AFTER) if excess > 0 else ():
            if excess == 0 or jobs[row, kernel.NEWS] > metrics.now - GRACE_S:
                return
            if links[row, SLOT] == slot:
                self._drop(row, metrics.now)
                excess -= 1

    def drop_silent(self, now: float) -> None:
        """Drop jobs without events for `SILENCE_S`."""
        arrays = self._arrays
        while (row := int(arrays.news[FIRST])) != NONE and arrays.jobs[row, kernel.NEWS] < now - SILENCE_S:
            self._drop(row, now)

    def _row(self, job: str, slot: int) -> int | None:
        row = self._rows.get(job)
        return row if row is not None and self._arrays.links[row, SLOT] == slot else None

    def _drop(self, row: int, now: float) -> NDArray[np.uint64] | None:
        kernel.leave(*self._arrays, row, float(now))
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
        links = _grown(arrays.links, (after, kernel.LINK_COLUMNS))
        links[before:, SLOT] = NONE
        links[before:, NEWS_AFTER] = np.arange(before + 1, after + 1)
        self._arrays = arrays._replace(jobs=_grown(arrays.jobs, (after, kernel.JOB_COLUMNS)), links=links)
        self._ids += [None] * (after - before)
        self._blocks += [None] * (after - before)


def _grown(old: NDArray[Number], shape: tuple[int, int], fill: int = 0) -> NDArray[Number]:
    new = np.full(shape, fill, old.dtype)
    new[: old.shape[0], : old.shape[1]] = old
    return new
