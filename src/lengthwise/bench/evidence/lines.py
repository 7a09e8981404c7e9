"""What was measured, as values: one line per order and load, one drain per batch, and all of it together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lengthwise.bench.evidence.plan import ORACLE, STOCK, predictor_label
from lengthwise.simulator.metrics import Spread
from lengthwise.simulator.paired import Ratio


@dataclass(frozen=True)
class Repeat:
    """One run of an order, beside the stock run of the same traffic (NaN where there is none)."""

    repeat: int
    mean_s: float
    p99_s: float
    requests_per_s: float
    mean: float
    """Of E2E, over stock vLLM's."""
    p99: float
    behind_s: float
    """How far the mean step ended behind the pace that engines were held to; NaN without one."""


@dataclass(frozen=True)
class Line:
    """One order under one load: its own figures, and the ratios to stock vLLM (ours over FCFS; below 1 is better)."""

    setting: str
    load: float | None
    policy: str
    predictor: str
    repeats: int
    n: int
    e2e_s: Spread
    per_token_s: Spread
    ttft_s: Spread
    requests_per_s: float
    preemptions: float
    mean: Ratio
    mean_by_requests: Ratio
    """Of the mean E2E, requests alone drawn."""
    p50: Ratio
    p99: Ratio
    p99_by_requests: Ratio
    per_token: Ratio
    ttft: Ratio
    throughput: float
    """Over that of stock vLLM, of the makespans."""
    by_repeat: Sequence[Repeat]
    gain_mean: Ratio
    """Share of the true-length gain on the mean E2E; NaN for true lengths themselves."""
    gain_per_token: Ratio
    tau: float
    """Kendall's tau-b of the prediction's median against the length that came; NaN without predictions."""
    lengths_changed: float
    """Setting b: share of the answers that had another length than in the stock run."""
    tokens: float
    """Of the mean answer: more where chance made answers longer (setting b)."""
    at_cap: float
    predictor_cpu_ms: float
    """Per request."""
    schedule_cpu_ms: float
    """Per engine step, vLLM's own part and the plug-in's together."""
    engine_cpu_s: float
    """Of all the engine's processes, per request."""

    @property
    def stock(self) -> bool:
        """Whether this is what the others are compared with."""
        return self.policy == STOCK

    @property
    def name(self) -> str:
        """For people."""
        return "fcfs (stock vLLM)" if self.stock else f"{self.policy}, {said(self.predictor)}"


@dataclass(frozen=True)
class Drain:
    """A batch drained: seconds to a half, three quarters and all of the answers, and these over FCFS's."""

    setting: str
    policy: str
    predictor: str
    n: int
    half_s: float
    three_quarters_s: float
    all_s: float
    half: float
    three_quarters: float
    all: float

    @property
    def name(self) -> str:
        """For people."""
        return "fcfs (stock vLLM)" if self.policy == STOCK else f"{self.policy}, {said(self.predictor)}"


@dataclass(frozen=True)
class Evidence:
    """All that was measured."""

    settings: Mapping[str, Any]
    capacity: Mapping[str, float]
    """Requests a second under backlog, by setting."""
    lines: Sequence[Line]
    drains: Sequence[Drain]
    machine: Mapping[str, Any]
    versions: Mapping[str, Any]
    left_out: Mapping[str, int]
    busy: Sequence[float]
    """Load average of the machine when each cell began."""
    hours: float
    kept: Sequence[Mapping[str, Any]] = ()
    """How well each engine under load kept its pace (`engines.pace.Kept`), where it was given one."""
    ceiling: Mapping[str, float] | None = None
    """Setting b: how much of an answer's length is the LLM's own chance."""

    def line(self, setting: str, load: float | None, policy: str, predictor: str) -> Line | None:
        """One line, None where it was not measured."""
        wanted = (setting, load, policy, predictor)
        return next((x for x in self.lines if (x.setting, x.load, x.policy, x.predictor) == wanted), None)


def said(predictor: str) -> str:
    """A predictor's name for people."""
    return "true lengths" if predictor == ORACLE else f"`{predictor_label(predictor)}`"
