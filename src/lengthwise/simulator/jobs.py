"""The requests of a workload as policies see them: columns of numbers, with a prediction or still without."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.lengths import wide_prior
from lengthwise.policies import JobColumns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.policies import Job
    from lengthwise.simulator.predictions import RequestPredictions
    from lengthwise.workloads import Workload

    Rows = NDArray[np.integer]
    Table = NDArray[np.float64]
    """[column of JobColumns, request]: so that columns are taken of some requests at once."""

_NAMES: Final = [field.name for field in fields(JobColumns)]
_PREDICTED: Final = ("expected", "tail", "mu", "sigma", "cap", "initial_expected")
_ARRIVAL, _GENERATED, _CACHED, _ROUND, _PREEMPTIONS = (
    _NAMES.index(name) for name in ("arrival", "generated", "cached_tokens", "in_round", "preemptions")
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far some requests have come, by their rows: tokens generated, tokens cached, rounds, preemptions."""

    rows: Rows
    generated: Rows
    cached: Rows
    in_round: Rows
    preemptions: Rows

    def of(self, table: Table) -> Table:
        """These requests out of the table of all."""
        some = table[:, self.rows]
        some[_GENERATED], some[_CACHED], some[_ROUND] = self.generated, self.cached, self.in_round
        some[_PREEMPTIONS] = self.preemptions
        return some


@dataclass(frozen=True)
class Jobs:
    """All requests. `late` has them as they are until their predictions come, where those come `delay_s` later."""

    predicted: Table
    late: Table | None = None
    delay_s: float = 0.0

    @classmethod
    def of(
        cls, workload: Workload, predictions: RequestPredictions, *, delay_s: float = 0.0, generated: int = 0
    ) -> Jobs:
        """Put the workload's columns beside the predictions'. `generated`: tokens of each answer that are there already."""
        predicted = _table(workload, predictions)
        predicted[_GENERATED] = generated
        if delay_s == 0.0:
            return cls(predicted)
        unknown = np.full(len(predictions), np.nan)
        return cls(predicted, _table(workload, replace(predictions, mu=unknown, sigma=unknown)), delay_s)

    @property
    def tables(self) -> tuple[Table, ...]:
        """What is predicted first, and what later."""
        return (self.predicted,) if self.late is None else (self.late, self.predicted)

    @property
    def stages(self) -> tuple[JobColumns, ...]:
        """The same, as policies take it: all requests before they run."""
        return tuple(JobColumns(*table) for table in self.tables)

    def at(self, who: Progress, now: float) -> JobColumns:
        """Some of them at a moment: what is predicted by then, and how far they have come."""
        some = who.of(self.predicted)
        if self.late is not None:
            early = now < some[_ARRIVAL] + self.delay_s
            some = np.where(early, who.of(self.late), some)
        return JobColumns(*some)

    def tell(self, job: Job, row: int, *, stage: int) -> None:
        """Let a job say what is predicted of a request at a stage."""
        table = self.tables[stage]
        job.told(**{name: float(table[_NAMES.index(name), row]) for name in _PREDICTED})

    def __len__(self) -> int:
        return int(self.predicted.shape[1])


def _table(workload: Workload, predictions: RequestPredictions) -> Table:
    expected, tail = predictions.expected_and_tail()
    prior, unknown = wide_prior(), np.isnan(predictions.mu)
    columns = JobColumns.filled(
        arrival=workload.arrival_s,
        expected=expected,
        tail=tail,
        mu=np.where(unknown, prior.mu, predictions.mu),
        sigma=np.where(unknown, prior.sigma, predictions.sigma),
        cap=predictions.cap,
        prompt_tokens=workload.input_tokens,
        priority=workload.priority,
    )
    return np.stack([getattr(columns, name) for name in _NAMES])
