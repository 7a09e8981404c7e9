"""Checks of a router's ledger against its jobs, for the tests of routers and of the gateway."""

from __future__ import annotations

import numpy as np

from lengthwise.routers import Router
from lengthwise.routers import ledger as columns
from lengthwise.routers.tracking import LedgerRouter

SUMS = [
    columns.LIVE,
    columns.RUNNING,
    columns.ENDS,
    columns.STARTS,
    columns.WAITING_TOKENS,
    columns.UNCACHED,
    columns.PROMPT_S,
    columns.CONTEXT,
    columns.PRIVATE,
    columns.SPREAD,
]


def recounted(router: LedgerRouter, number: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the sums of one engine, from the rows of its jobs."""
    arrays = router.ledger._arrays
    rows = np.flatnonzero(arrays.links[:, columns.ENGINE] == number)
    jobs, runs = arrays.jobs[rows], arrays.links[rows, columns.PLACE] != columns.NONE
    return np.array(
        [
            len(rows),
            runs.sum(),
            jobs[runs, columns.END].sum(),
            jobs[runs, columns.START].sum(),
            jobs[~runs, columns.TOKENS].sum(),
            jobs[:, columns.OWN_UNCACHED].sum(),
            jobs[:, columns.OWN_PROMPT_S].sum(),
            jobs[:, columns.OWN_CONTEXT].sum(),
            jobs[:, columns.OWN_PRIVATE].sum(),
            jobs[:, columns.OWN_SPREAD].sum(),
        ]
    )


def check_ledger(router: Router) -> None:
    """Check that sums, lists and heaps contain exactly the live jobs; nothing for a router without a ledger."""
    if not isinstance(router, LedgerRouter):
        return
    arrays, ledger = router.ledger._arrays, router.ledger
    live = np.flatnonzero(arrays.links[:, columns.ENGINE] != columns.NONE)
    assert sorted(ledger._rows.values()) == live.tolist() == sorted(ledger._by_news(columns.FIRST, columns.NEWS_AFTER))
    assert {arrays.links[row, columns.ENGINE] for row in live} <= set(router.numbers.values())
    for number in range(len(arrays.loads)):
        np.testing.assert_allclose(arrays.loads[number, SUMS], recounted(router, number), rtol=1e-6, atol=1e-3)
        running = int(arrays.loads[number, columns.RUNNING])
        for place, job in enumerate(arrays.heaps[number, :running].tolist()):
            assert arrays.links[job, columns.PLACE] == place
            assert (
                arrays.jobs[arrays.heaps[number, (place - 1) // 2 if place else 0], columns.END]
                <= arrays.jobs[job, columns.END]
            )


def check_empty(router: Router) -> None:
    """Check that no job is left; nothing for a router without a ledger."""
    if not isinstance(router, LedgerRouter):
        return
    assert len(router.ledger) == 0
    assert not router.ledger.loads[:, SUMS].any()
