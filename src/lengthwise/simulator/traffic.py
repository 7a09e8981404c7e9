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
_PREDICTED: Final = slice(_NAMES.index("expected"), _NAMES.index("initial_expected") + 1)  # adjacent columns
_LIMITS: Final = slice(_NAMES.index("deadline"), _NAMES.index("per_token_limit_s") + 1)
_GENERATED, _ARRIVAL, _DEADLINE = (_NAMES.index(name) for name in ("generated", "arrival", "deadline"))

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
    llms: int = 1
    """How many LLMs the requests are for."""

    @classmethod
    def of(
        cls, workload: Workload, predictions: RequestPredictions, *, delay_s: float = 0.0, generated: int = 0
    ) -> JobTable:
        """Join the columns of workload and predictions. `generated`: answer tokens that already exist."""
        predicted, late = _table(workload, predictions), None
        predicted[_GENERATED] = generated
        if delay_s != 0.0:
            unknown = np.full(len(predictions), np.nan)
            late = _table(workload, replace(predictions, mu=unknown, sigma=unknown))
        return cls(predicted, late, delay_s, len(workload.table["llm"].unique()))

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
        expected, tail, mu, sigma, cap, initial = self.tables[stage][_PREDICTED, row].tolist()
        job.set_prediction(mu=mu, sigma=sigma, cap=cap, expected=expected, tail=tail, initial_expected=initial)

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
        deadline=workload.arrival_s + workload.limit("e2e_limit_s"),
        ttft_limit_s=workload.limit("ttft_limit_s"),
        per_token_limit_s=workload.limit("per_token_limit_s"),
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
    arrival_s: NDArray[np.float64]
    """At the router: those of the workload, but for turns that wait for an answer, once they are released."""

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
            arrival_s=workload.arrival_s.copy(),
        )

    def release(self, row: int, answered_s: float) -> float:
        """Set and return the arrival of a turn whose session got the answer to the turn before."""
        at = max(self.workload.arrival_s.item(row), answered_s + self.workload.think_s.item(row))
        self.arrival_s[row] = self.requests["arrival"][row] = at
        for table in self.jobs.tables:
            table[_DEADLINE, row] += at - table[_ARRIVAL, row]
            table[_ARRIVAL, row] = at
        return at

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return int((self.requests["prompt"] + self.requests["output"]).max(initial=1))

    def job(self, row: int) -> Job:
        """Return one request as a job; where predictions are late, without its prediction."""
        prompt, priority, generated = self._numbers
        max_tokens, llm, tenant, session, template, request_class = self._optional
        deadline, ttft_limit_s, per_token_limit_s = self.jobs.predicted[_LIMITS, row].tolist()
        job = Job(
            id=str(row),
            arrival=self.arrival_s.item(row),
            prompt_tokens=prompt.item(row),
            max_tokens=max_tokens[row],
            priority=priority.item(row),
            deadline=deadline,
            ttft_limit_s=ttft_limit_s,
            per_token_limit_s=per_token_limit_s,
            generated=generated.item(row),
            blocks=self.workload.blocks(row) if self.workload.has_blocks else (),
            llm=llm[row],
            tenant=tenant[row],
            session=session[row],
            template=template[row],
            request_class=request_class[row],
        )
        if self.jobs.late is None:
            job.prediction = self.predictions[row]
        self.jobs.set_prediction(job, row, stage=0)
        return job

    @cached_property
    def _numbers(self) -> list[NDArray[np.int32]]:
        """Fields of `requests` that a job has: prompt, priority, generated."""
        return [self.requests[name] for name in ("prompt", "priority", "generated")]

    @cached_property
    def _optional(self) -> list[list[Any]]:
        """Columns that are not numbers or may be missing."""
        names = ("max_tokens", "llm", "tenant", "session", "template", "request_class")
        return [self.workload.table[name].to_pylist() for name in names]


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
