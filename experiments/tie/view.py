"""`TieStudy` as tables and as one HTML page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from experiments.tie import paper
from experiments.tie.runs import find, over, top
from experiments.tie.said import compare, concentration, offline_figures
from experiments.tie.study import ABLATED, LOGNORMAL, POLICIES, UNAGED, TieStudy
from experiments.tie.traffic import AS_IN_PAPER
from experiments.tie.why import comparable, why
from lengthwise.reports.simulation import multiple, seconds
from lengthwise.reports.tables import Table
from lengthwise.simulator.grid_result import Cell, Grid, Measure
from lengthwise.simulator.paired import over_seeds

__all__ = ["html_report", "tables"]

_OTHERS: Final = tuple(policy for policy in POLICIES if policy != "fcfs")


def tables(found: TieStudy) -> list[Table]:
    """Online over load, at the paper's rate, the ablation, offline; then what can be compared, and why it differs."""
    return [
        _over_load(found, "Latency per token", lambda cell, base: multiple(over(cell, base)), "per_token_s"),
        _over_load(
            found,
            "Completion time (E2E), mean and p99",
            lambda cell, base: f"{over(cell, base, 'e2e_s').ratio:.3f}, {over(cell, base, 'e2e_s', 'p99').ratio:.3f}",
            "e2e_s",
        ),
        _at_the_top(found),
        _beside(found),
        _ablation(found),
        _offline(found),
        _compared(found),
        why(found),
    ]


def _over_load(found: TieStudy, what: str, shown: Callable[[Cell, Cell], str], measure: Measure) -> Table:
    grid = found.online
    rows = [["fcfs", "", *(seconds(find(grid, "fcfs", "", level).latency(measure, "mean")) for level in grid.levels)]]
    for predictor in dict.fromkeys((found.predictor, "oracle")):
        for policy in _OTHERS:
            cells = [find(grid, policy, predictor, level) for level in grid.levels]
            bases = [find(grid, "fcfs", "", level) for level in grid.levels]
            rows.append([policy, predictor, *map(shown, cells, bases)])
    columns = ["policy", "predictor", *(f"{level.load:.1f} ({level.offered_per_s:.3g}/s)" for level in grid.levels)]
    begins = frozenset({1, 1 + len(_OTHERS)})
    notes = [
        (
            f"{grid.workload.name}, {found.origin}: n {len(grid.workload):,} to drain, cut at {paper.MAX_TOKENS:,} "
            f"tokens, Poisson, {grid.fleet} with {grid.fleet.slots} slots, no prefix cache, {len(grid.seeds)} seeds; "
            f"capacity {grid.capacity_per_s:.3g} requests/s (FCFS, under backlog)."
        ),
        "Paired: within a seed all meet the same arrivals and true lengths. Brackets: 95 % interval over seeds.",
        f"tau of {found.predictor}: {grid.tau(found.predictor):.3f}. sjf, the paper's SSJF, goes by the median.",
    ]
    title = f"{what} over FCFS's, by load (requests/s); FCFS itself in seconds, mean"
    return Table(title, columns, rows, notes if measure == "per_token_s" else (), begins)


def _at_the_top(found: TieStudy) -> Table:
    rows: list[list[str]] = []
    begins = set()
    for traffic, grid, predictor in _traffics(found):
        begins.add(len(rows))
        base = find(grid, "fcfs", "")
        for name in dict.fromkeys((predictor, "oracle")):
            shown = POLICIES if name == predictor else _OTHERS
            cells = [find(grid, policy, name) for policy in shown]
            rows += [[cell.policy, cell.predictor or "", traffic, *_figures(cell, base)] for cell in cells]
    columns = (
        "policy", "predictor", "traffic", "per token", "p90", "TTFT", "E2E", "E2E p99",
        "per token / FCFS", "E2E / FCFS", "E2E p99 / FCFS",
    )  # fmt: skip
    load = top(found.online).load
    notes = [
        (
            f"Load {load:g} is what the paper's {paper.RATES[1]:g} requests/s come to, if its server saturates at "
            f"{paper.implied_capacity():.1f}: that is where FCFS's latency grows {paper.GROWTH['fcfs']:g}-fold from "
            f"{paper.RATES[0]:g} to {paper.RATES[1]:g} requests/s."
        ),
        (
            "Made up: log-t answers, and predictions with the R^2 of the paper's predictor "
            f"({paper.R_SQUARED[0]:g} of mu, {paper.R_SQUARED[1]:g} of sigma); capacity "
            f"{found.made_up.capacity_per_s:.3g} requests/s."
        ),
    ]
    return Table(f"At load {load:g}: means, and over FCFS", columns, rows, notes, frozenset(begins - {0}))


def _beside(found: TieStudy) -> Table:
    rows = []
    for policy in POLICIES:
        ours = [
            multiple(over(find(grid, policy, predictor), find(grid, "fcfs", "")))
            for _, grid, predictor in _traffics(found)
        ]
        theirs = [f"{given[policy] / given['fcfs']:.3f}" if policy in given else "–" for given in paper.ONLINE.values()]
        rows.append([policy, *ours, *theirs])
    names = [f"{name}, {predictor}" for name, _, predictor in _traffics(found)]
    title = f"Latency per token over FCFS's: ours at load {top(found.online).load:g}, and the paper's"
    return Table(title, ("policy", *names, *(f"paper, {name}" for name in paper.ONLINE)), rows)


def _traffics(found: TieStudy) -> tuple[tuple[str, Grid, str], ...]:
    return ("CASTILLO", found.online, found.predictor), ("made up", found.made_up, AS_IN_PAPER)


def _figures(cell: Cell, base: Cell) -> list[str]:
    absolute = [
        cell.latency("per_token_s", "mean"),
        cell.latency("per_token_s", "p90"),
        cell.latency("ttft_s", "mean"),
        cell.latency("e2e_s", "mean"),
        cell.latency("e2e_s", "p99"),
    ]
    ratios = (over(cell, base), over(cell, base, "e2e_s"), over(cell, base, "e2e_s", "p99"))
    return [*map(seconds, absolute), *map(multiple, ratios)]


def _ablation(found: TieStudy) -> Table:
    rows: list[list[str]] = []
    begins = set()
    variants = {
        "full": ("tie", ""),
        **{name: (policy, "") for name, policy in ABLATED.items()},
        LOGNORMAL: ("tie", LOGNORMAL),
        "E only, no aging": (UNAGED, ""),
    }
    for traffic, grid, predictor in _traffics(found):
        begins.add(len(rows))
        full = find(grid, "tie", predictor)
        for name, (policy, prediction) in variants.items():
            cell = find(grid, policy, prediction or predictor)
            ratios = (over(cell, full), over(cell, full, statistic="p90"), over(cell, full, "e2e_s"))
            given = paper.ABLATION.get(name)
            theirs = ("–", "–") if given is None else (f"{given.mean:.2f} s", f"{given.p90:.2f} s")
            measured = (cell.latency("per_token_s", "mean"), cell.latency("per_token_s", "p90"))
            rows.append([name, traffic, *map(seconds, measured), *map(multiple, ratios), *theirs])
    columns = (
        "variant", "traffic", "per token", "p90", "per token / full", "p90 / full", "E2E / full", "paper", "paper p90",
    )  # fmt: skip
    notes = [
        (
            "E only: beta = 0. Log-normal: CASTILLO's predictions with the same mean and spread of logarithms; made up: "
            "fitted to 20 answers of each prompt, predicted as well as the log-t's parameters."
        ),
    ]
    return Table(f"Ablation of TIE at load {top(found.online).load:g}", columns, rows, notes, frozenset(begins - {0}))


def _offline(found: TieStudy) -> Table:
    figures = offline_figures(found)
    rows = []
    for cell in found.offline.cells:
        times, counts = figures[cell.policy, cell.predictor]
        base = figures["fcfs", None]
        ratios = [over_seeds(mine, theirs) for mine, theirs in zip((times, counts), base, strict=True)]
        shown = ["1", "1"] if cell.policy == "fcfs" else [multiple(ratio) for ratio in ratios]
        given = paper.OFFLINE.get(cell.policy) if cell.predictor != "oracle" else None
        theirs_ = ("–", "–") if given is None else (f"{given[0]:g} s", f"{given[1]:,.0f}")
        rows.append(
            [
                cell.policy,
                cell.predictor or "",
                f"{np.mean(times):,.1f} s",
                f"{np.mean(counts):,.0f}",
                *shown,
                f"{concentration(cell):.3f}",
                *theirs_,
            ]
        )
    grid = found.offline
    notes = [
        (
            f"{len(grid.workload):,} requests, answers to {found.offline_corpus} ({grid.workload.name}), drawn anew "
            "for each seed; how large the paper's pool is, is not known."
        ),
        (
            "length and time: Spearman's correlation of output length and completion time; the heatmap's band is the "
            "narrower the nearer it is to 1."
        ),
        f"tau of {found.predictor}: {grid.tau(found.predictor):.3f}.",
    ]
    columns = (
        "policy", "predictor", f"time to {found.samples:,}", f"samples in {found.window_s:.0f} s",
        "time / FCFS", "samples / FCFS", "length and time", "paper: time to 3,000", "in 3 minutes",
    )  # fmt: skip
    return Table("Offline: all at once", columns, rows, notes, frozenset({1, 1 + len(_OTHERS)}))


def _compared(found: TieStudy) -> Table:
    rows = []
    for each in compare(found):
        castillo, made = each.verdicts
        ours = [multiple(ratio) for ratio in (each.castillo, each.made_up)]
        rows.append([each.claim, f"{each.paper:.3f}", ours[0], castillo, ours[1], made])
    columns = ("claim", "paper", "CASTILLO", "", "made up", "")
    return Table("What can be compared", columns, rows, comparable(found))


def html_report(found: TieStudy) -> str:
    """One page: figures, then the tables."""
    from experiments.tie.plot import figures
    from lengthwise.reports.interactive import interactive_page

    return interactive_page("TIE's experiments, simulated", figures(found), tables(found))
