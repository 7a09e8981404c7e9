"""Checks of a router's ledger against its jobs, for the tests of routers and of the gateway."""

from __future__ import annotations

import numpy as np

from lengthwise.routers import Router
from lengthwise.routers import ledger_kernel as kernel
from lengthwise.routers.ledger import Load
from lengthwise.routers.tracking import LedgerRouter

SUMS = [
    Load.LIVE,
    Load.RUNNING,
    Load.ENDS,
    Load.STARTS,
    Load.WAITING_TOKENS,
    Load.UNCACHED,
    Load.PROMPT_S,
    Load.CONTEXT,
    Load.PRIVATE,
    Load.SPREAD,
]


def recounted(router: LedgerRouter, slot: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the sums of one engine, from the rows of its jobs."""
    arrays = router.ledger._arrays
    rows = np.flatnonzero(arrays.links[:, kernel.SLOT] == slot)
    jobs, runs = arrays.jobs[rows], arrays.links[rows, kernel.PLACE] != kernel.NONE
    return np.array(
        [
            len(rows),
            runs.sum(),
            jobs[runs, kernel.END].sum(),
            jobs[runs, kernel.START].sum(),
            jobs[~runs, kernel.TOKENS].sum(),
            jobs[:, kernel.OWN_UNCACHED].sum(),
            jobs[:, kernel.OWN_PROMPT_S].sum(),
            jobs[:, kernel.OWN_CONTEXT].sum(),
            jobs[:, kernel.OWN_PRIVATE].sum(),
            jobs[:, kernel.OWN_SPREAD].sum(),
        ]
    )


def check_ledger(router: Router) -> None:
    """Check that sums, lists and heaps contain exactly the live jobs; nothing for a router without a ledger."""
    if not isinstance(router, LedgerRouter):
        return
    arrays, ledger = router.ledger._arrays, router.ledger
    live = np.flatnonzero(arrays.links[:, kernel.SLOT] != kernel.NONE)
    assert sorted(ledger._rows.values()) == live.tolist() == sorted(ledger._by_news(kernel.FIRST, kernel.NEWS_AFTER))
    assert {arrays.links[row, kernel.SLOT] for row in live} <= set(router.slots.values())
    for slot in range(len(arrays.loads)):
        np.testing.assert_allclose(arrays.loads[slot, SUMS], recounted(router, slot), rtol=1e-6, atol=1e-3)
        running = int(arrays.loads[slot, Load.RUNNING])
        for place, job in enumerate(arrays.heaps[slot, :running].tolist()):
            assert arrays.links[job, kernel.PLACE] == place
            assert (
                arrays.jobs[arrays.heaps[slot, (place - 1) // 2 if place else 0], kernel.END]
                <= arrays.jobs[job, kernel.END]
            )


def check_empty(router: Router) -> None:
    """Check that no job is left; nothing for a router without a ledger."""
    if not isinstance(router, LedgerRouter):
        return
    assert len(router.ledger) == 0
    assert not router.ledger.loads[:, SUMS].any()
