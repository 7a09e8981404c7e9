"""What a race sends to both gateways: requests with forced lengths, their arrivals, and the lengths declared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.client.load import LoadPlan, request_of
from lengthwise.errors import InputError
from lengthwise.lengths import wide_prior
from lengthwise.predictors.service import NO_PREDICTOR, QUICK
from lengthwise.simulator.cluster import measure_capacity
from lengthwise.simulator.fleet import Fleet
from lengthwise.workloads import Workload
from lengthwise.workloads.datasets import castillo_workload, load_castillo

TRUE: Final = "true lengths"
RECORDED: Final = "recorded"
MIN_LOAD: Final = 0.3
MAX_LOAD: Final = 1.6
DEFAULT_LOAD: Final = 1.2

_LLM: Final = "llama-3.1-8b"
_REQUESTS: Final = 2000  # then they begin again
_MAX_TOKENS: Final = 1024  # of an answer, so that a race does not end with half a minute for a single one
_BACKLOG: Final = 6  # requests per slot for a capacity within a few percent, in a fraction of a second of CPU time


@dataclass(frozen=True, eq=False)
class RaceTraffic:
    """Requests in the order of their arrival, and the fleet that serves them on each side."""

    origin: str
    """Where they come from, in words."""
    workload: Workload
    fleet: Fleet
    capacity_per_s: float
    """Requests per second that the fleet serves under backlog."""
    load: float
    """At the start, over the capacity."""
    plans: Mapping[str, LoadPlan]
    """How requests are sent, by the source of their predicted lengths; the first is used at the start."""
    model: str
    drawn: bool
    """Whether arrivals are drawn, not recorded."""

    @classmethod
    def of_castillo(cls, fleet: Fleet, load: float | None, seed: int) -> RaceTraffic:
        """Return CASTILLO's test prompts with the answer lengths of Llama-3.1-8B, in a Poisson process."""
        samples = load_castillo(split="test")
        drawn = castillo_workload(samples, _LLM, requests=_REQUESTS, rate=1.0, seed=seed, max_tokens=_MAX_TOKENS)
        # The gateway predicts by itself; only what is not its prediction is declared.
        extras: dict[str, list[dict[str, Any]]] = {
            QUICK: [{}] * len(drawn),
            TRUE: [{}] * len(drawn),
            NO_PREDICTOR: [_unknown()] * len(drawn),
        }
        name = str(drawn.table["llm"][0].as_py())
        return cls._of(f"{drawn.name}, seed {seed}", drawn, fleet, load or DEFAULT_LOAD, extras, name, drawn=True)

    @classmethod
    def of_log(cls, folder: Path, fleet: Fleet | None, slots: int | None, load: float | None) -> RaceTraffic:
        """Return the requests of a traffic log; without a fleet, the engines that served it, fitted to the log."""
        from lengthwise.simulator.observed import ObservedTraffic
        from lengthwise.simulator.replay import fit_engine
        from lengthwise.traffic.reader import read_traffic

        logged = read_traffic(folder)
        replay = ObservedTraffic.of(logged, str(folder)).replay
        if fleet is None:
            served = {row.engine for row in logged.rows if row.engine is not None}
            fleet = Fleet((fit_engine(replay, logged.engines, max_num_seqs=slots).spec,) * max(1, len(served)))
        fits = fleet.engines[0].can_hold(replay.workload.input_tokens, replay.workload.output_tokens)
        rows = np.flatnonzero(fits)
        if not len(rows):
            raise InputError("no request fits into an engine", source=folder, hint="give a larger one with --fleet")
        workload = replay.workload.take(rows)
        limits = pc.max_element_wise(workload.table["max_tokens"], workload.table["output_tokens"], skip_nulls=False)
        workload = workload.replace(max_tokens=limits)
        recorded = [
            _declared(float(mu), float(sigma))
            for mu, sigma in zip(replay.predictions.mu[rows], replay.predictions.sigma[rows], strict=True)
        ]
        extras: dict[str, list[dict[str, Any]]] = {
            RECORDED: recorded,
            TRUE: [{}] * len(rows),
            NO_PREDICTOR: [_unknown()] * len(rows),
        }
        names = Counter(text for text in workload.table["llm"].to_pylist() if text)
        model = names.most_common(1)[0][0] if names else "your-model"
        return cls._of(str(folder), workload, fleet, load, extras, model)

    @classmethod
    def _of(
        cls,
        origin: str,
        workload: Workload,
        fleet: Fleet,
        load: float | None,
        extras: Mapping[str, Sequence[dict[str, Any]]],
        model: str,
        *,
        drawn: bool = False,
    ) -> RaceTraffic:
        capacity = _capacity(workload, fleet)
        own = workload.rate / capacity if workload.has_arrivals else 1.0
        load = own if load is None else load
        lengths = workload.output_tokens.tolist()
        plans = {
            name: LoadPlan(
                "http://127.0.0.1",
                free=True,
                hints="oracle" if name == TRUE else "none",
                extras=[
                    {"vllm_xargs": {**given, "simulated_tokens": tokens}}
                    for given, tokens in zip(each, lengths, strict=True)
                ],
            )
            for name, each in extras.items()
        }
        clamped = min(MAX_LOAD, max(MIN_LOAD, load))
        return cls(origin, workload, fleet, capacity, clamped, plans, model, drawn)

    def __len__(self) -> int:
        return len(self.workload)

    @cached_property
    def gaps(self) -> NDArray[np.float64]:
        """Time to each arrival from the one before, in mean gaps."""
        gaps = np.diff(self.workload.arrival_s, prepend=0.0)
        mean = float(gaps.mean())
        return gaps / mean if mean > 0 else np.ones(len(gaps))

    @cached_property
    def thirds(self) -> NDArray[np.int64]:
        """The third of each answer by its length: 0 is the shortest."""
        lengths = self.workload.output_tokens
        return np.searchsorted(np.quantile(lengths, (1 / 3, 2 / 3)), lengths, side="left")

    @cached_property
    def widest(self) -> int:
        """Tokens of the longest bar: 99 % of answers are not longer."""
        return max(1, math.ceil(float(np.quantile(self.workload.output_tokens, 0.99))))

    def request(self, row: int, predictor: str) -> tuple[str, bytes]:
        """Return path and body of a request."""
        return request_of(self.workload, row, self.model, self.plans[predictor])


def _unknown() -> dict[str, Any]:
    """Return what a request without prediction declares: the wide prior, the same for all."""
    prior = wide_prior()
    return {"length_mu": prior.mu, "length_sigma": prior.sigma}


def _declared(mu: float, sigma: float) -> dict[str, Any]:
    """Return what a request with a logged prediction declares; sigma is 0 where its client had stated the length."""
    if math.isnan(mu) or math.isnan(sigma):
        return _unknown()
    return {"length_mu": mu, "length_sigma": sigma} if sigma > 0 else {"expected_tokens": math.exp(mu)}


def _capacity(workload: Workload, fleet: Fleet) -> float:
    """Return the requests per second of a fleet under backlog, by the readable engine: compiling it takes longer."""
    rates = {}
    for spec, count in Counter(fleet.engines).items():
        backlog = workload.head(_BACKLOG * min(spec.max_num_seqs, 64))
        rates[spec] = count * measure_capacity(backlog, Fleet((spec,)), accelerate=False).requests_per_s
    return sum(rates.values())
