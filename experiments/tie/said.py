"""What of TIE's results can be compared with ours, and figures that explain the differences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import kendalltau, spearmanr

from experiments.tie import paper
from experiments.tie.predictions import weighted_score
from experiments.tie.runs import find, over, top
from experiments.tie.study import ABLATED, LOGNORMAL, LOW, WEAKER
from experiments.tie.traffic import AS_IN_PAPER
from lengthwise.simulator.paired import Ratio, over_seeds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from experiments.tie.study import TieStudy
    from lengthwise.simulator.grid_result import Cell, Grid
    from lengthwise.simulator.predictions import RequestPredictions

    Floats = NDArray[np.float64]

__all__ = ["Compared", "Orders", "Weaker", "compare", "concentration", "offline_figures", "order", "orders", "weaker"]


@dataclass(frozen=True)
class Compared:
    """One claim: the paper's ratio, ours on CASTILLO and on made-up traffic (none where that was not run)."""

    claim: str
    paper: float
    castillo: Ratio
    made_up: Ratio

    @property
    def verdicts(self) -> tuple[str, str]:
        """Of each of ours."""
        return _verdict(self.paper, self.castillo), _verdict(self.paper, self.made_up)


def _verdict(theirs: float, ours: Ratio) -> str:
    """By which side of 1 the interval lies on, then by whether it holds the paper's figure."""
    if np.isnan(ours.ratio):
        return "–"
    if ours.low <= 1 <= ours.high:
        return "no difference here"
    if (ours.ratio < 1) != (theirs < 1):
        return "the other way round"
    if ours.low <= theirs <= ours.high:
        return "the same"
    return "same direction, " + ("more" if abs(np.log(ours.ratio)) > abs(np.log(theirs)) else "less")


def compare(found: TieStudy) -> list[Compared]:
    """All ratios that the paper's figures and ours have in common, latency per token unless said otherwise."""
    main, offline = paper.ONLINE[paper.MAIN], offline_figures(found)
    rows = [
        _both(found, f"{name} over {base}", main[name] / main[base], name, base)
        for name, base in (("sjf", "fcfs"), ("ltr", "fcfs"), ("tie", "fcfs"), ("tie", "sjf"), ("tie", "ltr"))
    ]
    rows += [_growth(found, name) for name in paper.GROWTH]
    full = paper.ABLATION["full"]
    variants: Mapping[str, tuple[str, str | None]] = {
        **{name: (policy, None) for name, policy in ABLATED.items()},
        LOGNORMAL: ("tie", LOGNORMAL),
    }
    for name, (policy, prediction) in variants.items():
        theirs = paper.ABLATION[name]
        for statistic, ratio in (("mean", theirs.mean / full.mean), ("p90", theirs.p90 / full.p90)):
            rows.append(
                Compared(
                    f"{name} over full TIE, {statistic}",
                    ratio,
                    over(
                        find(found.online, policy, prediction or found.predictor),
                        find(found.online, "tie", found.predictor),
                        statistic="p90" if statistic == "p90" else "mean",
                    ),
                    over(
                        find(found.made_up, policy, prediction or AS_IN_PAPER),
                        find(found.made_up, "tie", AS_IN_PAPER),
                        statistic="p90" if statistic == "p90" else "mean",
                    ),
                )
            )
    for i, what in enumerate(("time to the samples", "samples in the time")):
        theirs_ratio = paper.OFFLINE["tie"][i] / paper.OFFLINE["ltr"][i]
        ours = over_seeds(*(offline[name, found.predictor][i] for name in ("tie", "ltr")))
        rows.append(Compared(f"offline, tie over ltr, {what}", theirs_ratio, ours, Ratio.none()))
    return rows


def _both(found: TieStudy, claim: str, theirs: float, name: str, base: str) -> Compared:
    online, made = (
        over(find(grid, name, predictor), find(grid, base, predictor))
        for grid, predictor in ((found.online, found.predictor), (found.made_up, AS_IN_PAPER))
    )
    return Compared(claim, theirs, online, made)


def _growth(found: TieStudy, policy: str) -> Compared:
    ratios = []
    for grid, predictor in ((found.online, found.predictor), (found.made_up, AS_IN_PAPER)):
        low = next(level for level in grid.levels if level.load == LOW)
        ratios.append(over(find(grid, policy, predictor), find(grid, policy, predictor, low)))
    low_rate, high_rate = paper.RATES
    claim = f"{policy} at {high_rate:g} over {low_rate:g} requests/s"
    return Compared(claim, paper.GROWTH[policy], ratios[0], ratios[1])


def order(grid: Grid, predictor: str, policies: tuple[str, ...]) -> str:
    """Policies by latency per token at the highest load; `=` where an interval does not tell two neighbours apart."""
    cells = sorted((find(grid, name, predictor) for name in policies), key=lambda c: c.latency("per_token_s", "mean"))
    said = cells[0].policy
    for before, after in pairwise(cells):
        said += (" < " if over(after, before).low > 1 else " = ") + after.policy
    return said


def offline_figures(found: TieStudy) -> dict[tuple[str, str | None], tuple[list[float], list[float]]]:
    """Seconds to the samples and samples in the window, seed by seed, of each policy and predictor."""
    return {
        (cell.policy, cell.predictor): (
            [float(np.sort(outcome.finish)[found.samples - 1]) for outcome in cell.outcomes],
            [float((outcome.finish <= found.window_s).sum()) for outcome in cell.outcomes],
        )
        for cell in found.offline.cells
    }


def concentration(cell: Cell) -> float:
    """Spearman's correlation of output length and completion time: how narrow the heatmap's band is."""
    found = [spearmanr(each.output_tokens, each.finish - each.arrival).statistic for each in cell.outcomes]
    return float(np.mean(found))


@dataclass(frozen=True)
class Orders:
    """How alike orders are, as Kendall's tau-b between scores, of the first seed's requests.

    The best is the one for latency per token (`weighted_score`).
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
    """SSJF with predictions of some quality, over FCFS."""

    predictor: str
    tau: float
    ratio: Ratio


def weaker(found: TieStudy) -> list[Weaker]:
    """From bad to good predictions and to the study's own, at the highest load."""
    level = top(found.online)
    base = find(found.online, "fcfs", "", level)
    return [
        Weaker(name, found.online.tau(name), over(find(found.online, "sjf", name, level), base))
        for name in dict.fromkeys((*WEAKER, found.predictor))
    ]
