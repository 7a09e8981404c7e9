"""The papers' tables and figures, and questions of our own: one module per study, declared as in `study.py`."""

from typing import Final

__all__ = ["NAMES"]

NAMES: Final = (
    "trail_engine",
    "trail_probe",
    "alpaca20",
    "castillo_profile",
    "one_prompt",
    "stated",
    "reasoning",
    "thinking",
    "chains",
    "simulator_error",
    "fast_lane",
    "no_harm",
    "hazard",
    "castillo",
    "tie_rivals",
    "slots",
    "burst_learning",
    "on_time",
    "sessions",
    "backlog",
    "ranker",
    "magnus",
    "learning",
    "background",
    "classes",
    "theory",
    "tie",
    "mu_sigma",
    "preble_figures",
    "length_families",
    "frontier",
    "trail",
    "router_grid",
    "left_out",
    "left_out_groups",
    "preble",
    "switching_pools",
    "disaggregation",
)
"""Every study, in the order in which `run all` runs them: the shortest first."""
