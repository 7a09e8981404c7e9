"""What the engines of a simulation share: the requests as records, their prefixes, and what is predicted about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU
from lengthwise.policies import Job, JobColumns
from lengthwise.simulator.jobs import Jobs
from lengthwise.simulator.kernel.records import REQUEST, Records

if TYPE_CHECKING:
    from lengthwise.simulator.predictions import RequestPredictions
    from lengthwise.workloads import Workload

_RUNGS = 5
_MOST_TOKENS = 1 << 30  # of one request: counts are 32 bits wide


@dataclass(frozen=True, eq=False)
class Traffic:
    """The requests of a workload, ready for engines; `requests` is what they write to."""

    requests: Records
    jobs: Jobs
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
        """Lay out a workload. `quantile` is the level at which engines predict lengths when they admit, if they do.

        `generated`: tokens of each answer that were made elsewhere before.
        """
        n = len(workload)
        _check_sizes(workload)
        jobs = Jobs.of(workload, predictions, delay_s=prediction_delay_s, generated=generated)
        requests = np.zeros(n, REQUEST)
        requests["arrival"] = workload.arrival_s
        for moment in ("started", "first_token", "finish"):
            requests[moment] = np.nan
        requests["prompt"] = workload.input_tokens
        requests["output"] = workload.output_tokens
        requests["generated"] = generated
        requests["priority"] = workload.priority
        requests["place"] = -1
        known = workload.has_blocks
        return cls(
            requests=cast("Records", requests),
            jobs=jobs,
            hash_offsets=workload.block_offsets if known else np.zeros(n + 1, np.int64),
            hashes=workload.block_values if known else np.zeros(0, np.uint64),
            predicted_length=np.zeros((0, _RUNGS), np.int32)
            if quantile is None
            else _ladder(jobs.stages[-1], quantile),
            workload=workload,
            predictions=predictions,
        )

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return int((self.requests["prompt"] + self.requests["output"]).max(initial=1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What engines work on, by the names they know it under."""
        return {
            "requests": self.requests,
            "predicted": self.predicted_length,
            "hash_offsets": self.hash_offsets,
            "hashes": self.hashes,
        }

    def job(self, row: int) -> Job:
        """One request as a job, for what is asked about one at a time; its prediction is still to come where it is late."""
        given = self.requests[row]
        job = Job(
            id=str(row),
            arrival=float(given["arrival"]),
            prompt_tokens=int(given["prompt"]),
            priority=int(given["priority"]),
            cached_tokens=int(given["cached"]),
            generated=int(given["generated"]),
            blocks=self.workload.blocks(row).tolist() if self.workload.has_blocks else (),
            **{name: values[row] for name, values in self._words.items()},
        )
        if self.jobs.late is None:
            job.prediction = self.predictions[row]
        self.jobs.tell(job, row, stage=0)
        return job

    @cached_property
    def _words(self) -> dict[str, list[Any]]:
        """What of a job is no number, or may be missing."""
        return {name: self.workload.table[name].to_pylist() for name in ("max_tokens", "llm", "tenant", "session")}


def _ladder(jobs: JobColumns, quantile: float) -> NDArray[np.int32]:
    """The length at a level of prediction, then at ever higher ones for who outlives it, and the cap.

    Each rung leaves half of the tail that the one below left: about what is predicted given that it was outlived.
    """
    levels = 1.0 - (1.0 - quantile) * 0.5 ** np.arange(_RUNGS - 1)
    lengths = np.exp(jobs.mu[:, None] + jobs.sigma[:, None] * stdtrit(TIE_NU, levels))
    cap = jobs.cap[:, None]
    rungs = np.concatenate([np.clip(np.ceil(lengths), 1, cap), cap], axis=1)
    return np.asarray(np.minimum(rungs, _MOST_TOKENS), np.int32)


def _check_sizes(workload: Workload) -> None:
    total = workload.input_tokens + workload.output_tokens
    if total.max(initial=0) > _MOST_TOKENS:
        row = int(total.argmax())
        raise InputError(
            f"a request of {total[row]:,} tokens",
            source=workload.name,
            row=row + 1,
            hint=f"the simulator counts up to {_MOST_TOKENS:,}",
        )
