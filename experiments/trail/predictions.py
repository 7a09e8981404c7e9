"""What a scheduler may predict of what is still to come, and how far off that is.

From the prompt alone; from the prompt and the age; by a probe of the LLM's hidden states; in truth. The probe is a
STAND-IN: it knows the true remaining length and disturbs it, by as much as makes its error the stated one. It shows
what refined predictions of that error would do to scheduling, not that a probe has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.optimize import brentq

from lengthwise.policies import Job, JobColumns
from lengthwise.policies.residual import expected_remaining
from lengthwise.policies.srpt import Srpt
from lengthwise.workloads.arrivals import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.policies.base import Numbers
    from lengthwise.simulator import RequestPredictions
    from lengthwise.workloads import Workload

    Floats = NDArray[np.float64]

__all__ = ["EVERY", "Probe", "Probed", "mean_error", "point", "probe_of_error"]

EVERY: Final = 16
"""Tokens between two readings of the probe; in between its last word is counted down."""
REMEMBERS: Final = 64
"""Tokens over which the probe's errors fade: smoothing makes neighbours alike."""


def point(predictions: RequestPredictions) -> RequestPredictions:
    """The same means, predicted with certainty: what is left is the prediction minus what was generated."""
    return replace(predictions, mu=np.log(predictions.expected_and_tail()[0]), sigma=np.zeros(len(predictions)))


@dataclass(frozen=True, eq=False)
class Probe:
    """The stand-in: of each request, by arrival, its true length and the log of each reading's error."""

    arrival: Floats
    length: Floats
    log_error: Floats

    def remaining(self, jobs: JobColumns) -> Floats:
        """What it says is still to come, at least a token, of jobs that have begun."""
        row = np.searchsorted(self.arrival, jobs.arrival)
        age = np.maximum(jobs.generated, 1.0)
        reading = ((age - 1) // EVERY).astype(np.intp)
        at = 1.0 + EVERY * reading
        said = (self.length[row] - at) * np.exp(self.log_error[row, reading])
        return np.asarray(np.maximum(np.minimum(said, jobs.cap - at) - (age - at), 1.0))


@dataclass(frozen=True)
class Probed(Srpt):
    """`srpt`, whose prediction of who has begun is the probe's; hosts ask again as often as it is read."""

    kind = "srpt"
    preempt_check_interval = EVERY

    probe: Probe = field(kw_only=True)

    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """What the probe says; before the first token, what the prompt says."""
        if isinstance(jobs, Job):
            return float(self.rank(JobColumns.of([jobs]))[0])
        return np.where(jobs.generated > 0, self.probe.remaining(jobs), jobs.expected)


def probe_of_error(workload: Workload, error: float, *, cap: int, seed: int) -> Probe:
    """A stand-in whose mean absolute error over all tokens of these requests is the given one."""
    readings = -(-cap // EVERY)
    fresh = generator(seed, "probe").standard_normal((len(workload), readings))
    kept = math.exp(-EVERY / REMEMBERS)
    noise = fresh.copy()
    for reading in range(1, readings):
        noise[:, reading] = kept * noise[:, reading - 1] + math.sqrt(1 - kept**2) * fresh[:, reading]
    arrival, length = workload.arrival_s, workload.output_tokens.astype(np.float64)
    ages = _ages(workload, cap)

    def off(scale: float) -> float:
        return _mean_off(Probe(arrival, length, scale * noise).remaining(ages), ages, workload) - error

    return Probe(arrival, length, float(brentq(off, 1e-3, 5.0, xtol=1e-3)) * noise)


def mean_error(workload: Workload, predictions: RequestPredictions, cap: int) -> float:
    """Mean absolute error of the expected remaining length, over all tokens of all requests but the last ones."""
    ages = _ages(workload, cap, predictions)
    return _mean_off(np.asarray(expected_remaining(ages)), ages, workload)


def _ages(workload: Workload, cap: int, predictions: RequestPredictions | None = None) -> JobColumns:
    """Every request at every age from its first token on, while there is more to come."""
    rows = np.repeat(np.arange(len(workload)), workload.output_tokens - 1)
    begins = np.cumsum(workload.output_tokens - 1) - (workload.output_tokens - 1)
    ages = np.arange(len(rows)) - begins[rows] + 1
    about: dict[str, Floats] = {}
    if predictions is not None:
        about = {"mu": predictions.mu[rows], "sigma": predictions.sigma[rows]}
    expected = np.ones(len(rows)) if predictions is None else predictions.expected_and_tail()[0][rows]
    return JobColumns.filled(arrival=workload.arrival_s[rows], expected=expected, cap=cap, generated=ages, **about)


def _mean_off(said: Floats, ages: JobColumns, workload: Workload) -> float:
    rows = np.searchsorted(workload.arrival_s, ages.arrival)
    return float(np.abs(said - (workload.output_tokens[rows] - ages.generated)).mean())
