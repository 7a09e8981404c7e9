"""Workloads and length samples: data sets, traces, generators, arrivals and file formats. Knows no policy or engine.

Names are imported when they are first used: what needs pyarrow loads only where it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lengthwise.workloads.arrivals import redraw, replay
    from lengthwise.workloads.datasets import castillo_day, castillo_workload, load_alpaca, load_castillo
    from lengthwise.workloads.formats import read_workload, write_workload
    from lengthwise.workloads.generators import (
        DiscreteLengths,
        behind_prefixes,
        into_sessions,
        react_sessions,
        react_workload,
    )
    from lengthwise.workloads.length_samples import LengthSamples
    from lengthwise.workloads.traces import TRACES, Trace, load_trace
    from lengthwise.workloads.workload import LeftOut, LengthStatistics, Workload, WorkloadStatistics

__all__ = [
    "TRACES",
    "DiscreteLengths",
    "LeftOut",
    "LengthSamples",
    "LengthStatistics",
    "Trace",
    "Workload",
    "WorkloadStatistics",
    "behind_prefixes",
    "castillo_day",
    "castillo_workload",
    "into_sessions",
    "load_alpaca",
    "load_castillo",
    "load_trace",
    "react_sessions",
    "react_workload",
    "read_workload",
    "redraw",
    "replay",
    "write_workload",
]

_EXPORTS = {
    "arrivals": ("redraw", "replay"),
    "datasets": ("castillo_day", "castillo_workload", "load_alpaca", "load_castillo"),
    "formats": ("read_workload", "write_workload"),
    "generators": ("DiscreteLengths", "behind_prefixes", "into_sessions", "react_sessions", "react_workload"),
    "length_samples": ("LengthSamples",),
    "traces": ("TRACES", "Trace", "load_trace"),
    "workload": ("LeftOut", "LengthStatistics", "Workload", "WorkloadStatistics"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'lengthwise.workloads' has no attribute '{name}'")
    return getattr(import_module(f"lengthwise.workloads.{_MODULE_OF[name]}"), name)
