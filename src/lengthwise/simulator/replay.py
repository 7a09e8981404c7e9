"""Finished requests in the simulator: their rows as a workload with predictions, and an engine fitted to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.lengths import DEFAULT_CAP
from lengthwise.simulator.fit import AnswerTimes, fit_cost
from lengthwise.simulator.fleet import EngineSpec
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.traffic.log import EngineReading
from lengthwise.traffic.reader import column
from lengthwise.traffic.rows import LIMITS, RequestRow
from lengthwise.workloads import Workload

Floats = NDArray[np.float64]

_BYTES_PER_TOKEN: Final = 4.0  # of English text, if the engine reports no prompt tokens
_BATCHED_TOKENS: Final = 2048  # vLLM's default
_BLOCK: Final = 16
_NUMBERS: Final = (
    "arrival_s",
    "started_s",
    "first_token_s",
    "finished_s",
    "input_tokens",
    "input_bytes",
    "output_tokens",
    "max_tokens",
    *LIMITS,
)
_TEXTS: Final = ("llm", "tenant", "request_class")


@dataclass(frozen=True, eq=False)
class Replay:
    """Finished requests in order of arrival; times are seconds after the first arrival, NaN if unknown."""

    workload: Workload
    predictions: RequestPredictions
    started_s: Floats
    first_token_s: Floats
    finished_s: Floats
    guessed_prompts: int = 0
    """Prompts whose tokens are estimated from their size."""

    @classmethod
    def of(
        cls, columns: Mapping[str, Any], *, name: str, predictor: str = "recorded", block_size: int | None = None
    ) -> Replay:
        """Return the replay of requests by columns of `RequestRow`; those that are missing are not known.

        With a block size, a prompt shares as many blocks with the others as the engine found in its prefix cache.
        """
        order = np.argsort(columns["arrival_s"], kind="stable")

        def numbers(field: str) -> Floats:
            given = columns.get(field)
            return np.full(len(order), np.nan) if given is None else np.asarray(given, np.float64)[order]

        def texts(field: str) -> list[str | None]:
            given = columns.get(field)
            return [None] * len(order) if given is None else [given[row] for row in order.tolist()]

        arrival, limits = numbers("arrival_s"), numbers("max_tokens")
        prompts, guessed = _prompt_tokens(numbers("input_tokens"), numbers("input_bytes"))
        tokens = np.maximum(np.nan_to_num(numbers("output_tokens"), nan=1.0), 1.0)
        table = {
            "arrival_s": arrival - arrival[0],
            "input_tokens": prompts,
            "output_tokens": tokens.astype(np.int64),
            "max_tokens": pa.array(np.nan_to_num(limits).astype(np.int64), mask=np.isnan(limits)),
            **{field: pa.array(texts(field), pa.string()) for field in _TEXTS},
            **{field: pa.array(numbers(field), from_pandas=True) for field in LIMITS},
        }
        if block_size is not None:
            cached = np.nan_to_num(numbers("cached_tokens")).astype(np.int64)
            table["block_hashes"] = _blocks(prompts // block_size, cached // block_size)
        predictions = RequestPredictions(
            predictor,
            numbers("mu"),
            numbers("sigma"),
            # An answer may be longer than its declared cap.
            np.maximum(np.where(np.isnan(limits), DEFAULT_CAP, limits), tokens),
            np.array([llm or "" for llm in texts("llm")], object),
            tokens,
        )
        started, first_token, finished = (
            numbers(field) - arrival[0] for field in ("started_s", "first_token_s", "finished_s")
        )
        workload = Workload.from_table(table, name=name, block_size=block_size)
        return cls(workload, predictions, started, first_token, finished, guessed)

    @classmethod
    def of_rows(cls, rows: Sequence[RequestRow], *, name: str) -> Replay:
        """Return the replay of logged requests. One that has no other prediction has that of its LLM's history."""
        columns: dict[str, Any] = {field: column(rows, field) for field in _NUMBERS}
        columns |= {field: [getattr(row, field) for row in rows] for field in _TEXTS}
        for field in ("mu", "sigma"):
            columns[field] = np.where(
                np.isnan(column(rows, "mu")), column(rows, f"history_{field}"), column(rows, field)
            )
        # The predictors of the requests, the most frequent first.
        names = Counter(row.predictor or "none" for row in rows).most_common()
        return cls.of(columns, name=name, predictor=", ".join(each for each, _ in names))

    @property
    def streamed(self) -> NDArray[np.bool_]:
        """Whether the first token of an answer is known."""
        return ~np.isnan(self.first_token_s)


def _prompt_tokens(tokens: Floats, size: Floats) -> tuple[NDArray[np.int64], int]:
    """Return prompt tokens, estimated from the size of the body if not reported, and the number of estimates."""
    size = np.nan_to_num(size)
    known = ~np.isnan(tokens) & (size > 0)
    per_byte = float(np.median(tokens[known] / size[known])) if known.any() else 1.0 / _BYTES_PER_TOKEN
    filled = np.where(np.isnan(tokens), np.rint(size * per_byte), tokens)
    return np.maximum(filled, 1).astype(np.int64), int(np.isnan(tokens).sum())


def _blocks(counts: NDArray[np.int64], shared: NDArray[np.int64]) -> list[list[int]]:
    """Return the blocks of each prompt: the first ones of a common sequence, then its own."""
    ends = int(shared.max(initial=0)) + np.cumsum(counts)
    return [[*range(own), *range(end - count + own, end)] for count, own, end in zip(counts, shared, ends, strict=True)]


@dataclass(frozen=True)
class FittedEngine:
    """An engine, and the sources of its limits."""

    spec: EngineSpec
    answers: int
    """The number of answers that the step time was fitted to; 0 if the engine was given."""
    slots_from: str
    memory_from: str


def fit_engine(
    replay: Replay, readings: Sequence[EngineReading] = (), *, max_num_seqs: int | None = None
) -> FittedEngine:
    """Fit step time and limits to the answers and to what the engine reported; `max_num_seqs` is used if given."""
    workload = replay.workload
    steps = AnswerTimes.of_traffic(
        arrival_s=workload.arrival_s,
        first_token_s=replay.first_token_s,
        finished_s=replay.finished_s,
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
    )
    slots, slots_from = (max_num_seqs, "given") if max_num_seqs is not None else _slots(replay, readings)
    longest = int((workload.input_tokens + workload.output_tokens).max())
    reported = [(each.kv_tokens, each.block_size or _BLOCK) for each in readings if each.kv_tokens is not None]
    kv_tokens, block_size = reported[-1] if reported else ((slots + 1) * (longest + _BLOCK), _BLOCK)
    spec = EngineSpec(
        "fitted to the log",
        fit_cost(steps).cost,
        kv_tokens,
        max_model_len=max(longest, kv_tokens),
        max_num_seqs=slots,
        max_num_batched_tokens=max(_BATCHED_TOKENS, slots),
        block_size=min(block_size, kv_tokens),
        prefix_caching=False,
    )
    memory_from = "reported by the engine" if reported else "not known: assumed sufficient"
    return FittedEngine(spec, len(steps), slots_from, memory_from)


def _slots(replay: Replay, readings: Sequence[EngineReading]) -> tuple[int, str]:
    """Return the slots: the most requests running while others waited, else the most answers generated at once."""
    full = [each.running for each in readings if each.running and each.waiting]
    if full:
        return max(full), "the most that ran while others waited"
    begin = np.where(replay.streamed, replay.first_token_s, replay.workload.arrival_s)
    changes = np.repeat([1.0, -1.0], len(begin))
    order = np.lexsort((changes, np.concatenate([begin, replay.finished_s])))
    most = max(1, int(np.cumsum(changes[order]).max()))
    return most, "the most that were answered at once; the engine was never seen with a queue"
