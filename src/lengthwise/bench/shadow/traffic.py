"""A shadow's log as a workload: the requests that can be replayed, what was predicted of them, and what was measured."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP
from lengthwise.simulator import RequestPredictions, Summary, summarise
from lengthwise.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lengthwise.engines.shadow_log import Entry, Logged

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

FEWEST: Final = 20
"""Requests below which nothing is said."""
_BYTES_PER_TOKEN: Final = 4.0  # of English text, where the engine never tells


@dataclass(frozen=True, eq=False)
class ShadowTraffic:
    """Rows in order of arrival, times from the first of them; NaN where a time is not known."""

    workload: Workload
    predictions: RequestPredictions
    first_token: Floats
    finish: Floats
    settled: Mask
    """The engine told its length, and it ended by itself or at its max_tokens, which a prediction is cut at too."""
    predicted: Mask
    """It was the predictor's prediction, not a hint's or the history's."""
    left_out: Mapping[str, int]
    guessed_prompts: int
    counted_answers: int

    @property
    def measured(self) -> Summary:
        """What clients saw."""
        return summarise(
            sent=self.workload.arrival_s,
            first_token=self.first_token,
            finish=self.finish,
            output_tokens=self.workload.output_tokens,
        )


def shadow_traffic(logged: Logged, name: str) -> ShadowTraffic:
    """What of a log can be replayed; the rest is counted, by the reason it is left out for."""
    left_out = Counter(why for entry in logged.entries if (why := _unfit(entry)))
    kept = [entry for entry in logged.entries if not _unfit(entry)]
    if len(kept) < FEWEST:
        raise InputError(
            f"{len(kept)} answers of known length are too few to say anything",
            source=name,
            hint=f"let at least {FEWEST} pass, better some hundreds under the usual load",
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
    """An answer that the context's end cut short of its max_tokens is not: how long it may be is not known here."""
    at_limit = entry.end == "cut" and entry.max_tokens is not None and (entry.output_tokens or 0) >= entry.max_tokens
    return entry.exact and (entry.end == "whole" or at_limit)


def _column(entries: Sequence[Entry], name: str) -> Floats:
    return np.array([math.nan if (value := getattr(entry, name)) is None else value for entry in entries], np.float64)


def _prompt_tokens(entries: Sequence[Entry]) -> tuple[NDArray[np.int64], int]:
    """Prompt tokens, those that the engine did not tell guessed from the size of the body; and how many were."""
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
