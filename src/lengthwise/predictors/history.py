"""History: a running log-t of each LLM's past lengths, the fallback of every predictor.

Uses lengths and LLM names only. `learner.LlmLearner` uses the same running estimate for the errors of predictions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, LogT, log_t, wide_prior
from lengthwise.predictors.contract import LogTPredictions, PredictionInput, as_inputs

MEMORY: Final = 150
"""Observations after which an observation has lost 63 % of its weight, without drift."""

FAST_MEMORY: Final = 35
"""Observations after which one has lost 63 % of its weight in the memory that follows changes."""

MAX_LLMS: Final = 1024
"""LLM names come from clients: above this number the least recently used one is dropped."""

FORMAT: Final = 1

_ALARM: Final = 4.0  # standard errors between the two memories; no false one in 100,000 simulated steady observations
_KEPT_AT_ALARM: Final = 5.0  # observations' worth of the fast memory that the slow one starts again from
_PRIOR_WEIGHT: Final = 5.0  # observations that a new LLM's history starts with
_MIN_SCALE: Final = 0.02
_INFORMATION: Final = (TIE_NU + 3) / (TIE_NU + 1)  # variance of a log-t location, in scale^2 per observation


@dataclass(slots=True)
class Running:
    """Exponentially forgetting location and scale of y = location + scale * unit * T, T Student-t with nu 3.5.

    Online EM (Cappe and Moulines 2009) on the t as a scale mixture: an outlier has weight
    w = (nu+1)/(nu+z^2), and a censored observation (y > bound) counts as its conditional expectation. O(1) each.
    """

    memory: float
    location: float
    scale: float
    count: float
    """Observations' worth of evidence, the prior's included; at most `memory`."""
    weight: float = 0.0
    squares: float = 0.0

    @classmethod
    def starting(
        cls, memory: float, location: float, scale: float, count: float, weight: float | None = None
    ) -> Running:
        """Return the state after `count` observations at this location and scale; `weight` is the location's alone."""
        return cls(memory, location, scale, count, count if weight is None else weight, count * scale**2)

    def observe(self, y: float, unit: float, *, censored: bool) -> None:
        """Observe one value (if censored, a lower bound) with its unit of spread."""
        z = (y - self.location) / (self.scale * unit)
        weight, mean_z, spread = map(float, log_t.beyond(z)) if censored else (log_t.outlier_weight(z), z, 0.0)
        keep = 1.0 - 1.0 / self.memory
        before, added = keep * self.weight, weight / unit**2
        step = self.scale * unit * mean_z
        self.weight = before + added
        self.squares = keep * self.squares + self.scale**2 * spread + added * before / self.weight * step**2
        self.count = keep * self.count + 1.0
        self.location += added / self.weight * step
        self.scale = max(_MIN_SCALE, math.sqrt(self.squares / self.count))

    def restart_from(self, other: Running, count: float) -> None:
        """Restart from the other estimate with the weight of `count` observations."""
        share = min(1.0, count / other.count)
        self.location, self.scale = other.location, other.scale
        self.count, self.weight, self.squares = (share * x for x in (other.count, other.weight, other.squares))


@dataclass(slots=True)
class Tracker:
    """A running log-t that is steady without drift and fast after a change.

    Two memories, of 150 and 35 observations. If their locations differ by more than four standard errors, the slow
    one restarts from the fast one.
    """

    slow: Running
    fast: Running
    seen: int = 0
    alarms: int = 0

    @classmethod
    def starting(cls, location: float, scale: float, count: float, *, weight: float | None = None) -> Tracker:
        """Start at this location and scale, with the weight of `count` observations; the location's may be another."""
        fast = Running.starting(FAST_MEMORY, location, scale, min(count, FAST_MEMORY), weight)
        return cls(Running.starting(MEMORY, location, scale, count, weight), fast)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Tracker:
        """Return the tracker that `asdict` wrote; ValueError unless all numbers are finite and all weights above 0."""
        slow, fast = Running(**state["slow"]), Running(**state["fast"])
        for part in (slow, fast):
            if not np.isfinite(astuple(part)).all() or min(part.memory - 1, part.scale, part.count, part.weight) <= 0:
                raise ValueError("not a running estimate")
        return cls(slow, fast, int(state["seen"]), int(state["alarms"]))

    @property
    def location(self) -> float:
        """The current location."""
        return self.slow.location

    @property
    def scale(self) -> float:
        """The current scale, in units of spread."""
        return self.slow.scale

    def observe(self, y: float, unit: float = 1.0, *, censored: bool = False) -> None:
        """Observe one value, or a lower bound if censored."""
        self.slow.observe(y, unit, censored=censored)
        self.fast.observe(y, unit, censored=censored)
        self.seen += 1
        if self._differ():
            self.slow.restart_from(self.fast, _KEPT_AT_ALARM)
            self.alarms += 1

    def _differ(self) -> bool:
        if self.slow.count < 2 * self.fast.count:
            return False  # with so few observations the slow estimate follows quickly too
        # Exponential means with gains a and b of the same values differ with variance (a - b)^2 / (2 (a + b)).
        a, b = 1.0 / self.fast.weight, 1.0 / self.slow.weight
        variance = _INFORMATION * self.slow.scale**2 * (a - b) ** 2 / (2 * (a + b))
        return (self.fast.location - self.slow.location) ** 2 > _ALARM**2 * variance


def remember(trackers: dict[str, Tracker], llm: str, start: Tracker) -> Tracker:
    """Return the LLM's tracker, `start` if it has none; the dictionary is bounded and in order of last use."""
    tracker = trackers.pop(llm, start)
    trackers[llm] = tracker
    if len(trackers) > MAX_LLMS:
        del trackers[next(iter(trackers))]
    return tracker


def _as_prior() -> Tracker:
    prior = wide_prior()
    return Tracker.starting(prior.mu, prior.sigma, _PRIOR_WEIGHT)


@dataclass
class History:
    """A predictor that uses the LLM only: a log-t of its past lengths, recent ones with more weight.

    prediction = LogT(location, scale, cap) of the LLM's tracker, which starts as the pooled one with the weight of five
    observations; the pooled one starts as the wide prior. An unknown LLM has the pooled history.
    """

    pooled: Tracker = field(default_factory=_as_prior)
    by_llm: dict[str, Tracker] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"History({self.pooled.seen} lengths, {len(self.by_llm)} LLMs)"

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> LogTPredictions:
        """Return one prediction for each input, in order."""
        asked = as_inputs(inputs, llms)
        known = [self.by_llm.get(each.llm, self.pooled) for each in asked]
        caps = np.array([each.cap for each in asked], np.float64)
        return LogTPredictions.of([each.location for each in known], [each.scale for each in known], caps)

    def prediction(self, llm: str, cap: int) -> LogT:
        """Return one prediction, as `predict` does, in a tenth of the time: for the host's thread."""
        known = self.by_llm.get(llm, self.pooled)
        return LogT(known.location, known.scale, cap)

    def observe(self, llm: str, length: int, *, censored: bool = False) -> None:
        """Observe one answer: its length or, censored, its tokens so far. Observe each answer once."""
        y = math.log(max(1, length))
        tracker = self.by_llm.get(llm) or Tracker.starting(self.pooled.location, self.pooled.scale, _PRIOR_WEIGHT)
        remember(self.by_llm, llm, tracker).observe(y, censored=censored)
        self.pooled.observe(y, censored=censored)

    def state(self) -> bytes:
        """Return what it has learned, as JSON. Another thread may call it: a length that arrives meanwhile may lack."""
        by_llm = {llm: asdict(tracker) for llm, tracker in list(self.by_llm.items())}
        return json.dumps({"format": FORMAT, "pooled": asdict(self.pooled), "llms": by_llm}).encode()

    def restore(self, state: bytes, source: str = "history") -> None:
        """Continue from a saved state; InputError, and no change, if it is not one."""
        try:
            saved = json.loads(state)
            if int(saved["format"]) != FORMAT:
                raise ValueError(f"format {saved['format']}")
            pooled = Tracker.of_state(saved["pooled"])
            by_llm = {str(llm): Tracker.of_state(each) for llm, each in saved["llms"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError("is not a saved history", source=source, hint="delete it to start afresh") from error
        self.pooled, self.by_llm = pooled, by_llm
