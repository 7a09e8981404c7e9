"""What predictors learn from and simulators replay: requests with lengths, and where they come from."""

from lengthwise.workloads.alpaca import load_alpaca
from lengthwise.workloads.castillo import castillo_workload, load_castillo
from lengthwise.workloads.discrete import DiscreteLengths
from lengthwise.workloads.formats import read_workload, write_workload
from lengthwise.workloads.length_samples import LengthSamples
from lengthwise.workloads.llms import resolve_llm
from lengthwise.workloads.prefixes import behind_prefixes
from lengthwise.workloads.react import react_workload
from lengthwise.workloads.redraw import redraw, replay
from lengthwise.workloads.sessions import into_sessions
from lengthwise.workloads.summary import LengthStatistics, WorkloadStatistics
from lengthwise.workloads.traces import TRACES, Trace, load_trace, load_workload
from lengthwise.workloads.workload import LeftOut, Workload

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
