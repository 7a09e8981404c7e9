"""From the hidden state of an LLM that is speaking to a belief about what it still has to say (TRAIL)."""

from lengthwise.predictors.probe.bins import Bins, log_bins, paper_bins
from lengthwise.predictors.probe.probe import Probe, Reading, load_probe, write_probe
from lengthwise.predictors.probe.smoothing import Smoothing

__all__ = ["Bins", "Probe", "Reading", "Smoothing", "load_probe", "log_bins", "paper_bins", "write_probe"]
