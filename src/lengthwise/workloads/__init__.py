"""Workloads and length samples: data sets, traces, generators, arrivals and file formats. Knows no policy or engine."""

from lengthwise.workloads.arrivals import redraw, replay
from lengthwise.workloads.castillo import castillo_workload, load_castillo
from lengthwise.workloads.datasets import load_alpaca
from lengthwise.workloads.formats import read_workload, write_workload
from lengthwise.workloads.generators import DiscreteLengths, behind_prefixes, into_sessions, react_workload
from lengthwise.workloads.length_samples import LengthSamples, resolve_llm
from lengthwise.workloads.traces import TRACES, Trace, load_trace, load_workload
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
    "castillo_workload",
    "into_sessions",
    "load_alpaca",
    "load_castillo",
    "load_trace",
    "load_workload",
    "react_workload",
    "read_workload",
    "redraw",
    "replay",
    "resolve_llm",
    "write_workload",
]
