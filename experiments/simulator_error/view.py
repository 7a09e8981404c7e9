"""Simulator beside engine, as tables: one row per order and load, repeats averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from experiments.simulator_error.draws import Drawn
from experiments.simulator_error.study import MEAN_WITHIN, P99_WITHIN, Foretold, swaps
from lengthwise.reports.tables import Table

_FIGURES: Final = ("mean", "p50", "p99")
_RANGE: Final = (0.025, 0.5, 0.975)


def tables(found: Sequence[Foretold]) -> list[Table]:
    """The figures and their errors, then where the order of policies differs."""
    groups: dict[tuple[str, str], list[Foretold]] = {}
    for one in sorted(found, key=lambda each: (each.load, each.order)):
        groups.setdefault((one.load, one.order), []).append(one)
    columns = ["load", "order", "repeats"]
    for figure in _FIGURES:
        columns += [f"{figure}, s", "simulated", "error"]
    columns += ["machine", *(f"{figure} paced" for figure in _FIGURES)]
    begins = [place for place, (load, _) in enumerate(groups) if place and load != list(groups)[place - 1][0]]
    table = Table(
        "E2E latency, measured and simulated",
        columns,
        [[load, order, *_row(cells)] for (load, order), cells in groups.items()],
        [
            _met(found),
            "machine: how much slower its steps were than those that the cost model was fitted on",
            "paced: the error left in the machine's own time; that looks at the run itself, and foretells nothing",
        ],
        frozenset(begins),
    )
    return [table, _order(found)]


def facts(found: Sequence[Foretold], drawn: Sequence[Drawn] = ()) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "draws": drawn,
        "cells": [{"cell": one, "errors": {name: one.error(name) for name in _FIGURES}} for one in found],
        "swaps": swaps(found),
        "within": {"mean": MEAN_WITHIN, "p99": P99_WITHIN},
    }


def draws_table(drawn: Sequence[Drawn]) -> Table:
    """Each order over draws of arrivals: the middle one and the range of most, beside what was measured."""
    rows = [
        [one.load, one.order, str(len(one.mean)), *_ranges(one), str(len(one.measured)), *_middles(one)]
        for one in sorted(drawn, key=lambda each: (each.load, each.order))
    ]
    columns = ["load", "order", "draws", "mean E2E", "per token", "p99 / FCFS"]
    notes = [
        "mean E2E, per token: times better than FCFS; the median of all draws, in brackets where 95 % of them lie",
        "measured: the median of the repeats on the engine",
    ]
    measured = ["repeats", "measured: mean E2E", "per token", "p99 / FCFS"]
    return Table("the same requests at other times, simulated", [*columns, *measured], rows, notes)


def _ranges(one: Drawn) -> list[str]:
    def better(ratios: Sequence[float]) -> str:
        low, middle, high = np.quantile(1.0 / np.asarray(ratios), _RANGE)
        return f"{middle:.2f}x [{low:.2f}, {high:.2f}]"

    low, middle, high = np.quantile(one.p99, _RANGE)
    return [better(one.mean), better(one.per_token), f"{middle:.2f} [{low:.2f}, {high:.2f}]"]


def _middles(one: Drawn) -> list[str]:
    mean, per_token, p99 = np.median(np.array(one.measured), axis=0)
    return [f"{1 / mean:.2f}x", f"{1 / per_token:.2f}x", f"{p99:.2f}"]


def _row(cells: Sequence[Foretold]) -> list[str]:
    texts = [str(len(cells))]
    for figure in _FIGURES:
        measured, simulated = (
            float(np.mean([getattr(getattr(one, side), figure) for one in cells])) for side in ("measured", "simulated")
        )
        texts += [f"{measured:.3g}", f"{simulated:.3g}", f"{simulated / measured - 1:+.1%}"]
    paced = [one for one in cells if one.paced is not None]
    if not paced:
        return [*texts, *"––––"]
    left = (np.mean([one.error(figure, paced=True) for one in paced]) for figure in _FIGURES)
    return [*texts, f"{np.mean([one.slower for one in paced]):+.1%}", *(f"{error:+.1%}" for error in left)]


def _met(found: Sequence[Foretold]) -> str:
    mean = sum(abs(one.error("mean")) <= MEAN_WITHIN for one in found)
    p99 = sum(abs(one.error("p99")) <= P99_WITHIN for one in found)
    of = f"of {len(found)} cells"
    return f"{of}, the mean is within {MEAN_WITHIN:.0%} in {mean}, the p99 within {P99_WITHIN:.0%} in {p99}"


def _order(found: Sequence[Foretold]) -> Table:
    """Pairs of orders that come out the other way round."""
    pairs = swaps(found)
    traffics = {(one.load, one.repeat) for one in found}
    rows = [[f"{pair.load}, repeat {pair.repeat}", pair.faster, pair.slower, f"{pair.apart:.1%}"] for pair in pairs]
    said = "in all other pairs it agrees" if pairs else "the order of policies by mean E2E latency is the same in all"
    return Table(
        "pairs that the simulator puts the other way round",
        ["traffic", "faster, measured", "slower, measured", "apart"],
        rows,
        [f"{said} ({len(traffics)} traffics)"],
    )
