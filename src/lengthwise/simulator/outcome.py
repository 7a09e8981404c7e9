"""What came of a simulation: one row per request, in the workload's order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lengthwise.simulator.metrics import Summary, summarise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.workloads import Workload


class Ledger:
    """The notes engines take while a simulation runs; NaN is "not yet"."""

    def __init__(self, requests: int) -> None:
        self.engine = [-1] * requests
        self.started = [math.nan] * requests
        self.first_token = [math.nan] * requests
        self.finish = [math.nan] * requests
        self.preemptions = [0] * requests
        self.admissions: list[tuple[int, int]] = []  # engine, row
        self.refused: list[int] = []
        self.settled = 0

    def arrived(self, row: int, engine: int) -> None:
        """A request was sent to an engine."""
        self.engine[row] = engine

    def admit(self, row: int, engine: int, now: float) -> None:
        """A request began to run, for the first time or again after a preemption."""
        self.admissions.append((engine, row))
        if math.isnan(self.started[row]):
            self.started[row] = now

    def complete(self, row: int, now: float) -> None:
        """A request got its last token."""
        self.finish[row] = now
        self.settled += 1

    def refuse(self, row: int) -> None:
        """A request can never fit where it was sent."""
        self.refused.append(row)
        self.settled += 1


@dataclass(frozen=True, eq=False)
class Outcome:
    """Columns of a drained simulation. Times in seconds of virtual time, NaN where a request was refused."""

    policy: str
    arrival: NDArray[np.float64]
    started: NDArray[np.float64]
    first_token: NDArray[np.float64]
    finish: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    preemptions: NDArray[np.int64]
    engine: NDArray[np.int64]
    admissions: tuple[tuple[int, int], ...]
    """(engine, row) as each was admitted, again after a preemption; in order within an engine."""

    @classmethod
    def of(cls, workload: Workload, policy: str, ledger: Ledger) -> Outcome:
        """Close the ledger."""
        return cls(
            policy=policy,
            arrival=workload.arrival_s,
            started=np.array(ledger.started),
            first_token=np.array(ledger.first_token),
            finish=np.array(ledger.finish),
            input_tokens=workload.input_tokens,
            output_tokens=workload.output_tokens,
            preemptions=np.array(ledger.preemptions, np.int64),
            engine=np.array(ledger.engine, np.int64),
            admissions=tuple(ledger.admissions),
        )

    def __len__(self) -> int:
        return len(self.arrival)

    def admitted(self, engine: int = 0) -> list[int]:
        """The rows an engine admitted, in order, each once."""
        return list(dict.fromkeys(row for at, row in self.admissions if at == engine))

    @cached_property
    def summary(self) -> Summary:
        """Latency, throughput and what went wrong, in a few numbers."""
        return summarise(
            sent=self.arrival,
            first_token=self.first_token,
            finish=self.finish,
            output_tokens=self.output_tokens,
            started=self.started,
            preemptions=int(self.preemptions.sum()),
        )

    def to_table(self) -> pa.Table:
        """One row per request; seconds in names that end in _s, null where a request was refused."""
        seconds = ("arrival", "started", "first_token", "finish")
        columns = {"policy": pa.repeat(pa.scalar(self.policy), len(self))}
        for name in ("engine", *seconds, "input_tokens", "output_tokens", "preemptions"):
            column = pa.array(getattr(self, name), from_pandas=True)  # NaN becomes null
            columns[f"{name}_s" if name in seconds else name] = column
        return pa.table(columns)
