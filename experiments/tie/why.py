"""What explains where ours differ from TIE's results, in sentences made of measured figures."""

from __future__ import annotations

import numpy as np

from experiments.tie import paper
from experiments.tie.runs import find, over, top
from experiments.tie.said import order, orders, weaker
from experiments.tie.study import POLICIES, UNAGED, WEIGHTED, TieStudy
from experiments.tie.traffic import AS_IN_PAPER
from lengthwise.reports.simulation import multiple
from lengthwise.reports.tables import Table
from lengthwise.simulator.grid_result import Grid
from lengthwise.simulator.paired import Ratio

__all__ = ["comparable", "why"]


def comparable(found: TieStudy) -> list[str]:
    """Notes on the table of claims: what its figures mean, and the order of policies."""
    theirs = sorted(paper.ONLINE[paper.MAIN], key=lambda name: paper.ONLINE[paper.MAIN][name])
    return [
        (
            "Compared are ratios, order and growth. Seconds are not: other prompts, another LLM, another (simulated) "
            "GPU, and a rate that is known as a load only by inference."
        ),
        "A verdict goes by the 95 % interval: which side of 1 it lies on, then whether it holds the paper's figure.",
        (
            f"Order by latency per token, best first: the paper {' < '.join(theirs)}; "
            f"CASTILLO {order(found.online, found.predictor, POLICIES)}; "
            f"made up {order(found.made_up, AS_IN_PAPER, POLICIES)} (= where the interval tells no difference)."
        ),
    ]


def why(found: TieStudy) -> Table:
    """A row per reason, with the figure that it rests on."""
    rows = [
        *_same_order(found.online, found.predictor),
        (
            "answers to one prompt: CV, averaged (paper; CASTILLO; made up)",
            f"{paper.WITHIN_PROMPT_CV:.2f}; {found.prompt_cv[0]:.2f}; {found.prompt_cv[1]:.2f}",
        ),
    ]
    for name, grid, predictor in (
        ("CASTILLO", found.online, found.predictor),
        ("made up", found.made_up, AS_IN_PAPER),
    ):
        alike = orders(grid.predictions[predictor][0])
        rows += [
            (f"{name}: TIE's score (beta 0.5) and the median order alike, tau", f"{alike.tie_and_median:.3f}"),
            (
                f"{name}: likeness to the order that is best for latency per token (median; mean; TIE), tau",
                f"{alike.median_and_best:.3f}; {alike.mean_and_best:.3f}; {alike.tie_and_best:.3f}",
            ),
            (
                f"{name}: the order by {WEIGHTED} over sjf, latency per token",
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
    return Table("What explains the differences", ("", "measured"), rows, _reasons(found))


def _tie_over_sjf(grid: Grid, predictor: str) -> Ratio:
    return over(find(grid, "tie", predictor), find(grid, "sjf", predictor), "e2e_s")


def _same_order(grid: Grid, predictor: str) -> list[tuple[str, str]]:
    pairs = zip(find(grid, "sjf", predictor).outcomes, find(grid, "ltr", predictor).outcomes, strict=True)
    same = all(np.array_equal(one.finish, other.finish, equal_nan=True) for one, other in pairs)
    return [
        ("sjf and ltr, given the same predictions, finish every request at the same moment", "yes" if same else "no")
    ]


def _reasons(found: TieStudy) -> list[str]:
    """Told from the figures: what is said depends on what came out."""
    main = paper.ONLINE[paper.MAIN]
    notes = []
    beaten = {
        name: over(find(grid, "tie", predictor), find(grid, "sjf", predictor))
        for name, grid, predictor in (
            ("CASTILLO", found.online, found.predictor),
            ("made-up traffic", found.made_up, AS_IN_PAPER),
        )
    }
    said = "; ".join(f"{name} {multiple(ratio)}" for name, ratio in beaten.items())
    if all(ratio.low > 1 for ratio in beaten.values()):
        notes.append(
            f"Given the same predictions TIE has a higher latency per token than SSJF ({said}), so the paper's gain "
            f"({main['tie'] / main['sjf']:.2f}) is not the score's alone: there SSJF and LTR have other predictors."
        )
    elif all(ratio.high < 1 for ratio in beaten.values()):
        notes.append(
            f"Given the same predictions TIE has a lower latency per token than SSJF, as in the paper ({said})."
        )
    else:
        notes.append(f"Given the same predictions TIE and SSJF do not differ in one direction everywhere ({said}).")
    found_orders = [
        orders(found.online.predictions[found.predictor][0]),
        orders(found.made_up.predictions[AS_IN_PAPER][0]),
    ]
    if all(each.median_and_best > each.tie_and_best for each in found_orders):
        notes.append(
            "Latency per token weighs a wait by 1 / length, so the best order by predictions is E[X] / E[1/X] (weighted "
            "shortest expected first). Where a prediction is symmetric in the logarithm that is the median's order; a tail "
            "that is priced in leads away from it, since a request that may be long may also be very short."
        )
    e2e = _tie_over_sjf(found.made_up, AS_IN_PAPER)
    if e2e.high < 1:
        mean = over(find(found.made_up, UNAGED, AS_IN_PAPER), find(found.made_up, "sjf", AS_IN_PAPER), "e2e_s")
        notes.append(
            f"For mean E2E the spread of a prediction does matter: on made-up traffic TIE is at {multiple(e2e)} of SSJF, "
            f"the mean alone (no tail, no aging) at {multiple(mean)}."
        )
    level = top(found.online)
    near = {
        name: min(weaker(found), key=lambda each: abs(np.log(each.ratio.ratio / (main[name] / main["fcfs"]))))
        for name in ("sjf", "ltr", "tie")
    }
    matched = ", ".join(
        f"{name} {main[name] / main['fcfs']:.2f} (tau {each.tau:.2f}: {each.ratio.ratio:.2f})"
        for name, each in near.items()
    )
    notes.append(
        f"SSJF alone, with better or worse predictions, comes nearest to the paper's ratios to FCFS at load "
        f"{level.load:g} with: {matched}. How good predictions are moves latency per token more than the score does."
        if _predictions_matter(found)
        else f"SSJF alone comes nearest to the paper's ratios to FCFS at load {level.load:g} with: {matched}."
    )
    return notes


def _predictions_matter(found: TieStudy) -> bool:
    """Whether the spread over taus is wider than that over the scores, on CASTILLO."""
    over_tau = [each.ratio.ratio for each in weaker(found)]
    base = find(found.online, "fcfs", "")
    over_score = [over(find(found.online, name, found.predictor), base).ratio for name in ("sjf", "tie")]
    return max(over_tau) / min(over_tau) > max(over_score) / min(over_score)
