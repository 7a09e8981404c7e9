"""The outcome of a simulation: one row per request, in the workload's order, and one record per engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from html import escape
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.routers import Costs
from lengthwise.simulator.metrics import TRUTH, LatencyLimits, Summary, summarise
from lengthwise.simulator.traffic import Records
from lengthwise.traffic.rows import LIMITS, latencies, row_schema
from lengthwise.workloads import Workload

TRACE_COLUMNS: Final = ("candidates", "terms", "costs")
"""The columns of a `RoutingTrace`."""


MAX_SAMPLES: Final = 1024  # at most, of one engine
SAMPLE_EVERY_S: Final = 0.25  # at first

SAMPLE: Final = np.dtype([("time", "f8"), ("waiting", "i4"), ("running", "i4"), ("blocks", "i4")])
"""How full an engine was at one moment."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """How full an engine was over time. KV use is the share of allocated blocks."""

    time: NDArray[np.float64]
    waiting: NDArray[np.int32]
    running: NDArray[np.int32]
    kv_use: NDArray[np.float64]

    @classmethod
    def of(cls, samples: NDArray[np.void], blocks: int) -> Timeline:
        """Convert the samples of an engine with `blocks` KV blocks."""
        waiting, running = samples["waiting"].copy(), samples["running"].copy()
        return cls(samples["time"].copy(), waiting, running, samples["blocks"] / blocks)

    def then(self, later: Timeline) -> Timeline:
        """Append a later timeline."""
        columns = ((getattr(self, field.name), getattr(later, field.name)) for field in fields(self))
        return Timeline(*map(np.concatenate, columns))


@dataclass(frozen=True, eq=False)
class EngineOutcome:
    """Totals of one engine. `kv_mean` is over the time in which it was busy."""

    steps: int
    busy_s: float
    kv_mean: float
    kv_peak: float
    admissions: NDArray[np.int32]
    """Rows in order of admission; a preempted request appears again."""
    timeline: Timeline

    def then(self, later: EngineOutcome) -> EngineOutcome:
        """Add the totals of the same engine after a restart."""
        busy_s = self.busy_s + later.busy_s
        kv_seconds = self.kv_mean * self.busy_s + later.kv_mean * later.busy_s
        return EngineOutcome(
            steps=self.steps + later.steps,
            busy_s=busy_s,
            kv_mean=kv_seconds / busy_s if busy_s else 0.0,
            kv_peak=max(self.kv_peak, later.kv_peak),
            admissions=np.concatenate([self.admissions, later.admissions]),
            timeline=self.timeline.then(later.timeline),
        )


Role = Literal["prefill", "decode"]


class Move(NamedTuple):
    """An engine joined a pool."""

    at_s: float
    engine: int
    role: Role


@dataclass(frozen=True, eq=False)
class Handover:
    """Transfers of requests from the engine that computed the prompt to the one that decoded.

    -1 and NaN for a request without a transfer: its answer has one token, or it was refused.
    """

    engine: NDArray[np.int64]
    """Index in the fleet of the engine that decoded the answer."""
    sent_tokens: NDArray[np.int64]
    """KV tokens that were sent; those in the prefix cache of that engine were not."""
    arrived: NDArray[np.float64]
    """When the transfer ended, in seconds of virtual time."""
    started: NDArray[np.float64]
    """When the request was first admitted by that engine."""
    moves: tuple[Move, ...] = ()
    """Engines that changed pools."""

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns as they are written; null for a request without a transfer."""
        return {
            "decode_engine": _engine_names(self.engine),
            "sent_tokens": pa.array(self.sent_tokens),
            "kv_arrived_s": pa.array(self.arrived, from_pandas=True),
            "decode_started_s": pa.array(self.started, from_pandas=True),
        }


@dataclass(frozen=True, eq=False)
class RoutingTrace:
    """The costs that a router compared for each request; None where nothing is known.

    Stored as three columns: `candidates`, engines; `terms`, names separated by commas; `costs`, the terms of the first
    engine, then of the next. A router that does not compare engines records only the chosen one.
    """

    costs: Sequence[Costs | None]

    @classmethod
    def of(cls, costs: Mapping[str, Costs], requests: int) -> Self:
        """Make a trace from costs by job id, which is the number of the request."""
        return cls([costs.get(str(row)) for row in range(requests)])

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns as they are written."""
        engines = [None if costs is None else list(costs) for costs in self.costs]
        names = [None if costs is None else ",".join(next(iter(costs.values()))) for costs in self.costs]
        values = [
            None if costs is None else [value for terms in costs.values() for value in terms.values()]
            for costs in self.costs
        ]
        return {
            "candidates": pa.array(engines, pa.list_(pa.int32())),
            "terms": pa.array(names, pa.string()).dictionary_encode(),
            "costs": pa.array(values, pa.list_(pa.float64())),
        }


def read_costs(row: Mapping[str, Any]) -> dict[str, dict[str, float]] | None:
    """Return the costs of each engine for one request, from its row of a written run; None where nothing is known."""
    if row["candidates"] is None:
        return None
    names = row["terms"].split(",") if row["terms"] else []
    costs = np.reshape(row["costs"], (len(row["candidates"]), len(names)))
    return {
        engine_name(engine): dict(zip(names, terms, strict=True))
        for engine, terms in zip(row["candidates"], costs.tolist(), strict=True)
    }


@dataclass(frozen=True, eq=False, repr=False)
class Outcome:
    """Columns of a drained simulation. Times in seconds of virtual time, NaN where a request was refused."""

    policy: str
    arrival_s: NDArray[np.float64]
    started_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    finished_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]
    """Prompt tokens in the prefix cache at the first admission."""
    preemptions: NDArray[np.int64]
    recomputed_tokens: NDArray[np.int64]
    """Tokens computed again after preemptions; those in the prefix cache do not count."""
    resubmissions: NDArray[np.int64]
    """How often a request was sent again because its engine failed; other columns are those of the last attempt."""
    engine: NDArray[np.int64]
    engines: tuple[EngineOutcome, ...]
    trace: RoutingTrace | None = None
    """The costs that the router compared, if `explain` was set."""
    predictor: str | None = None
    """Source of the predictions; None where neither policy nor router nor admission uses one."""
    accelerated: bool = True
    """Whether the compiled engine ran; False: the readable one, with the same result."""
    ttft_limit_s: NDArray[np.float64] | None = None
    """Limits of single requests, infinite where one has none; None if no request has a limit of any kind."""
    per_token_limit_s: NDArray[np.float64] | None = None
    e2e_limit_s: NDArray[np.float64] | None = None
    request_class: NDArray[np.object_] | None = None
    """The class of each request, None where it has none; None if no request has any."""
    session: NDArray[np.int64] | None = None
    """The number of each request's session, -1 where it has none; None if no request has any."""
    handover: Handover | None = None
    """Set if prefill and decode ran on different engines; `engine` is then the one that computed the prompt."""

    @classmethod
    def of(
        cls,
        workload: Workload,
        policy: str,
        requests: Records,
        engine: NDArray[np.int64],
        engines: Sequence[EngineOutcome],
        *,
        arrival_s: NDArray[np.float64] | None = None,
        resubmissions: NDArray[np.int64] | None = None,
        **known: Any,  # further fields
    ) -> Outcome:
        """Take the columns from the engines' records. `arrival_s`: None where they are those of the workload."""
        return cls(
            policy=policy,
            arrival_s=workload.arrival_s if arrival_s is None else arrival_s,
            started_s=requests["started"].copy(),
            first_token_s=requests["first_token"].copy(),
            finished_s=requests["finish"].copy(),
            input_tokens=workload.input_tokens,
            output_tokens=workload.output_tokens,
            cached_tokens=requests["initial_cached"].astype(np.int64),
            preemptions=requests["preemptions"].astype(np.int64),
            recomputed_tokens=requests["recomputed"].astype(np.int64),
            resubmissions=np.zeros(len(requests), np.int64) if resubmissions is None else resubmissions,
            engine=engine,
            engines=tuple(engines),
            **_limits_and_classes(workload),
            **_sessions(workload),
            **known,
        )

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def true_lengths(self) -> bool:
        """Whether the predictions are the true lengths (`oracle`), which no deployment has."""
        return self.predictor == TRUTH

    @property
    def _title(self) -> str:
        source = f", predictor {self.predictor}" if self.predictor else ""
        return f"{self.policy}{source}{' = TRUE LENGTHS' if self.true_lengths else ''}"

    def __repr__(self) -> str:
        e2e = self.summary.e2e_s
        return f"Outcome({self._title}: {len(self):,} requests, E2E mean {e2e.mean:.3g} s, p99 {e2e.p99:.3g} s)"

    def _repr_html_(self) -> str:
        """Return the summary as a table, for notebooks."""
        rows = "".join(
            f"<tr><td>{label}</td>{''.join(f'<td>{value:.4g}</td>' for value in astuple(spread))}</tr>"
            for label, spread in (
                ("TTFT, s", self.summary.ttft_s),
                ("TPOT, s", self.summary.tpot_s),
                ("E2E, s", self.summary.e2e_s),
                ("E2E per token, s", self.summary.per_token_s),
                ("queueing, s", self.summary.queueing_s),
            )
        )
        names = "".join(f"<th>{field.name}</th>" for field in fields(self.summary.e2e_s))
        counts = f"{len(self):,} requests, {self.summary.refused} refused, {self.summary.preemptions} preemptions"
        return f"<table><caption>{escape(self._title)}: {counts}</caption><tr><th></th>{names}</tr>{rows}</table>"

    def admitted(self, engine: int = 0) -> list[int]:
        """Return the rows that an engine admitted, in order, each once."""
        return list(dict.fromkeys(self.engines[engine].admissions.tolist()))

    @property
    def _times(self) -> dict[str, NDArray[Any]]:
        return {
            "arrival_s": self.arrival_s,
            "first_token_s": self.first_token_s,
            "finished_s": self.finished_s,
            "output_tokens": self.output_tokens,
        }

    @property
    def latencies(self) -> dict[str, NDArray[np.float64]]:
        """The latencies of each request, in order of arrival; NaN for refused ones."""
        return latencies(**self._times)

    @property
    def limits(self) -> dict[str, NDArray[np.float64]]:
        """The limits of single requests by the names of latencies; empty if no request has any."""
        given = {latency: getattr(self, name) for name, latency in LIMITS.items()}
        return {name: column for name, column in given.items() if column is not None}

    def within(self, slo: LatencyLimits) -> NDArray[np.bool_]:
        """Return whether each request was served within its limits, else within these; refused requests were not."""
        return slo.met(**self._times, own=self.limits)

    def is_of(self, request_class: str) -> NDArray[np.bool_]:
        """Return whether each request is of this class."""
        named = self.request_class
        return np.zeros(len(self), np.bool_) if named is None else np.asarray(named == request_class, np.bool_)

    @cached_property
    def session_s(self) -> NDArray[np.float64]:
        """The time of each session: from its first arrival to its last answer, think times included, in seconds.

        NaN for a session with a refused request; empty without sessions.
        """
        if self.session is None:
            return np.empty(0)
        inside = self.session >= 0
        of, sessions = self.session[inside], int(self.session.max()) + 1
        first, last = np.full(sessions, np.inf), np.full(sessions, -np.inf)
        np.minimum.at(first, of, self.arrival_s[inside])
        served = ~np.isnan(self.finished_s[inside])
        np.maximum.at(last, of[served], self.finished_s[inside][served])
        last[of[~served]] = np.nan
        return np.asarray(last - first)

    @cached_property
    def summary(self) -> Summary:
        """Latency, throughput and counts."""
        return summarise(
            **self._times,
            started_s=self.started_s,
            preemptions=int(self.preemptions.sum()),
            resubmissions=int(self.resubmissions.sum()),
            session_s=self.session_s,
        )

    def to_table(self) -> pa.Table:
        """Return one row per request, with fields of `RequestRow`; null for what a refused request does not have."""
        columns: dict[str, Any] = {name: pa.array(getattr(self, name), from_pandas=True) for name in _COLUMNS}
        columns["policy"] = pa.repeat(pa.scalar(self.policy), len(self))
        columns["request"] = pa.array(np.arange(len(self)))
        columns["engine"] = _engine_names(self.engine)
        given = [name for name in ("request_class", *LIMITS) if getattr(self, name) is not None]
        for name in given:
            column = getattr(self, name)
            columns[name] = pa.array(column, mask=None if column.dtype == object else np.isinf(column))
        schema = row_schema(["policy", "request", "engine", *_COLUMNS, *given])
        table = pa.table(columns).select(schema.names).cast(schema)
        for name, column in ({} if self.handover is None else self.handover.columns()).items():
            table = table.append_column(name, column)
        return table


_COLUMNS: Final = (
    "arrival_s",
    "started_s",
    "first_token_s",
    "finished_s",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "recomputed_tokens",
    "resubmissions",
)


def _limits_and_classes(workload: Workload) -> dict[str, Any]:
    """Return the fields of an outcome that say what was promised, where a request has a limit or a class."""
    found: dict[str, Any] = {}
    if workload.has_limits:
        found |= {name: workload.limit(name) for name in LIMITS}
    column = workload.table["request_class"]
    if column.null_count < len(column):
        found["request_class"] = np.array(column.to_pylist(), object)
    return found


def _sessions(workload: Workload) -> dict[str, Any]:
    """Return the field of an outcome with the sessions of requests, where any has one."""
    numbers = workload.session_numbers
    return {"session": numbers} if (numbers >= 0).any() else {}


def engine_name(number: int) -> str:
    """Return the name of an engine by its place in the fleet, as the gateway names one without a name."""
    return f"engine-{number}"


def _engine_names(numbers: NDArray[np.int64]) -> pa.Array:
    names = pa.array([engine_name(number) for number in range(int(numbers.max(initial=-1)) + 1)], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(numbers, mask=numbers < 0), names).cast(pa.string())
