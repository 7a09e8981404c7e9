"""Probes (TRAIL): from an LLM's hidden state during decoding to a prediction of the remaining length."""

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
