"""The requests of a simulation, shared by its engines: their records, prefix hashes, and predictions as job columns."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import wide_prior
from lengthwise.policies import Job, JobColumns
from lengthwise.policies.admission import PREDICTED_LENGTHS, predicted_lengths
from lengthwise.simulator.fleet import EngineSpec
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.workloads import Workload

Rows = NDArray[np.integer]
Table = NDArray[np.float64]
"""[column of JobColumns, request], so that columns of several requests are taken at once."""

_MAX_TOKENS = 1 << 30  # of one request: counts are 32 bits wide
_NAMES: Final = [field.name for field in fields(JobColumns)]
_PREDICTED: Final = ("expected", "tail", "mu", "sigma", "cap", "initial_expected")
_GENERATED: Final = _NAMES.index("generated")

REQUEST: Final = np.dtype(
    [
        ("arrival", "f8"),  # at its engine
        ("started", "f8"),  # NaN until then, as the next two
        ("first_token", "f8"),
        ("finish", "f8"),
        ("prompt", "i4"),  # tokens, as the next two
        ("output", "i4"),  # true length; only the engine reads it
        ("generated", "i4"),  # current while it waits and once it has finished
        ("priority", "i4"),
        ("preemptions", "i4"),
        ("recomputed", "i4"),  # tokens computed again after preemptions
        ("initial_cached", "i4"),  # tokens in the prefix cache when it was first admitted
        ("transferred_kv_tokens", "i4"),  # tokens whose KV another engine has sent; 0 after admission
        ("missing_kv_tokens", "i4"),  # leading ones among them, not sent because they were cached here
    ]
)
"""One request: what an engine knows of it, and when and how it was served."""

Records = np.recarray[Any, Any]
"""An array of such records."""


@dataclass(frozen=True)
class JobTable:
    """All requests as policies see them. With late predictions, `late` holds until `delay_s` after a request."""

    predicted: Table
    late: Table | None = None
    delay_s: float = 0.0

    @classmethod
    def of(
        cls, workload: Workload, predictions: RequestPredictions, *, delay_s: float = 0.0, generated: int = 0
    ) -> JobTable:
        """Join the columns of workload and predictions. `generated`: answer tokens that already exist."""
        predicted = _table(workload, predictions)
        predicted[_GENERATED] = generated
        if delay_s == 0.0:
            return cls(predicted)
        unknown = np.full(len(predictions), np.nan)
        return cls(predicted, _table(workload, replace(predictions, mu=unknown, sigma=unknown)), delay_s)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables by stage: before a late prediction, and with it."""
        return (self.predicted,) if self.late is None else (self.late, self.predicted)

    @property
    def stages(self) -> tuple[JobColumns, ...]:
        """The columns of jobs by stage: before a late prediction, and with it."""
        return tuple(JobColumns(*table) for table in self.tables)

    def set_prediction(self, job: Job, row: int, *, stage: int) -> None:
        """Set a job's prediction to that of a request at a stage (0: first, -1: last)."""
        table = self.tables[stage]
        job.set_prediction(**{name: float(table[_NAMES.index(name), row]) for name in _PREDICTED})

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


@dataclass(frozen=True, eq=False)
class Traffic:
    """The requests of a workload in the layout of engines, which write to `requests`."""

    requests: Records
    jobs: JobTable
    hash_offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    predicted_length: NDArray[np.int32]
    workload: Workload
    predictions: RequestPredictions

    @classmethod
    def of(
        cls,
        workload: Workload,
        predictions: RequestPredictions,
        *,
        prediction_delay_s: float = 0.0,
        quantile: float | None = None,
        generated: int = 0,
    ) -> Traffic:
        """Lay out a workload. `quantile`: of predicted lengths for admission, None where no engine uses it.

        `generated`: answer tokens that another engine has already generated.
        """
        n = len(workload)
        _check_sizes(workload)
        jobs = JobTable.of(workload, predictions, delay_s=prediction_delay_s, generated=generated)
        requests = np.zeros(n, REQUEST)
        requests["arrival"] = workload.arrival_s
        for time in ("started", "first_token", "finish"):
            requests[time] = np.nan
        requests["prompt"] = workload.input_tokens
        requests["output"] = workload.output_tokens
        requests["generated"] = generated
        requests["priority"] = workload.priority
        known, has_blocks = jobs.stages[-1], workload.has_blocks
        return cls(
            requests=cast("Records", requests),
            jobs=jobs,
            hash_offsets=workload.block_offsets if has_blocks else np.zeros(n + 1, np.int64),
            hashes=workload.block_values if has_blocks else np.zeros(0, np.uint64),
            predicted_length=np.zeros((0, PREDICTED_LENGTHS), np.int32)
            if quantile is None
            else predicted_lengths(known.mu, known.sigma, known.cap, quantile),
            workload=workload,
            predictions=predictions,
        )

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return int((self.requests["prompt"] + self.requests["output"]).max(initial=1))

    def job(self, row: int) -> Job:
        """Return one request as a job; where predictions are late, without its prediction."""
        record = self.requests[row]
        job = Job(
            id=str(row),
            arrival=float(self.workload.arrival_s[row]),
            prompt_tokens=int(record["prompt"]),
            priority=int(record["priority"]),
            generated=int(record["generated"]),
            blocks=self.workload.blocks(row).tolist() if self.workload.has_blocks else (),
            **{name: values[row] for name, values in self._attributes.items()},
        )
        if self.jobs.late is None:
            job.prediction = self.predictions[row]
        self.jobs.set_prediction(job, row, stage=0)
        return job

    @cached_property
    def _attributes(self) -> dict[str, list[Any]]:
        """Columns that are not numbers or may be missing."""
        return {name: self.workload.table[name].to_pylist() for name in ("max_tokens", "llm", "tenant", "session")}


def block_ratio(spec: EngineSpec, workload: Workload) -> tuple[int, int]:
    """Engine blocks per hashed block of the workload, or 0, and hashed blocks per engine block, or 0."""
    hashed, allocated = workload.block_size, spec.block_size
    if hashed is None or not spec.prefix_caching:
        return 1, 1
    if hashed % allocated and allocated % hashed:
        raise InputError(
            f"blocks of {allocated} tokens, but the workload's prefixes are hashed in blocks of {hashed}",
            source=spec.name,
            field="block_size",
            hint=f"take a divisor or a multiple of {hashed}, or switch prefix caching off",
        )
    return hashed // allocated, allocated // hashed


def _check_sizes(workload: Workload) -> None:
    total = workload.input_tokens + workload.output_tokens
    if total.max(initial=0) > _MAX_TOKENS:
        row = int(total.argmax())
        raise InputError(
            f"a request of {total[row]:,} tokens",
            source=workload.name,
            row=row + 1,
            hint=f"the simulator counts up to {_MAX_TOKENS:,}",
        )
