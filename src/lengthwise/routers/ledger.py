"""What each engine still has to do, kept up to date by every choice and event, from predictions about lengths.

Between two events nothing is computed. All who run on an engine get a token in each decode step, so one number per
engine, its clock in steps, carries them all: a job that begins at step s with r tokens to come ends at s + r, and
what is left on the engine is sum(ends) - running * clock. The clock goes with time at the engine's speed and stands
still while prompts are computed. Who outlives what was predicted is predicted anew, from a heap by ends: O(log n).

Feedback may come late, twice, in any order or never. Each job is entered once, under its id, with what it added to
each sum, and exactly that is taken off when it leaves; events about a job that is not on that engine are nothing.
Without `Admitted`, jobs are taken to run as soon as a place is free, in order of coming. A job of which nothing is
heard for `SILENCE_S` is forgotten; a scrape that knows of fewer jobs than we do makes us forget the most silent ones
at once, and one that knows of more adds the difference as foreign.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from lengthwise.lengths import TIE_NU
from lengthwise.policies import Job
from lengthwise.policies.residual import expected_remaining
from lengthwise.routers.contract import EngineInfo, Scraped
from lengthwise.routers.kernel import ledger as kernel
from lengthwise.routers.kernel.ledger import FIRST, FREE, LAST, NEWS_AFTER, NEWS_BEFORE, NONE, SLOT, Books
from lengthwise.routers.kernel.loads import Load

Number = TypeVar("Number", bound=np.generic)

SILENCE_S: Final = 3600.0
"""Without news for so long, a job is taken to be gone."""
GRACE_S: Final = 5.0
"""What was sent this shortly before a scrape may not be in it yet."""
_SIGMAS_OF_TAIL: Final = 1.755  # CVaR at 0.9 of a normal distribution, in standard deviations above the mean
_CURVE = stdtr(TIE_NU, -np.sinh(np.arange(-kernel.CURVE_REACH, kernel.CURVE_REACH, kernel.CURVE_STEP)))


def still_to_come(job: Job) -> float:
    """Expected tokens of answer still to come."""
    return job.expected if job.generated <= 0 else float(expected_remaining(job))


def variance(job: Job) -> float:
    """Of the answer's length, from how far the prediction's tail lies above its mean."""
    above = max(0.0, job.tail - job.expected) / _SIGMAS_OF_TAIL
    return float(above * above)


class Ledger:
    """The work of all engines, by slot. `loads` is for reading."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._ids: list[str | None] = []
        self._blocks: list[NDArray[np.uint64] | None] = []
        self._books = Books(
            loads=np.zeros((8, len(Load))),
            jobs=np.zeros((0, kernel.JOB_COLUMNS)),
            links=np.zeros((0, kernel.LINK_COLUMNS), np.int32),
            heaps=np.zeros((8, 8), np.int32),
            queues=np.full((8, 2), NONE, np.int32),
            news=np.array([NONE, NONE, 0], np.int32),
            curve=_CURVE,
        )

    @property
    def loads(self) -> NDArray[np.float64]:
        """What each engine has to do, in the columns of `Load`."""
        return self._books.loads

    def __len__(self) -> int:
        """Live jobs."""
        return len(self._rows)

    def __contains__(self, job: str) -> bool:
        return job in self._rows

    def add(self, slot: int, engine: EngineInfo) -> None:
        """Let an engine in; one that is there is described anew."""
        books = self._books
        size, wide = books.heaps.shape
        while slot >= size:
            size *= 2
        wide = max(wide, engine.max_num_seqs)
        if (size, wide) != books.heaps.shape:
            self._books = books._replace(
                loads=_grown(books.loads, (size, len(Load))),
                heaps=_grown(books.heaps, (size, wide)),
                queues=_grown(books.queues, (size, 2), NONE),
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
        """Forget an engine and who was there."""
        for row in np.flatnonzero(self._books.links[:, SLOT] == slot).tolist():
            self._drop(row, -math.inf)
        self.loads[slot] = 0.0

    def sent(self, job: Job, slot: int, now: float, cached: float, blocks: NDArray[np.uint64]) -> None:
        """A job goes to an engine that holds so many tokens of its prompt."""
        self.gone(job.id, now)
        if self._books.news[FREE] >= len(self._ids):
            self._grow()
        row = kernel.send(
            *self._books,
            slot,
            float(now),  # one kind of number always, or it is compiled again for the other
            float(still_to_come(job)),
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

    def heard(self, job: str, slot: int, now: float, generated: int = 0) -> None:
        """A job has begun, or has so many tokens; fewer than were known is old news."""
        row = self._row(job, slot)
        if row is not None:
            kernel.hear(*self._books, row, float(now), float(generated))

    def finished(self, job: str, slot: int, now: float) -> NDArray[np.uint64] | None:
        """A job is over; the blocks of its prompt, if it was there."""
        row = self._row(job, slot)
        return None if row is None else self._drop(row, now)

    def gone(self, job: str, now: float) -> None:
        """Forget a job, wherever it is."""
        row = self._rows.get(job)
        if row is not None:
            self._drop(row, now)

    def scraped(self, slot: int, said: Scraped) -> None:
        """Go by what the engine says where it knows of fewer or more jobs than we do."""
        load = self.loads[slot]
        if said.now < load[Load.SCRAPED_AT]:
            return
        load[Load.SCRAPED_AT] = said.now
        load[Load.KV_USE] = math.nan if said.kv_use is None else said.kv_use
        jobs, links = self._books.jobs, self._books.links
        known = int(load[Load.LIVE])
        for row in self._by_news(LAST, NEWS_BEFORE):
            if jobs[row, kernel.NEWS] <= said.now:
                break
            known -= int(links[row, SLOT] == slot and jobs[row, kernel.SENT] > said.now)
        excess = known - said.running - said.waiting
        load[Load.FOREIGN] = max(0, -excess)
        for row in self._by_news(FIRST, NEWS_AFTER) if excess > 0 else ():
            if excess == 0 or jobs[row, kernel.NEWS] > said.now - GRACE_S:
                return
            if links[row, SLOT] == slot:
                self._drop(row, said.now)
                excess -= 1

    def forget_silent(self, now: float) -> None:
        """Forget jobs of which nothing has been heard for too long."""
        books = self._books
        while (row := int(books.news[FIRST])) != NONE and books.jobs[row, kernel.NEWS] < now - SILENCE_S:
            self._drop(row, now)

    def _row(self, job: str, slot: int) -> int | None:
        row = self._rows.get(job)
        return row if row is not None and self._books.links[row, SLOT] == slot else None

    def _drop(self, row: int, now: float) -> NDArray[np.uint64] | None:
        kernel.leave(*self._books, row, float(now))
        job, blocks = self._ids[row], self._blocks[row]
        self._ids[row] = self._blocks[row] = None
        if job is not None:
            del self._rows[job]
        return blocks

    def _by_news(self, end: int, link: int) -> Iterator[int]:
        """Live jobs, from the most silent on or back from the last heard of; the one at hand may be dropped."""
        row = int(self._books.news[end])
        while row != NONE:
            following = int(self._books.links[row, link])
            yield row
            row = following

    def _grow(self) -> None:
        """Have room for twice as many jobs; free rows are chained."""
        books, before = self._books, len(self._ids)
        after = max(256, 2 * before)
        links = _grown(books.links, (after, kernel.LINK_COLUMNS))
        links[before:, SLOT] = NONE
        links[before:, NEWS_AFTER] = np.arange(before + 1, after + 1)
        self._books = books._replace(jobs=_grown(books.jobs, (after, kernel.JOB_COLUMNS)), links=links)
        self._ids += [None] * (after - before)
        self._blocks += [None] * (after - before)


def _grown(old: NDArray[Number], shape: tuple[int, int], fill: int = 0) -> NDArray[Number]:
    new = np.full(shape, fill, old.dtype)
    new[: old.shape[0], : old.shape[1]] = old
    return new
