"""From the hidden state of an LLM that is speaking to a prediction about what it still has to say (TRAIL)."""

from lengthwise.predictors.probe.bins import Bins, Smoothing, log_bins, paper_bins
from lengthwise.predictors.probe.probe import DEFAULT, SHIPPED, Probe, Reading, load_probe, probe_path, write_probe

__all__ = [
    "DEFAULT",
    "SHIPPED",
    "Bins",
    "Probe",
    "Reading",
    "Smoothing",
    "load_probe",
    "log_bins",
    "paper_bins",
    "probe_path",
    "write_probe",
]
