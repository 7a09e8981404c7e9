"""The papers' tables and figures, and questions of our own: one module per study, declared as in `study.py`."""

from typing import Final

__all__ = ["NAMES"]

NAMES: Final = (
    "trail_engine",
    "reasoning",
    "trail",
    "theory",
    "tie",
    "mu_sigma",
    "tie_rivals",
    "hazard",
    "length_families",
    "castillo",
    "left_out",
    "left_out_groups",
    "simulator_error",
    "slots",
    "frontier",
    "one_prompt",
    "router_grid",
    "preble_figures",
    "preble",
    "disaggregation",
    "alpaca20",
)
"""Every study, in the order in which `run all` runs them: the shortest first."""
