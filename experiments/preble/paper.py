"""Settings and values of the length-aware extension of Preble.

Arango, Noori, Huang, Shahout, Yu: "Prefix and Output Length-Aware Scheduling for Efficient Online LLM Inference" (ICLR
2025 workshop on Sparsity in LLMs). Settings and values are the text's; where the public code (on GitHub,
inakineitor/preble at 99ea1db) is the source, the comment says so.
"""

from __future__ import annotations

from typing import Final

ENGINE: Final = "mistral-7b@a6000"
ENGINES: Final = (4, 8, 16, 32)
RATES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
WORKLOADS: Final = 10
EXAMPLES: Final = 4
MAX_TOKENS: Final = 300
SECONDS: Final = 30.0
"""Seconds of arrivals, in the public code. There a run ends with them; ours runs to drain."""

COMPARED: Final = 8
"""Engines of figure 2."""
LATENCY_S: Final = {64.0: (0.1427, 0.1223), 128.0: (0.2559, 0.1820)}
"""Figure 2, mean normalized latency by requests per second: Preble, and with the oracle's lengths. One run each."""

OVERHEAD_S: Final = {
    4: {"e2": {8.0: 6e-4, 64.0: 12e-4, 128.0: 11e-4}, "least_outstanding": {8.0: 2e-4, 64.0: 3e-4}},
    8: {"e2": {8.0: 8e-4, 128.0: 20e-4}, "least_outstanding": {8.0: 2e-4, 128.0: 3e-4}},
    32: {"e2": {8.0: 8e-4, 128.0: 25e-4}, "least_outstanding": {8.0: 2e-4, 128.0: 5e-4}},
}
"""Figure 1C, seconds of a choice by engines, router and requests per second. At 128 with 4 engines: "above 11e-4"."""

NAIVE: Final = ("random", "round_robin", "least_outstanding")
CLAIMS: Final = (
    ("4 engines: E2 is slower than the naive routers at 128/s", 4, 128.0, None),
    ("8 engines: E2 is slower than all naive routers at 32/s", 8, 32.0, None),
    ("8 engines: E2 is slower than random at 128/s", 8, 128.0, None),
    ("16 engines: E2 takes 1.6 times as long at 64/s", 16, 64.0, 1.6),
    ("16 engines: E2 takes 1.6 times as long at 128/s", 16, 128.0, 1.6),
)
"""Statements on figures 1A and 1B: engines, requests per second, and E2 over the baselines where the text has a
number.
"""
