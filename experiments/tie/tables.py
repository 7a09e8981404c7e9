"""Claims, tables and facts of the TIE study, and what explains the differences from the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, spearmanr

from experiments.study import Claim
from experiments.tie import paper
from experiments.tie.study import (
    ABLATED,
    LOGNORMAL,
    LOW,
    POLICIES,
    UNAGED,
    WEAKER,
    WEIGHTED,
    TieResult,
    find,
    over,
    top,
)
from experiments.tie.traffic import AS_IN_PAPER, weighted_score
from lengthwise.reports.runs import multiple, seconds
from lengthwise.reports.simulation import facts as grid_facts
from lengthwise.reports.tables import Table
from lengthwise.simulator.grid import Cell, Grid, Measure, Statistic
from lengthwise.simulator.paired import Ratio, over_seeds
from lengthwise.simulator.predictions import RequestPredictions

Floats = NDArray[np.float64]


_DEFINITIONS: Final[dict[str, Measure]] = {"": "per_token_s", ", total E2E / total tokens": "e2e_s"}
"""Latency per token as the mean of E2E / tokens, and as a ratio of totals. All policies serve the same tokens, so a
ratio of the second is that of mean E2E.
"""


def claims(found: TieResult) -> list[Claim]:
    """All ratios that the paper's figures and ours have in common, of latency per token unless stated otherwise."""
    main, offline = paper.ONLINE[paper.MAIN], offline_figures(found)
    rows: list[Claim] = []
    for suffix, measure in _DEFINITIONS.items():
        for name, base in (("sjf", "fcfs"), ("ltr", "fcfs"), ("tie", "fcfs"), ("tie", "sjf"), ("tie", "ltr")):
            rows += [
                Claim(
                    f"{name} over {base}{suffix}",
                    main[name] / main[base],
                    over(find(grid, name, predictor), find(grid, base, predictor), measure),
                    setting,
                )
                for setting, grid, predictor in _traffics(found)
            ]
    low_rate, high_rate = paper.RATES
    for name, growth in paper.GROWTH.items():
        for setting, grid, predictor in _traffics(found):
            low = next(level for level in grid.levels if level.load == LOW)
            ours = over(find(grid, name, predictor), find(grid, name, predictor, low))
            rows.append(Claim(f"{name} at {high_rate:g} over {low_rate:g} requests/s", growth, ours, setting))
    rows += _ablation_claims(found)
    for i, what in enumerate(("time to the samples", "samples in the time")):
        theirs = paper.OFFLINE["tie"][i] / paper.OFFLINE["ltr"][i]
        ours = over_seeds(*(offline[name, found.predictor][i] for name in ("tie", "ltr")))
        rows.append(Claim(f"offline, tie over ltr, {what}", theirs, ours, "CASTILLO"))
    return rows


def _ablation_claims(found: TieResult) -> Iterator[Claim]:
    full = paper.ABLATION["full"]
    statistics: tuple[Statistic, Statistic] = ("mean", "p90")
    for name, (policy, prediction) in _variants().items():
        given = paper.ABLATION.get(name)
        if given is None or name == "full":
            continue
        for statistic in statistics:
            for setting, grid, predictor in _traffics(found):
                ours = over(
                    find(grid, policy, prediction or predictor), find(grid, "tie", predictor), statistic=statistic
                )
                theirs = getattr(given, statistic) / getattr(full, statistic)
                yield Claim(f"{name} over full TIE, {statistic}", theirs, ours, setting)


def _variants() -> dict[str, tuple[str, str]]:
    """The policy and, where it is not the study's, the prediction of each row of the ablation."""
    return {
        "full": ("tie", ""),
        **{name: (policy, "") for name, policy in ABLATED.items()},
        LOGNORMAL: ("tie", LOGNORMAL),
        "E only, no aging": (UNAGED, ""),
    }


def offline_figures(found: TieResult) -> dict[tuple[str, str | None], tuple[list[float], list[float]]]:
    """Seconds to the samples and samples in the window, seed by seed, of each policy and predictor."""
    return {
        (cell.policy, cell.predictor): (
            [float(np.sort(outcome.finish)[found.samples - 1]) for outcome in cell.outcomes],
            [float((outcome.finish <= found.window_s).sum()) for outcome in cell.outcomes],
        )
        for cell in found.offline.cells
    }


def concentration(cell: Cell) -> float:
    """Spearman's correlation of output length and completion time: 1 is the narrowest band in the heatmap."""
    found = [spearmanr(each.output_tokens, each.finish - each.arrival).statistic for each in cell.outcomes]
    return float(np.mean(found))


@dataclass(frozen=True)
class Orders:
    """Kendall's tau-b between scores, over the first seed's requests.

    The best order is the one for latency per token (`weighted_score`).
    """

    tie_and_median: float
    median_and_best: float
    mean_and_best: float
    tie_and_best: float


def orders(predictions: RequestPredictions) -> Orders:
    """Scores at TIE's largest beta."""
    expected, tail = predictions.expected_and_tail()
    score = expected + 0.5 * tail
    best = weighted_score(predictions)
    return Orders(
        *(_tau(a, b) for a, b in ((score, predictions.mu), (predictions.mu, best), (expected, best), (score, best)))
    )


def _tau(one: Floats, other: Floats) -> float:
    return float(kendalltau(one, other).statistic)


@dataclass(frozen=True)
class Weaker:
    """SSJF with predictions of one quality, over FCFS."""

    predictor: str
    tau: float
    ratio: Ratio


def weaker(found: TieResult) -> list[Weaker]:
    """From weak predictions to the study's, at the highest load."""
    level = top(found.online)
    base = find(found.online, "fcfs", "", level)
    return [
        Weaker(name, found.online.tau(name), over(find(found.online, "sjf", name, level), base))
        for name in dict.fromkeys((*WEAKER, found.predictor))
    ]


CLAIM_NOTE: Final = (
    "Compared are ratios and growth. Seconds are not: other prompts, another LLM, another (simulated) GPU, and a rate "
    "that is known as a load only by inference."
)


def _reasons_table(found: TieResult) -> Table:
    """One row per explanation, with the measured value."""
    rows = [
        *_same_order(found.online, found.predictor),
        (
            "answers to one prompt: CV, averaged (paper; CASTILLO; synthetic)",
            f"{paper.WITHIN_PROMPT_CV:.2f}; {found.prompt_cv[0]:.2f}; {found.prompt_cv[1]:.2f}",
        ),
    ]
    for name, grid, predictor in _traffics(found):
        alike = orders(grid.predictions[predictor][0])
        rows += [
            (f"{name}: tau between TIE's score (beta 0.5) and the median", f"{alike.tie_and_median:.3f}"),
            (
                f"{name}: tau with the best order for latency per token (median; mean; TIE)",
                f"{alike.median_and_best:.3f}; {alike.mean_and_best:.3f}; {alike.tie_and_best:.3f}",
            ),
            (
                f"{name}: order by {WEIGHTED} over sjf, latency per token",
                multiple(over(find(grid, "sjf", WEIGHTED), find(grid, "sjf", predictor))),
            ),
            (f"{name}: tie over sjf in mean E2E", multiple(_tie_over_sjf(grid, predictor))),
            (
                f"{name}: true lengths instead of predictions, tie, latency per token",
                multiple(over(find(grid, "tie", "oracle"), find(grid, "tie", predictor))),
            ),
        ]
    rows += [
        (f"CASTILLO: sjf over fcfs with {each.predictor} (tau {each.tau:.2f})", multiple(each.ratio))
        for each in weaker(found)
    ]
    return Table("What explains the differences", ("", "measured"), rows)


def _tie_over_sjf(grid: Grid, predictor: str) -> Ratio:
    return over(find(grid, "tie", predictor), find(grid, "sjf", predictor), "e2e_s")


def _same_order(grid: Grid, predictor: str) -> list[tuple[str, str]]:
    pairs = zip(find(grid, "sjf", predictor).outcomes, find(grid, "ltr", predictor).outcomes, strict=True)
    same = all(np.array_equal(one.finish, other.finish, equal_nan=True) for one, other in pairs)
    return [("sjf and ltr, given the same predictions, finish every request at the same time", "yes" if same else "no")]


_OTHERS: Final = tuple(policy for policy in POLICIES if policy != "fcfs")


def tables(found: TieResult) -> list[Table]:
    """Online over load, at the paper's rate, the ablation, offline, and what explains the differences."""
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
        _reasons_table(found),
    ]


def _over_load(found: TieResult, what: str, shown: Callable[[Cell, Cell], str], measure: Measure) -> Table:
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
        (
            "Paired: within a seed all policies get the same arrivals and true lengths. Brackets: 95 % "
            "interval over seeds."
        ),
        f"tau of {found.predictor}: {grid.tau(found.predictor):.3f}. sjf, the paper's SSJF, orders by the median.",
    ]
    title = f"{what} over FCFS's, by load (requests/s); FCFS itself in seconds, mean"
    return Table(title, columns, rows, notes if measure == "per_token_s" else (), begins)


def _at_the_top(found: TieResult) -> Table:
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
        "policy", "predictor", "traffic", "per token", "p90", "total / total", "TTFT", "E2E", "E2E p99",
        "per token / FCFS", "E2E / FCFS", "E2E p99 / FCFS",
    )  # fmt: skip
    load = top(found.online).load
    notes = [
        "per token: mean of E2E / output tokens; total / total: sum of E2E over sum of output tokens.",
        (
            f"Load {load:g} corresponds to the paper's {paper.RATES[1]:g} requests/s if its server saturates at "
            f"{paper.implied_capacity():.1f}: there FCFS's latency grows {paper.GROWTH['fcfs']:g}-fold from "
            f"{paper.RATES[0]:g} to {paper.RATES[1]:g} requests/s."
        ),
        (
            "Synthetic: log-t answers, and predictions with the R^2 of the paper's predictor "
            f"({paper.R_SQUARED[0]:g} of mu, {paper.R_SQUARED[1]:g} of sigma); capacity "
            f"{found.synthetic.capacity_per_s:.3g} requests/s."
        ),
    ]
    return Table(f"At load {load:g}: means, and over FCFS", columns, rows, notes, frozenset(begins - {0}))


def _beside(found: TieResult) -> Table:
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


def _traffics(found: TieResult) -> tuple[tuple[str, Grid, str], ...]:
    return ("CASTILLO", found.online, found.predictor), ("synthetic", found.synthetic, AS_IN_PAPER)


def _figures(cell: Cell, base: Cell) -> list[str]:
    absolute = [
        cell.latency("per_token_s", "mean"),
        cell.latency("per_token_s", "p90"),
        cell.latency("e2e_s", "mean") / float(np.mean([each.output_tokens.mean() for each in cell.outcomes])),
        cell.latency("ttft_s", "mean"),
        cell.latency("e2e_s", "mean"),
        cell.latency("e2e_s", "p99"),
    ]
    ratios = (over(cell, base), over(cell, base, "e2e_s"), over(cell, base, "e2e_s", "p99"))
    return [*map(seconds, absolute), *map(multiple, ratios)]


def _ablation(found: TieResult) -> Table:
    rows: list[list[str]] = []
    begins = set()
    for traffic, grid, predictor in _traffics(found):
        begins.add(len(rows))
        full = find(grid, "tie", predictor)
        for name, (policy, prediction) in _variants().items():
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
            "E only: beta = 0. Log-normal: CASTILLO's predictions with the same mean and spread of "
            "logarithms; synthetic: "
            "fitted to 20 answers of each prompt, predicted as well as the log-t's parameters."
        ),
    ]
    return Table(f"Ablation of TIE at load {top(found.online).load:g}", columns, rows, notes, frozenset(begins - {0}))


def _offline(found: TieResult) -> Table:
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
            f"{len(grid.workload):,} requests, answers to {found.offline_corpus} ({grid.workload.name}), drawn again "
            "for each seed; the size of the paper's pool is not known."
        ),
        (
            "length and time: Spearman's correlation of output length and completion time; the closer to 1, the "
            "narrower the band of the heatmap."
        ),
        f"tau of {found.predictor}: {grid.tau(found.predictor):.3f}.",
    ]
    columns = (
        "policy", "predictor", f"time to {found.samples:,}", f"samples in {found.window_s:.0f} s",
        "time / FCFS", "samples / FCFS", "length and time", "paper: time to 3,000", "in 3 minutes",
    )  # fmt: skip
    return Table("Offline: all at once", columns, rows, notes, frozenset({1, 1 + len(_OTHERS)}))


def facts(found: TieResult) -> dict[str, Any]:
    """Everything that the tables show, for JSON."""
    return {
        "origin": found.origin,
        "predictor": found.predictor,
        "online": grid_facts(found.online),
        "synthetic": grid_facts(found.synthetic),
        "offline": grid_facts(found.offline),
        "offline_samples": {
            f"{policy}, {predictor}": {"time_to_samples_s": times, "samples_in_window": counts}
            for (policy, predictor), (times, counts) in offline_figures(found).items()
        },
        "prompt_cv": found.prompt_cv,
        "orders": {name: orders(grid.predictions[predictor][0]) for name, grid, predictor in _traffics(found)},
        "sjf_over_fcfs_by_tau": weaker(found),
    }
