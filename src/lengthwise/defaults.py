"""The defaults of every host and command: what is simulated and planned is what is served."""

from __future__ import annotations

from typing import Final

DEFAULT_POLICY: Final = "lengthwise"

COMPARED_POLICIES: Final = ("fcfs", DEFAULT_POLICY)
"""Policies that a simulation or a plan compares: the one that is served beside order of arrival."""

DEFAULT_ROUTER: Final = "lengthwise"
"""Where there are several engines; with one there is nothing to choose."""

DEFAULT_PREDICTOR: Final = "fast"

OFFLINE_PREDICTOR: Final = f"memory+{DEFAULT_PREDICTOR}+learn"
"""Of batches and rollouts, whose prompts repeat and whose answers end while others wait."""

DEFAULT_SLOTS: Final = 64
"""Requests that run at once on one engine; the others wait in the policy's order."""

EMBEDDED_SLOTS: Final = 16
"""The same for the embedded engine, which runs on two CPU cores."""

ADMISSION_QUANTILE: Final = 0.8
"""Quantile of the KV memory of all requests that must fit into an engine in front of which requests wait: the largest
one tried that costs no workload of `benchmarks.admission` more than 5 % of its throughput."""
