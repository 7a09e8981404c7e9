"""The logged traffic of a shadow as a workload, and an engine fitted to it from the outside.

While answer i is generated, one step is taken for each of its n_i - 1 further tokens, so that

    finish_i - first_i = base * (n_i - 1) + decode * T_i + prefill_token * P_i

with T_i the tokens that all answers together received in that time (each spread evenly over its duration), and P_i
the prompt tokens of the requests that started in it. Non-negative least squares, each answer weighted by 1/sqrt(n_i).
Coarser than `lengthwise engine fit`, which reads the engine's steps: attention over long contexts, cached prefixes
and chunked prefill are not modelled.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from scipy import optimize

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP
from lengthwise.simulator import EngineSpec, RequestPredictions, StepCost, Summary, summarise
from lengthwise.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lengthwise.engines.shadow_log import Entry, Gauges, Logged, Memory

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]


FEWEST: Final = 20
"""Requests that a report needs."""
_BYTES_PER_TOKEN: Final = 4.0  # of English text, if the engine reports no prompt tokens


@dataclass(frozen=True, eq=False)
class ShadowTraffic:
    """Requests in order of arrival; times are seconds after the first arrival, NaN if unknown."""

    workload: Workload
    predictions: RequestPredictions
    first_token: Floats
    finish: Floats
    settled: Mask
    """The engine reported the length, and the answer ended by itself or at max_tokens, which also caps predictions."""
    predicted: Mask
    """The prediction is the predictor's, not a hint or the history's."""
    left_out: Mapping[str, int]
    guessed_prompts: int
    counted_answers: int

    @property
    def measured(self) -> Summary:
        """The latencies that clients measured."""
        return summarise(
            sent=self.workload.arrival_s,
            first_token=self.first_token,
            finish=self.finish,
            output_tokens=self.workload.output_tokens,
        )


def shadow_traffic(logged: Logged, name: str) -> ShadowTraffic:
    """Return the requests of a log that can be replayed; the others are counted by the reason to leave them out."""
    left_out = Counter(why for entry in logged.entries if (why := _unfit(entry)))
    kept = [entry for entry in logged.entries if not _unfit(entry)]
    if len(kept) < FEWEST:
        raise InputError(
            f"{len(kept)} answers of known length are too few for a report",
            source=name,
            hint=f"log at least {FEWEST}, better some hundreds under the usual load",
        )
    began = kept[0].arrival_s
    prompts, guessed = _prompt_tokens(kept)
    workload = Workload.from_table(
        {
            "arrival_s": _column(kept, "arrival_s") - began,
            "input_tokens": prompts,
            "output_tokens": pa.array([max(1, entry.output_tokens or 1) for entry in kept], pa.int64()),
            "llm": [entry.llm for entry in kept],
            "max_tokens": pa.array([entry.max_tokens for entry in kept], pa.int64()),
        },
        name=name,
    )
    return ShadowTraffic(
        workload,
        _predictions(kept, workload, logged.header.predictor),
        _column(kept, "first_token_s") - began,
        _column(kept, "finished_s") - began,
        settled=np.array([_settled(entry) for entry in kept]),
        predicted=np.array([entry.source == "predictor" for entry in kept]),
        left_out=dict(left_out),
        guessed_prompts=guessed,
        counted_answers=sum(not entry.exact for entry in kept),
    )


def _unfit(entry: Entry) -> str | None:
    if entry.end == "refused":
        return "refused by the engine"
    if not entry.one_answer:
        return "several answers or prompts in one request, or a body that could not be read"
    if entry.output_tokens is None:
        return "length not known: the client left or the engine was lost before the end"
    return None


def _settled(entry: Entry) -> bool:
    # An answer that the end of the context cut below its max_tokens does not count: its cap is not known here.
    at_limit = entry.end == "cut" and entry.max_tokens is not None and (entry.output_tokens or 0) >= entry.max_tokens
    return entry.exact and (entry.end == "whole" or at_limit)


def _column(entries: Sequence[Entry], name: str) -> Floats:
    return np.array([math.nan if (value := getattr(entry, name)) is None else value for entry in entries], np.float64)


def _prompt_tokens(entries: Sequence[Entry]) -> tuple[NDArray[np.int64], int]:
    """Return prompt tokens, estimated from the size of the body if not reported, and the number of estimates."""
    tokens, size = _column(entries, "prompt_tokens"), _column(entries, "prompt_bytes")
    known = ~np.isnan(tokens) & (size > 0)
    per_byte = float(np.median(tokens[known] / size[known])) if known.any() else 1.0 / _BYTES_PER_TOKEN
    filled = np.where(np.isnan(tokens), np.rint(size * per_byte), tokens)
    return np.maximum(filled, 1).astype(np.int64), int(np.isnan(tokens).sum())


def _predictions(entries: Sequence[Entry], workload: Workload, predictor: str) -> RequestPredictions:
    caps = [DEFAULT_CAP if entry.max_tokens is None else entry.max_tokens for entry in entries]
    llms = np.array([entry.llm for entry in entries], dtype=object)
    truth = workload.output_tokens.astype(np.float64)
    mu, sigma = _column(entries, "prediction_mu"), _column(entries, "prediction_sigma")
    return RequestPredictions(predictor, mu, sigma, np.array(caps, np.float64), llms, truth)


_FEWEST: Final = 20
_FEWEST_TOKENS: Final = 8  # the duration of shorter answers is mostly network latency
_LEAST_BASE_S: Final = 1e-6
_BATCHED_TOKENS: Final = 2048  # vLLM's default
_BLOCK: Final = 16


@dataclass(frozen=True)
class FittedEngine:
    """An engine, and the sources of its limits."""

    spec: EngineSpec
    answers: int
    """The number of answers that the step time was fitted to; 0 if the engine was given."""
    slots_from: str
    memory_from: str


def fit_engine(
    traffic: ShadowTraffic, gauges: Sequence[Gauges], memory: Memory | None, *, max_num_seqs: int | None = None
) -> FittedEngine:
    """Fit step time and limits; `max_num_seqs` is used as it is if given."""
    cost, answers = fit_cost(traffic)
    slots, slots_from = (max_num_seqs, "given") if max_num_seqs is not None else _slots(traffic, gauges)
    longest = int((traffic.workload.input_tokens + traffic.workload.output_tokens).max())
    if memory is not None:
        tokens, memory_from = memory.kv_tokens, "reported by the engine"
    else:
        tokens, memory_from = (slots + 1) * (longest + _BLOCK), "not known: assumed sufficient"
    spec = EngineSpec(
        "fitted to the log",
        cost,
        tokens,
        max_model_len=max(longest, tokens),
        max_num_seqs=slots,
        max_num_batched_tokens=max(_BATCHED_TOKENS, slots),
        block_size=min(_BLOCK if memory is None else memory.block_size, tokens),
        prefix_caching=False,
    )
    return FittedEngine(spec, answers, slots_from, memory_from)


def fit_cost(traffic: ShadowTraffic) -> tuple[StepCost, int]:
    """Fit the step time; return it and the number of streamed answers used."""
    n = traffic.workload.output_tokens.astype(np.float64)
    streamed = ~np.isnan(traffic.first_token)
    used = streamed & (n >= _FEWEST_TOKENS) & (traffic.finish > traffic.first_token)
    if used.sum() < _FEWEST:
        raise InputError(
            f"{int(used.sum())} streamed answers of {_FEWEST_TOKENS} or more tokens are too few to fit an engine",
            source=traffic.workload.name,
            hint="give one with --engine (a name, or a file of `lengthwise engine fit`)",
        )
    # The first token of an answer that is not streamed is not known: its tokens are spread over its whole time.
    begin = np.where(streamed, traffic.first_token, traffic.workload.arrival_s)
    tokens = _spread(begin, traffic.finish, n)
    prompts = _started(begin, traffic.workload.input_tokens.astype(np.float64))
    first, finish = begin[used], traffic.finish[used]
    columns = np.column_stack(
        [n[used] - 1, tokens(finish) - tokens(first), prompts(finish) - prompts(first)],
    )
    seconds = finish - first
    # Weighted by tokens, not by seconds: slow answers would count less.
    weight = 1.0 / np.sqrt(n[used])
    base, decode, prefill = optimize.nnls(columns * weight[:, None], seconds * weight)[0]
    base = max(float(base), _LEAST_BASE_S)
    return StepCost(base, base, float(prefill), 0.0, float(decode), 0.0), int(used.sum())


class _Curve:
    """A cumulative total over time, linear between its points."""

    def __init__(self, times: Floats, totals: Floats) -> None:
        self._times, self._totals = times, totals

    def __call__(self, at: Floats) -> Floats:
        return np.interp(at, self._times, self._totals)


def _spread(begin: Floats, end: Floats, amount: Floats) -> _Curve:
    """Return the cumulative total of amounts that each arrive evenly between begin and end."""
    rate = amount / np.maximum(end - begin, 1e-9)
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    rates = np.cumsum(np.concatenate([rate, -rate])[order])
    return _Curve(times, np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))]))


def _started(begin: Floats, amount: Floats) -> _Curve:
    """Return the cumulative total of amounts that arrive at `begin`, interpolated linearly between them."""
    order = np.argsort(begin, kind="stable")
    return _Curve(begin[order], np.cumsum(amount[order]))


def _slots(traffic: ShadowTraffic, gauges: Sequence[Gauges]) -> tuple[int, str]:
    """Return the slots: the most requests running while others waited, else the most answers generated at once."""
    full = [gauge.running for gauge in gauges if gauge.waiting > 0 and gauge.running > 0]
    if full:
        return max(full), "the most that ran while others waited"
    streamed = ~np.isnan(traffic.first_token)
    begin = np.where(streamed, traffic.first_token, traffic.workload.arrival_s)
    changes = np.concatenate([np.ones(len(begin)), -np.ones(len(begin))])
    order = np.lexsort((changes, np.concatenate([begin, traffic.finish])))
    most = max(1, int(np.cumsum(changes[order]).max()))
    return most, "the most that were answered at once; the engine was never seen with a queue"
