"""The papers' tables and figures, and questions of our own: one module per study, declared as in `study.py`."""

from typing import Final

__all__ = ["NAMES"]

NAMES: Final = (
    "reasoning",
    "theory",
    "trail",
    "castillo",
    "tie",
    "preble",
    "disaggregation",
    "one_prompt",
    "simulator_error",
)
"""Every study, in the order in which `run all` runs them: the shortest first."""
