"""Claims, tables and figures of the TIE study, and what explains the differences from the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from scipy.stats import kendalltau, spearmanr

from experiments.study import Claim, table_of
from experiments.tie import paper
from experiments.tie.engine import engine_claims
from experiments.tie.study import (
    ABLATED,
    LOGNORMAL,
    LOW,
    POLICIES,
    WEAKER,
    WEIGHTED,
    Offline,
    TieResult,
    find,
    over,
    top,
)
from experiments.tie.traffic import AS_IN_PAPER, weighted_score
from lengthwise.intervals import over_seeds
from lengthwise.reports.latency_figures import latency_by_load
from lengthwise.reports.page import Figure, axes, axis, panel
from lengthwise.reports.runs import predictor_label
from lengthwise.reports.simulation import runs_of
from lengthwise.reports.tables import Table, multiple, seconds
from lengthwise.simulator.grid import Cell, Grid, Metric, Statistic
from lengthwise.simulator.predictions import RequestPredictions

_BINS: Final = 32
_SHADES: Final = ((0.0, "#e3eef7"), (0.15, "#9cc4e4"), (0.4, "#4a90c4"), (1.0, "#08306b"))
"""Darker for more requests; most cells have few, so low shares get most of the shades."""

_PAIRS: Final = (("sjf", "fcfs"), ("ltr", "fcfs"), ("tie", "fcfs"), ("tie", "sjf"), ("tie", "ltr"))
_OTHERS: Final = tuple(policy for policy in POLICIES if policy != "fcfs")


def pair_claims(
    settings: Mapping[str, tuple[Grid, Mapping[str, str]]], definitions: Mapping[str, Metric]
) -> list[Claim]:
    """The paper's ratios at its highest rate, where a setting is a grid and the predictor of each policy.

    Latency per token has two definitions, the mean of E2E / tokens and a ratio of totals. All policies serve the same
    tokens, so a ratio of the second is that of mean E2E.
    """
    main = paper.ONLINE[paper.MAIN]
    return [
        Claim(
            f"{policy} over {base}{suffix}",
            main[policy] / main[base],
            over(find(grid, policy, predictors[policy]), find(grid, base, predictors.get(base, "")), measure),
            setting,
        )
        for suffix, measure in definitions.items()
        for policy, base in _PAIRS
        for setting, (grid, predictors) in settings.items()
        if policy in predictors and base in (*predictors, "fcfs")
    ]


def claims(found: TieResult) -> list[Claim]:
    """All ratios that the paper's figures and ours have in common, of latency per token unless stated otherwise."""
    same = {setting: (grid, dict.fromkeys(_OTHERS, predictor)) for setting, grid, predictor in _traffics(found)}
    rows = pair_claims(same, {"": "per_token_s", ", total E2E / total tokens": "e2e_s"})
    low_rate, high_rate = paper.RATES
    for name, growth in paper.GROWTH.items():
        for setting, grid, predictor in _traffics(found):
            low = next(offered for offered in grid.offered_loads if offered.load == LOW)
            ours = over(find(grid, name, predictor), find(grid, name, predictor, low))
            rows.append(Claim(f"{name} at {high_rate:g} over {low_rate:g} requests/s", growth, ours, setting))
    rows += _ablation_claims(found)
    rows += _large_claims(found)
    rows += engine_claims()
    return rows + offline_claims(found.offline, dict.fromkeys(("tie", "ltr"), found.predictor), "CASTILLO")


def offline_claims(offline: Offline, predictors: Mapping[str, str], setting: str) -> list[Claim]:
    """TIE over LTR when all requests arrive at once, with a predictor for each of the two."""
    measured, rows = offline_figures(offline), []
    for i, what in enumerate(("time to the samples", "samples in the time")):
        theirs = paper.OFFLINE["tie"][i] / paper.OFFLINE["ltr"][i]
        ours = over_seeds(*(measured[name, predictors[name]][i] for name in ("tie", "ltr")))
        rows.append(Claim(f"offline, tie over ltr, {what}", theirs, ours, setting))
    bands = (concentration(find(offline.grid, name, predictors[name])) for name in ("tie", "ltr"))
    rows.append(Claim("offline, tie over ltr, correlation of length and time", None, over_seeds(*bands), setting))
    return rows


def _ablation_claims(found: TieResult) -> Iterator[Claim]:
    variants = {name: (policy, "") for name, policy in ABLATED.items()} | {LOGNORMAL: ("tie", LOGNORMAL)}
    statistics: tuple[Statistic, Statistic] = ("mean", "p90")
    for name, (policy, prediction) in variants.items():
        for statistic, theirs, full in zip(statistics, paper.ABLATION[name], paper.ABLATION["full"], strict=True):
            for setting, grid, predictor in _traffics(found):
                cells = find(grid, policy, prediction or predictor), find(grid, "tie", predictor)
                ours = over(*cells, statistic=statistic)
                yield Claim(f"{name} over full TIE, {statistic}", theirs / full, ours, setting)


def _large_claims(found: TieResult) -> Iterator[Claim]:
    """The paper's table across data sets with a 70B LLM, by both definitions of latency per token."""
    definitions: Mapping[str, Metric] = {"": "per_token_s", ", total E2E / total tokens": "e2e_s"}
    for corpus, grid in found.large.items():
        given = paper.ONLINE[f"{corpus} 70B"]
        for suffix, measure in definitions.items():
            for policy, base in _PAIRS:
                ours = over(find(grid, policy, found.predictor), find(grid, base, found.predictor), measure)
                yield Claim(
                    f"{corpus}, 70B: {policy} over {base}{suffix}", given[policy] / given[base], ours, "CASTILLO"
                )


def offline_figures(offline: Offline) -> dict[tuple[str, str | None], tuple[list[float], list[float]]]:
    """Seconds to the samples and samples in the window, seed by seed, of each policy and predictor."""
    return {
        (cell.policy, cell.predictor): (
            [float(np.sort(outcome.finished_s)[offline.samples - 1]) for outcome in cell.outcomes],
            [float((outcome.finished_s <= offline.window_s).sum()) for outcome in cell.outcomes],
        )
        for cell in offline.grid.cells
    }


def concentration(cell: Cell) -> list[float]:
    """Spearman's correlation of output length and completion time by seed: 1 is the narrowest band in the heatmap."""
    return [float(spearmanr(each.output_tokens, each.finished_s - each.arrival_s).statistic) for each in cell.outcomes]


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
    pairs = ((score, predictions.mu), (predictions.mu, best), (expected, best), (score, best))
    return Orders(*(float(kendalltau(*pair).statistic) for pair in pairs))


def weaker(found: TieResult) -> list[dict[str, Any]]:
    """SSJF over FCFS at the highest load, from weak predictions to the study's."""
    grid = found.online
    names = dict.fromkeys((*WEAKER, found.predictor))
    ratios = [over(find(grid, "sjf", name), find(grid, "fcfs", "")) for name in names]
    return [
        {"predictor": name, "tau": grid.tau(name), "ratio": ratio} for name, ratio in zip(names, ratios, strict=True)
    ]


CLAIM_NOTE: Final = (
    "Compared are ratios and growth. Seconds are not: other prompts, another LLM, another (simulated) GPU, and a rate "
    "that is known as a load only by inference."
)


def _reasons(found: TieResult) -> Table:
    """One row per explanation, with the measured value."""
    pairs = zip(*(find(found.online, name, found.predictor).outcomes for name in ("sjf", "ltr")), strict=True)
    same = all(np.array_equal(one.finished_s, other.finished_s, equal_nan=True) for one, other in pairs)
    rows = [
        ("sjf and ltr, given the same predictions, finish every request at the same time", "yes" if same else "no"),
        (
            "answers to one prompt: CV, averaged (paper; CASTILLO; synthetic)",
            f"{paper.WITHIN_PROMPT_CV:.2f}; {found.prompt_cv[0]:.2f}; {found.prompt_cv[1]:.2f}",
        ),
    ]
    for name, grid, predictor in _traffics(found):
        alike = orders(grid.predictions[predictor][0])
        sjf, tie = (find(grid, policy, predictor) for policy in ("sjf", "tie"))
        rows += [
            (f"{name}: tau between TIE's score (beta 0.5) and the median", f"{alike.tie_and_median:.3f}"),
            (
                f"{name}: tau with the best order for latency per token (median; mean; TIE)",
                f"{alike.median_and_best:.3f}; {alike.mean_and_best:.3f}; {alike.tie_and_best:.3f}",
            ),
            (
                f"{name}: order by {WEIGHTED} over sjf, latency per token",
                multiple(over(find(grid, "sjf", WEIGHTED), sjf)),
            ),
            (f"{name}: tie over sjf in mean E2E", multiple(over(tie, sjf, "e2e_s"))),
            (
                f"{name}: true lengths instead of predictions, tie, latency per token",
                multiple(over(find(grid, "tie", "oracle"), tie)),
            ),
        ]
    rows += [
        (f"CASTILLO: sjf over fcfs with {each['predictor']} (tau {each['tau']:.2f})", multiple(each["ratio"]))
        for each in weaker(found)
    ]
    return Table("What explains the differences", ("", "measured"), rows)


def tables(found: TieResult) -> list[Table]:
    """Online over load, beside the paper's figures, offline, and what explains the differences."""
    return [
        _over_load(found, "Latency per token", lambda cell, base: multiple(over(cell, base)), "per_token_s"),
        _over_load(
            found,
            "Completion time (E2E), mean and p99",
            lambda cell, base: f"{over(cell, base, 'e2e_s').ratio:.3f}, {over(cell, base, 'e2e_s', 'p99').ratio:.3f}",
            "e2e_s",
        ),
        _beside(found),
        offline_table(found.offline, [f"tau of {found.predictor}: {found.offline.grid.tau(found.predictor):.3f}."]),
        _reasons(found),
    ]


def _over_load(found: TieResult, what: str, shown: Callable[[Cell, Cell], str], measure: Metric) -> Table:
    grid = found.online
    loads = grid.offered_loads
    rows = [["fcfs", "", *(seconds(find(grid, "fcfs", "", at).latency(measure, "mean")) for at in loads)]]
    for predictor in dict.fromkeys((found.predictor, "oracle")):
        for policy in _OTHERS:
            cells = [find(grid, policy, predictor, at) for at in loads]
            bases = [find(grid, "fcfs", "", at) for at in loads]
            rows.append([policy, predictor, *map(shown, cells, bases)])
    columns = ["policy", "predictor", *(f"{at.load:.1f} ({at.offered_per_s:.3g}/s)" for at in loads)]
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


def _beside(found: TieResult) -> Table:
    rows = []
    for policy in POLICIES:
        ours = [
            multiple(over(find(grid, policy, predictor), find(grid, "fcfs", "")))
            for _, grid, predictor in _all_traffics(found)
        ]
        theirs = [f"{given[policy] / given['fcfs']:.3f}" if policy in given else "–" for given in paper.ONLINE.values()]
        rows.append([policy, *ours, *theirs])
    names = [f"{name}, {predictor}" for name, _, predictor in _all_traffics(found)]
    title = f"Latency per token over FCFS's: ours at load {top(found.online).load:g}, and the paper's"
    notes = [
        f"{corpus}, 70B: {grid.workload.name} on {grid.fleet}, {len(grid.workload):,} requests, capacity "
        f"{grid.capacity_per_s:.3g} requests/s, tau of {found.predictor} {grid.tau(found.predictor):.3f}."
        for corpus, grid in found.large.items()
    ]
    return Table(title, ("policy", *names, *(f"paper, {name}" for name in paper.ONLINE)), rows, notes)


def _traffics(found: TieResult) -> tuple[tuple[str, Grid, str], ...]:
    """The traffic of figure 4 and the ablation: name, runs, predictor."""
    return ("CASTILLO", found.online, found.predictor), ("synthetic", found.synthetic, AS_IN_PAPER)


def _all_traffics(found: TieResult) -> tuple[tuple[str, Grid, str], ...]:
    large = ((f"{corpus}, 70B", grid, found.predictor) for corpus, grid in found.large.items())
    return *_traffics(found), *large


def offline_table(offline: Offline, notes: Sequence[str]) -> Table:
    """Time to the samples, samples in the time, and how narrow the band of the heatmap is."""
    measured, grid = offline_figures(offline), offline.grid

    def over_fcfs(cell: Cell, which: int) -> str:
        mine, base = (measured[key][which] for key in ((cell.policy, cell.predictor), ("fcfs", None)))
        return "1" if cell.policy == "fcfs" else multiple(over_seeds(mine, base))

    def papers(cell: Cell, which: int, form: str) -> str:
        given = paper.OFFLINE.get(cell.policy) if cell.predictor != "oracle" else None
        return "–" if given is None else form.format(given[which])

    return table_of(
        "Offline: all at once",
        grid.cells,
        [
            ("policy", lambda cell: cell.policy),
            ("predictor", lambda cell: cell.predictor or ""),
            (
                f"time to {offline.samples:,}",
                lambda cell: f"{np.mean(measured[cell.policy, cell.predictor][0]):,.1f} s",
            ),
            (
                f"samples in {offline.window_s:.0f} s",
                lambda cell: f"{np.mean(measured[cell.policy, cell.predictor][1]):,.0f}",
            ),
            ("time / FCFS", lambda cell: over_fcfs(cell, 0)),
            ("samples / FCFS", lambda cell: over_fcfs(cell, 1)),
            ("length and time", lambda cell: f"{np.mean(concentration(cell)):.3f}"),
            ("paper: time to 3,000", lambda cell: papers(cell, 0, "{:g} s")),
            ("in 3 minutes", lambda cell: papers(cell, 1, "{:,.0f}")),
        ],
        [
            (
                f"{len(grid.workload):,} requests, answers to {offline.corpus} ({grid.workload.name}), drawn "
                "again for each seed; the size of the paper's pool is not known."
            ),
            (
                "length and time: Spearman's correlation of output length and completion time; the closer to 1, the "
                "narrower the band of the heatmap."
            ),
            *notes,
        ],
        group=lambda cell: cell.predictor,
    )


def figures(found: TieResult) -> list[Figure]:
    """Latency over load (the paper's figure 4), and its heatmap of the offline runs (figure 5)."""
    names = tuple(dict.fromkeys((found.predictor, "oracle")))
    cells = [cell for cell in found.online.cells if cell.policy in POLICIES and cell.predictor in (None, *names)]
    predictions = {name: found.online.predictions[name] for name in names}
    shown = replace(found.online, cells=tuple(cells), predictions=predictions)  # not the ablation
    at_once = [cell for cell in found.offline.grid.cells if cell.predictor in (None, found.predictor)]
    return [latency_by_load(runs_of(shown)), length_heatmap(at_once, f"predictions {predictor_label(found.predictor)}")]


def length_heatmap(cells: Sequence[Cell], predictions: str) -> Figure:
    """The share of requests by output length and completion time, a panel per policy."""
    points = [
        np.log10(np.concatenate([(outcome.output_tokens, outcome.finished_s) for outcome in cell.outcomes], axis=1))
        for cell in cells
    ]
    x_edges, y_edges = (np.linspace(each.min(), each.max(), _BINS + 1) for each in np.concatenate(points, axis=1))
    data: list[dict[str, Any]] = []
    for place, (tokens, taken) in enumerate(points):
        counts = np.histogram2d(tokens, taken, bins=(x_edges, y_edges))[0].T
        shares = np.where(counts > 0, counts / counts.sum(), np.nan)
        hover = "%{x:.0f} tokens<br>%{y:.2f} s<br>%{z:.2%} of requests<extra></extra>"
        heatmap = {"type": "heatmap", "coloraxis": "coloraxis", "hovertemplate": hover}
        data.append({**heatmap, "x": 10**x_edges, "y": 10**y_edges, "z": shares, **panel(place)})
    both = (axis("output tokens", type="log", dtick=1), axis("E2E (s)", type="log", dtick=1))
    layout = axes([both] * len(cells), columns=3, titles=[cell.label for cell in cells])
    layout["coloraxis"] = {"colorscale": _SHADES, "cmin": 0, "colorbar": {"tickformat": ".1%"}}
    text = f"All at once, {predictions}. The share of requests in each cell: far above the lower edge, they waited."
    title = "Offline: completion time against output length (figure 5)"
    return Figure(title, text, data, layout, height=120 + 330 * -(-len(cells) // 3))
