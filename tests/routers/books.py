"""What a router's ledger should say, counted anew from its jobs."""

from __future__ import annotations

import numpy as np

from lengthwise.routers.base import Routing
from lengthwise.routers.kernel import ledger as kernel
from lengthwise.routers.kernel.loads import Load

SUMS = [
    Load.LIVE,
    Load.RUNNING,
    Load.ENDS,
    Load.BEGUN,
    Load.WAITING_TOKENS,
    Load.UNCACHED,
    Load.PROMPT_S,
    Load.CONTEXT,
    Load.PRIVATE,
    Load.SPREAD,
]


def recounted(router: Routing, slot: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The sums of one engine from the rows of its jobs."""
    books = router.ledger._books
    rows = np.flatnonzero(books.links[:, kernel.SLOT] == slot)
    jobs, runs = books.jobs[rows], books.links[rows, kernel.PLACE] != kernel.NONE
    return np.array(
        [
            len(rows),
            runs.sum(),
            jobs[runs, kernel.END].sum(),
            jobs[runs, kernel.BEGUN].sum(),
            jobs[~runs, kernel.TOKENS].sum(),
            jobs[:, kernel.OWN_UNCACHED].sum(),
            jobs[:, kernel.OWN_PROMPT_S].sum(),
            jobs[:, kernel.OWN_CONTEXT].sum(),
            jobs[:, kernel.OWN_PRIVATE].sum(),
            jobs[:, kernel.OWN_SPREAD].sum(),
        ]
    )


def check_books(router: Routing) -> None:
    """Every sum is that of its jobs, every list and heap holds exactly them, and heaps are heaps."""
    books, ledger = router.ledger._books, router.ledger
    live = np.flatnonzero(books.links[:, kernel.SLOT] != kernel.NONE)
    assert sorted(ledger._rows.values()) == live.tolist() == sorted(ledger._by_news(kernel.FIRST, kernel.NEWS_AFTER))
    assert {books.links[row, kernel.SLOT] for row in live} <= set(router.slots.values())
    for slot in range(len(books.loads)):
        np.testing.assert_allclose(books.loads[slot, SUMS], recounted(router, slot), rtol=1e-6, atol=1e-3)
        running = int(books.loads[slot, Load.RUNNING])
        for place, job in enumerate(books.heaps[slot, :running].tolist()):
            assert books.links[job, kernel.PLACE] == place
            assert (
                books.jobs[books.heaps[slot, (place - 1) // 2 if place else 0], kernel.END]
                <= books.jobs[job, kernel.END]
            )


def check_empty(router: Routing) -> None:
    """Nothing is left of anybody."""
    assert len(router.ledger) == 0
    assert not router.ledger.loads[:, SUMS].any()
