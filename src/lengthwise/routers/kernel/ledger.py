"""The ledger's book-keeping, compiled: jobs in rows of numbers, linked into lists and heaps by their row numbers.

Says what is done; why, and what it means, is said in `ledger`.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lengthwise.routers.kernel.compiling import compiled, inlined

Int = Any
"""A whole number of NumPy's, of whatever width."""


class Books(NamedTuple):
    """The memory of a ledger."""

    loads: NDArray[np.float64]  # [slot, Load]
    jobs: NDArray[np.float64]  # [job, columns below]
    links: NDArray[np.int32]  # [job, columns below]
    heaps: NDArray[np.int32]  # [slot, place]: running jobs, the one that ends first at 0
    queues: NDArray[np.int32]  # [slot, FIRST or LAST]: waiting jobs, in order of coming
    news: NDArray[np.int32]  # FIRST and LAST of all jobs, the most silent first; then the first free job
    curve: NDArray[np.float64]  # P(Z > z), see CURVE_REACH


# Columns of `jobs`.
SENT, NEWS, TOKENS, MU, SIGMA, CAP, EXPECTED, BEFORE = 0, 1, 2, 3, 4, 5, 6, 7
OWN_UNCACHED, OWN_CONTEXT, OWN_PRIVATE, OWN_SPREAD, BEGUN, END, SEEN, OWN_PROMPT_S = 8, 9, 10, 11, 12, 13, 14, 15
JOB_COLUMNS: Final = 16
# Columns of `links`: slot, or NONE for a free row; place in the heap, or NONE for one that waits; two lists.
SLOT, PLACE, QUEUE_BEFORE, QUEUE_AFTER, NEWS_BEFORE, NEWS_AFTER = 0, 1, 2, 3, 4, 5
LINK_COLUMNS: Final = 6
FIRST, LAST, FREE = 0, 1, 2
NONE: Final = -1

CURVE_REACH: Final = 7.0  # asinh z of the curve's ends
CURVE_STEP: Final = 0.02
_OUTLIVED: Final = 1e-9  # as lengths.OUTLIVED_BELOW
_MORE: Final = 0.1  # of a certain length that seems outlived by the clock, which is not exact
_NODES = np.polynomial.legendre.leggauss(16)[0]
_WEIGHTS = np.polynomial.legendre.leggauss(16)[1]

# Columns of `loads`, in numbers: what was compiled from this file is good as long as this file is the same.
LIVE, RUNNING, ENDS, WAITING_TOKENS = 1, 2, 3, 4
CLOCK, BEGINNINGS, BUSY_UNTIL, UNCACHED = 5, 6, 7, 8
PROMPT_S, CONTEXT, PRIVATE, SPREAD = 9, 10, 11, 12
PREFILL_TOKEN_S, PREFILL_PAIR_S, STEP_S, SEQUENCE_S = 16, 17, 18, 19
KV_TOKEN_S, MAX_NUM_SEQS = 20, 21


@inlined
def survival(curve: NDArray[np.float64], z: float) -> float:
    """P(Z > z)."""
    at = (math.asinh(z) + CURVE_REACH) / CURVE_STEP
    at = min(max(at, 0.0), len(curve) - 1.001)
    cell = int(at)
    return curve[cell] + (at - cell) * (curve[cell + 1] - curve[cell])


@inlined
def panel(curve: NDArray[np.float64], mu: float, sigma: float, start: float, end: float) -> float:
    """The integral of survival over lengths from e^start to e^end, by Gauss-Legendre in the logarithm."""
    total = 0.0
    if end > start:
        for number in range(len(_NODES)):
            x = 0.5 * ((end - start) * _NODES[number] + end + start)
            total += _WEIGHTS[number] * survival(curve, (x - mu) / sigma) * math.exp(x)
    return total * 0.5 * (end - start)


@compiled
def rest_of_log_t(curve: NDArray[np.float64], mu: float, sigma: float, cap: float, age: float) -> float:
    """E[min(X, cap) - age | X > age] for a log-t X: the integral of its survival from there on."""
    if age >= cap:
        return 0.0
    reached = survival(curve, (math.log(age) - mu) / sigma) if sigma > 0.0 else 0.0
    if reached < _OUTLIVED:  # as DESIGN says: the longer it has run, the longer it is expected to
        start, end, mu, sigma, reached = -8.0, math.log(cap - age), math.log(age), 1.0, 1.0
    else:
        start, end = math.log(age), math.log(cap)
    middle = min(max(mu, start), end)  # survival falls there: a panel on either side
    total = panel(curve, mu, sigma, start, middle) + panel(curve, mu, sigma, middle, end)
    return total / reached


@inlined
def still(curve: NDArray[np.float64], job: Any, generated: float, seen: Int) -> float:  # noqa: ANN401
    """Tokens still to come after so many, at least one."""
    if generated <= 0.0:
        return max(1.0, job[TOKENS])
    age = job[BEFORE] + generated
    if job[SIGMA] <= 0.0:
        if age < job[EXPECTED]:
            return max(1.0, job[EXPECTED] - age)
        if not seen:
            return max(1.0, _MORE * job[EXPECTED])
    return max(1.0, rest_of_log_t(curve, job[MU], job[SIGMA], job[CAP], age))


@inlined
def rise(jobs: NDArray[np.float64], links: NDArray[np.int32], heap: Any, place: Int) -> None:  # noqa: ANN401
    """Let a job go up its heap to where it belongs."""
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
def sink(jobs: NDArray[np.float64], links: NDArray[np.int32], heap: Any, place: Int, size: Int) -> None:  # noqa: ANN401
    """Let a job go down its heap to where it belongs."""
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
def into(links: NDArray[np.int32], ends: Any, job: Int, before: Int, after: Int) -> None:  # noqa: ANN401
    """Put a job at the end of a list, which is kept in two columns of its links."""
    links[job, before], links[job, after] = ends[LAST], NONE
    if ends[LAST] == NONE:
        ends[FIRST] = job
    else:
        links[ends[LAST], after] = job
    ends[LAST] = job


@inlined
def out_of(links: NDArray[np.int32], ends: Any, job: Int, before: Int, after: Int) -> None:  # noqa: ANN401
    """Take a job out of a list."""
    if links[job, before] == NONE:
        ends[FIRST] = links[job, after]
    else:
        links[links[job, before], after] = links[job, after]
    if links[job, after] == NONE:
        ends[LAST] = links[job, before]
    else:
        links[links[job, after], before] = links[job, before]


@inlined
def stop(
    loads: NDArray[np.float64],
    jobs: NDArray[np.float64],
    links: NDArray[np.int32],
    heaps: NDArray[np.int32],
    queues: NDArray[np.int32],
    job: Int,
) -> None:
    """Take a job out of those who run, or out of those who wait."""
    slot, place = links[job, SLOT], links[job, PLACE]
    load = loads[slot]
    if place == NONE:
        out_of(links, queues[slot], job, QUEUE_BEFORE, QUEUE_AFTER)
        load[WAITING_TOKENS] -= jobs[job, TOKENS]
        return
    load[ENDS] -= jobs[job, END]
    load[BEGINNINGS] -= jobs[job, BEGUN]
    load[RUNNING] -= 1.0
    heap, size = heaps[slot], int(load[RUNNING])
    links[job, PLACE] = NONE
    if place < size:
        other = heap[size]
        heap[place] = other
        links[other, PLACE] = place
        rise(jobs, links, heap, place)
        sink(jobs, links, heap, links[other, PLACE], size)


@inlined
def run(
    loads: NDArray[np.float64],
    jobs: NDArray[np.float64],
    links: NDArray[np.int32],
    heaps: NDArray[np.int32],
    queues: NDArray[np.int32],
    curve: NDArray[np.float64],
    job: Int,
    generated: float,
    seen: Int,
) -> None:
    """Let a job run, with so many tokens by now, seen or only by the clock."""
    stop(loads, jobs, links, heaps, queues, job)
    slot = links[job, SLOT]
    load, about = loads[slot], jobs[job]
    if seen:
        about[SEEN] = max(about[SEEN], generated)
    about[BEGUN] = load[CLOCK] - generated
    about[END] = load[CLOCK] + still(curve, about, generated, seen)
    place = int(load[RUNNING])
    load[ENDS] += about[END]
    load[BEGINNINGS] += about[BEGUN]
    load[RUNNING] += 1.0
    heaps[slot, place] = job
    rise(jobs, links, heaps[slot], place)


@inlined
def presume(
    loads: NDArray[np.float64],
    jobs: NDArray[np.float64],
    links: NDArray[np.int32],
    heaps: NDArray[np.int32],
    queues: NDArray[np.int32],
    curve: NDArray[np.float64],
    slot: Int,
) -> None:
    """Let those run for whom there is a place, in order of coming."""
    while queues[slot, FIRST] != NONE and loads[slot, RUNNING] < loads[slot, MAX_NUM_SEQS]:
        run(loads, jobs, links, heaps, queues, curve, queues[slot, FIRST], 0.0, 0)


@inlined
def settle(
    loads: NDArray[np.float64],
    jobs: NDArray[np.float64],
    links: NDArray[np.int32],
    heaps: NDArray[np.int32],
    queues: NDArray[np.int32],
    curve: NDArray[np.float64],
    slot: Int,
    now: float,
) -> None:
    """Let an engine's clock go on to this moment, and predict anew who has outlived what was predicted."""
    load = loads[slot]
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
        job = heaps[slot, 0]
        if jobs[job, END] > load[CLOCK]:
            return
        run(loads, jobs, links, heaps, queues, curve, job, load[CLOCK] - jobs[job, BEGUN], 0)


@compiled
def send(
    loads: NDArray[np.float64],
    jobs: NDArray[np.float64],
    links: NDArray[np.int32],
    heaps: NDArray[np.int32],
    queues: NDArray[np.int32],
    news: NDArray[np.int32],
    curve: NDArray[np.float64],
    slot: int,
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
) -> int:
    """Enter a job that goes to an engine; its row."""
    settle(loads, jobs, links, heaps, queues, curve, slot, now)
    job = news[FREE]
    news[FREE] = links[job, NEWS_AFTER]
    load, about = loads[slot], jobs[job]
    uncached = max(1.0, prompt - cached)
    prompt_s = uncached * (load[PREFILL_TOKEN_S] + load[PREFILL_PAIR_S] * (prompt + prompt - uncached))
    about[SENT] = about[NEWS] = now
    about[TOKENS], about[MU], about[SIGMA], about[CAP] = tokens, mu, sigma, cap
    about[EXPECTED], about[BEFORE], about[SEEN] = expected, before, 0.0
    about[OWN_UNCACHED], about[OWN_CONTEXT] = uncached, prompt + tokens
    about[OWN_PRIVATE], about[OWN_SPREAD], about[OWN_PROMPT_S] = uncached + tokens, spread, prompt_s
    links[job, SLOT], links[job, PLACE] = slot, NONE
    load[BUSY_UNTIL] = max(now, load[BUSY_UNTIL]) + prompt_s
    load[LIVE] += 1.0
    load[UNCACHED] += uncached
    load[PROMPT_S] += prompt_s
    load[CONTEXT] += prompt + tokens
    load[PRIVATE] += uncached + tokens
    load[SPREAD] += spread
    load[WAITING_TOKENS] += tokens
    into(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    into(links, queues[slot], job, QUEUE_BEFORE, QUEUE_AFTER)
    presume(loads, jobs, links, heaps, queues, curve, slot)
    return int(job)


@compiled
def hear(
    loads: NDArray[np.float64],
    jobs: NDArray[np.float64],
    links: NDArray[np.int32],
    heaps: NDArray[np.int32],
    queues: NDArray[np.int32],
    news: NDArray[np.int32],
    curve: NDArray[np.float64],
    job: int,
    now: float,
    generated: float,
) -> None:
    """A job has so many tokens (0: it has just begun); fewer than were known is old news."""
    slot = links[job, SLOT]
    jobs[job, NEWS] = max(jobs[job, NEWS], now)
    out_of(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    into(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    generated -= jobs[job, BEFORE] if generated > 0.0 else 0.0
    room = links[job, PLACE] != NONE or loads[slot, RUNNING] < heaps.shape[1]
    if room and (generated > jobs[job, SEEN] or (generated == 0.0 and jobs[job, SEEN] == 0.0)):
        settle(loads, jobs, links, heaps, queues, curve, slot, now)
        run(loads, jobs, links, heaps, queues, curve, job, generated, 1)


@compiled
def leave(
    loads: NDArray[np.float64],
    jobs: NDArray[np.float64],
    links: NDArray[np.int32],
    heaps: NDArray[np.int32],
    queues: NDArray[np.int32],
    news: NDArray[np.int32],
    curve: NDArray[np.float64],
    job: int,
    now: float,
) -> None:
    """Take a job off everything it was added to."""
    slot = links[job, SLOT]
    settle(loads, jobs, links, heaps, queues, curve, slot, now)
    stop(loads, jobs, links, heaps, queues, job)
    load, about = loads[slot], jobs[job]
    load[LIVE] -= 1.0
    load[UNCACHED] -= about[OWN_UNCACHED]
    load[PROMPT_S] -= about[OWN_PROMPT_S]
    load[CONTEXT] -= about[OWN_CONTEXT]
    load[PRIVATE] -= about[OWN_PRIVATE]
    load[SPREAD] -= about[OWN_SPREAD]
    out_of(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    links[job, SLOT], links[job, NEWS_AFTER] = NONE, news[FREE]
    news[FREE] = job
    if load[LIVE] == 0.0:  # sums of real numbers do not always come back to 0 by themselves
        load[LIVE : WAITING_TOKENS + 1] = 0.0
        load[UNCACHED : SPREAD + 1] = 0.0
        load[CLOCK] = load[BEGINNINGS] = 0.0
        load[BUSY_UNTIL] = -math.inf
    else:
        presume(loads, jobs, links, heaps, queues, curve, slot)
