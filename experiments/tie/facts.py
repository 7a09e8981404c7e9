"""`TieStudy` for programs: everything that its tables and figures show, and each seed."""

from __future__ import annotations

from typing import Any

from experiments.tie import paper
from experiments.tie.said import compare, concentration, offline_figures, orders, weaker
from experiments.tie.study import TieStudy
from experiments.tie.traffic import AS_IN_PAPER
from lengthwise.reports.simulation_facts import facts

__all__ = ["plain"]


def plain(found: TieStudy) -> dict[str, Any]:
    """Ready for `to_json`."""
    return {
        "origin": found.origin,
        "predictor": found.predictor,
        "paper": {
            "online_per_token_s": paper.ONLINE,
            "growth": paper.GROWTH,
            "ablation": dict(paper.ABLATION),
            "offline": paper.OFFLINE,
            "implied_capacity_per_s": paper.implied_capacity(),
        },
        "online": facts(found.online),
        "made_up": facts(found.made_up),
        "offline": {
            "corpus": found.offline_corpus,
            "requests": len(found.offline.workload),
            "samples": found.samples,
            "window_s": found.window_s,
            "runs": [
                {
                    "policy": cell.policy,
                    "predictor": cell.predictor,
                    "time_to_samples_s": times,
                    "samples_in_window": counts,
                    "length_and_time": concentration(cell),
                }
                for cell, (times, counts) in zip(found.offline.cells, offline_figures(found).values(), strict=True)
            ],
        },
        "prompt_cv": {"castillo": found.prompt_cv[0], "made_up": found.prompt_cv[1], "paper": paper.WITHIN_PROMPT_CV},
        "compared": [{**vars(each), "verdicts": each.verdicts} for each in compare(found)],
        "orders": {
            "castillo": orders(found.online.predictions[found.predictor][0]),
            "made_up": orders(found.made_up.predictions[AS_IN_PAPER][0]),
        },
        "sjf_over_fcfs_by_tau": weaker(found),
    }
