"""The compiled part of the ledger: jobs in rows of numbers, linked into lists and heaps by their row numbers.

`ledger` describes the model. Row numbers and slots are int64 inside, so that each function is compiled once.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lengthwise.compiled import compiled, inlined

Int = Any
"""A NumPy integer of any width."""


class LedgerArrays(NamedTuple):
    """The memory of a ledger."""

    loads: NDArray[np.float64]  # [slot, Load]
    jobs: NDArray[np.float64]  # [job, columns below]
    links: NDArray[np.int32]  # [job, columns below]
    heaps: NDArray[np.int32]  # [slot, position]: running jobs as a heap, the one that ends first at 0
    queues: NDArray[np.int32]  # [slot, FIRST or LAST]: waiting jobs, in order of arrival
    news: NDArray[np.int32]  # FIRST and LAST of all jobs by their last event, the oldest first; then the first free row
    curve: NDArray[np.float64]  # P(Z > z), see CURVE_REACH


# Columns of `jobs`.
SENT, NEWS, TOKENS, MU, SIGMA, CAP, EXPECTED, BEFORE = 0, 1, 2, 3, 4, 5, 6, 7
OWN_UNCACHED, OWN_CONTEXT, OWN_PRIVATE, OWN_SPREAD, START, END, REPORTED, OWN_PROMPT_S = 8, 9, 10, 11, 12, 13, 14, 15
JOB_COLUMNS: Final = 16
# Columns of `links`: slot, or NONE for a free row; position in the heap, or NONE for a waiting job; two lists.
SLOT, PLACE, QUEUE_BEFORE, QUEUE_AFTER, NEWS_BEFORE, NEWS_AFTER = 0, 1, 2, 3, 4, 5
LINK_COLUMNS: Final = 6
FIRST, LAST, FREE = 0, 1, 2
NONE: Final = -1

CURVE_REACH: Final = 7.0  # asinh z of the curve's ends
CURVE_STEP: Final = 0.02
_OUTLIVED: Final = 1e-9  # as lengths.OUTLIVED_BELOW
_CLOCK_SLACK: Final = 0.1  # of a certain length that the clock, which is not exact, says is outlived
_NODES = np.polynomial.legendre.leggauss(16)[0]
_WEIGHTS = np.polynomial.legendre.leggauss(16)[1]

# Columns of `loads` as in `Load`, repeated because Numba's cache notices changes of this file only.
LIVE, RUNNING, ENDS, WAITING_TOKENS = 1, 2, 3, 4
CLOCK, STARTS, BUSY_UNTIL, UNCACHED = 5, 6, 7, 8
PROMPT_S, CONTEXT, PRIVATE, SPREAD = 9, 10, 11, 12
PREFILL_TOKEN_S, PREFILL_PAIR_S, STEP_S, SEQUENCE_S = 16, 17, 18, 19
KV_TOKEN_S, MAX_NUM_SEQS = 20, 21


@inlined
def survival(curve: NDArray[np.float64], z: float) -> float:
    """Return P(Z > z)."""
    at = (math.asinh(z) + CURVE_REACH) / CURVE_STEP
    at = min(max(at, 0.0), len(curve) - 1.001)
    cell = int(at)
    return curve[cell] + (at - cell) * (curve[cell + 1] - curve[cell])


@inlined
def panel(curve: NDArray[np.float64], mu: float, sigma: float, start: float, end: float) -> float:
    """Return the integral of the survival over lengths from e^start to e^end, by Gauss-Legendre in the logarithm."""
    total = 0.0
    if end > start:
        for number in range(len(_NODES)):
            x = 0.5 * ((end - start) * _NODES[number] + end + start)
            total += _WEIGHTS[number] * survival(curve, (x - mu) / sigma) * math.exp(x)
    return total * 0.5 * (end - start)


@compiled
def rest_of_log_t(curve: NDArray[np.float64], mu: float, sigma: float, cap: float, age: float) -> float:
    """Return E[min(X, cap) - age | X > age] for a log-t X: the integral of its survival from `age` to `cap`.

    The fast path of `policies.residual.expected_remaining`, to which the tests compare it.
    """
    if age >= cap:
        return 0.0
    reached = survival(curve, (math.log(age) - mu) / sigma) if sigma > 0.0 else 0.0
    if reached < _OUTLIVED:  # the contract of `remaining`: a log-t with median `age` and sigma 1
        start, end, mu, sigma, reached = -8.0, math.log(cap - age), math.log(age), 1.0, 1.0
    else:
        start, end = math.log(age), math.log(cap)
    middle = min(max(mu, start), end)  # the survival is steepest there: one panel on each side
    total = panel(curve, mu, sigma, start, middle) + panel(curve, mu, sigma, middle, end)
    return total / reached


@inlined
def expected_remaining(curve: NDArray[np.float64], job: Any, generated: float, observed: Int) -> float:  # noqa: ANN401
    """Return the expected tokens after `generated`, at least one."""
    if generated <= 0.0:
        return max(1.0, job[TOKENS])
    age = job[BEFORE] + generated
    if job[SIGMA] <= 0.0:
        if age < job[EXPECTED]:
            return max(1.0, job[EXPECTED] - age)
        if not observed:
            return max(1.0, _CLOCK_SLACK * job[EXPECTED])
    return max(1.0, rest_of_log_t(curve, job[MU], job[SIGMA], job[CAP], age))


@inlined
def rise(jobs: NDArray[np.float64], links: NDArray[np.int32], heap: Any, place: Int) -> None:  # noqa: ANN401
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
def sink(jobs: NDArray[np.float64], links: NDArray[np.int32], heap: Any, place: Int, size: Int) -> None:  # noqa: ANN401
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
def list_append(links: NDArray[np.int32], ends: Any, job: Int, before: Int, after: Int) -> None:  # noqa: ANN401
    """Append a job to a doubly linked list, whose links are two columns of `links`."""
    links[job, before], links[job, after] = ends[LAST], NONE
    if ends[LAST] == NONE:
        ends[FIRST] = job
    else:
        links[ends[LAST], after] = job
    ends[LAST] = job


@inlined
def list_remove(links: NDArray[np.int32], ends: Any, job: Int, before: Int, after: Int) -> None:  # noqa: ANN401
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
def stop(
    loads: NDArray[np.float64],
    jobs: NDArray[np.float64],
    links: NDArray[np.int32],
    heaps: NDArray[np.int32],
    queues: NDArray[np.int32],
    job: Int,
) -> None:
    """Remove a job from the running or the waiting ones."""
    slot, place = np.int64(links[job, SLOT]), np.int64(links[job, PLACE])
    load = loads[slot]
    if place == NONE:
        list_remove(links, queues[slot], job, QUEUE_BEFORE, QUEUE_AFTER)
        load[WAITING_TOKENS] -= jobs[job, TOKENS]
        return
    load[ENDS] -= jobs[job, END]
    load[STARTS] -= jobs[job, START]
    load[RUNNING] -= 1.0
    heap, size = heaps[slot], int(load[RUNNING])
    links[job, PLACE] = NONE
    if place < size:
        other = heap[size]
        heap[place] = other
        links[other, PLACE] = place
        rise(jobs, links, heap, place)
        sink(jobs, links, heap, np.int64(links[other, PLACE]), size)


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
    observed: Int,
) -> None:
    """Let a job run with `generated` tokens, which an event reports (`observed` 1) or the clock implies (0)."""
    stop(loads, jobs, links, heaps, queues, job)
    slot = np.int64(links[job, SLOT])
    load, row = loads[slot], jobs[job]
    if observed:
        row[REPORTED] = max(row[REPORTED], generated)
    row[START] = load[CLOCK] - generated
    row[END] = load[CLOCK] + expected_remaining(curve, row, generated, observed)
    place = int(load[RUNNING])
    load[ENDS] += row[END]
    load[STARTS] += row[START]
    load[RUNNING] += 1.0
    heaps[slot, place] = job
    rise(jobs, links, heaps[slot], place)


@inlined
def admit_waiting(
    loads: NDArray[np.float64],
    jobs: NDArray[np.float64],
    links: NDArray[np.int32],
    heaps: NDArray[np.int32],
    queues: NDArray[np.int32],
    curve: NDArray[np.float64],
    slot: Int,
) -> None:
    """Let waiting jobs run while slots are free, in order of arrival."""
    while queues[slot, FIRST] != NONE and loads[slot, RUNNING] < loads[slot, MAX_NUM_SEQS]:
        run(loads, jobs, links, heaps, queues, curve, np.int64(queues[slot, FIRST]), 0.0, 0)


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
    """Advance an engine's clock to `now` and give jobs that outlived their prediction a new end."""
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
        job = np.int64(heaps[slot, 0])
        if jobs[job, END] > load[CLOCK]:
            return
        run(loads, jobs, links, heaps, queues, curve, job, load[CLOCK] - jobs[job, START], 0)


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
    """Enter a job and return its row."""
    settle(loads, jobs, links, heaps, queues, curve, slot, now)
    job = np.int64(news[FREE])
    news[FREE] = links[job, NEWS_AFTER]
    load, row = loads[slot], jobs[job]
    uncached = max(1.0, prompt - cached)
    prompt_s = uncached * (load[PREFILL_TOKEN_S] + load[PREFILL_PAIR_S] * (prompt + prompt - uncached))
    row[SENT] = row[NEWS] = now
    row[TOKENS], row[MU], row[SIGMA], row[CAP] = tokens, mu, sigma, cap
    row[EXPECTED], row[BEFORE], row[REPORTED] = expected, before, 0.0
    row[OWN_UNCACHED], row[OWN_CONTEXT] = uncached, prompt + tokens
    row[OWN_PRIVATE], row[OWN_SPREAD], row[OWN_PROMPT_S] = uncached + tokens, spread, prompt_s
    links[job, SLOT], links[job, PLACE] = slot, NONE
    load[BUSY_UNTIL] = max(now, load[BUSY_UNTIL]) + prompt_s
    load[LIVE] += 1.0
    load[UNCACHED] += uncached
    load[PROMPT_S] += prompt_s
    load[CONTEXT] += prompt + tokens
    load[PRIVATE] += uncached + tokens
    load[SPREAD] += spread
    load[WAITING_TOKENS] += tokens
    list_append(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    list_append(links, queues[slot], job, QUEUE_BEFORE, QUEUE_AFTER)
    admit_waiting(loads, jobs, links, heaps, queues, curve, slot)
    return int(job)


@compiled
def on_progress(
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
    """Record that a job started (0) or has `generated` tokens; fewer than known before is out of date."""
    slot = np.int64(links[job, SLOT])
    jobs[job, NEWS] = max(jobs[job, NEWS], now)
    list_remove(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    list_append(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    generated -= jobs[job, BEFORE] if generated > 0.0 else 0.0
    runs_or_fits = links[job, PLACE] != NONE or loads[slot, RUNNING] < heaps.shape[1]
    if runs_or_fits and (generated > jobs[job, REPORTED] or (generated == 0.0 and jobs[job, REPORTED] == 0.0)):
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
    """Remove a job and subtract everything it added."""
    slot = np.int64(links[job, SLOT])
    settle(loads, jobs, links, heaps, queues, curve, slot, now)
    stop(loads, jobs, links, heaps, queues, job)
    load, row = loads[slot], jobs[job]
    load[LIVE] -= 1.0
    load[UNCACHED] -= row[OWN_UNCACHED]
    load[PROMPT_S] -= row[OWN_PROMPT_S]
    load[CONTEXT] -= row[OWN_CONTEXT]
    load[PRIVATE] -= row[OWN_PRIVATE]
    load[SPREAD] -= row[OWN_SPREAD]
    list_remove(links, news, job, NEWS_BEFORE, NEWS_AFTER)
    links[job, SLOT], links[job, NEWS_AFTER] = NONE, news[FREE]
    news[FREE] = job
    if load[LIVE] == 0.0:  # sums of floats need not return to exactly 0
        load[LIVE : WAITING_TOKENS + 1] = 0.0
        load[UNCACHED : SPREAD + 1] = 0.0
        load[CLOCK] = load[STARTS] = 0.0
        load[BUSY_UNTIL] = -math.inf
    else:
        admit_waiting(loads, jobs, links, heaps, queues, curve, slot)
