"""How long one step of an engine takes, as a function of what is in the batch.

A cost model maps tokens to seconds; it knows no requests, queues or memory. `step_s` and `chunk_cost` have the
formulas, on a record of parameters: the kernel compiles them, and the readable engine calls them as they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from lengthwise.errors import InputError

LINEAR: Final = 0
ROOFLINE: Final = 1
PIECEWISE: Final = 2

Record = Any
"""The parameters of a cost model: a record of COST, or an object with its fields."""

COST: Final = np.dtype(
    [
        ("family", "i8"),
        # LINEAR, seconds; see StepCost
        ("prefill_base", "f8"),
        ("decode_base", "f8"),
        ("prefill_token", "f8"),
        ("prefill_pair", "f8"),
        ("decode", "f8"),
        ("kv_token", "f8"),
        # ROOFLINE, seconds, beside prefill_pair and kv_token; see Roofline
        ("overhead", "f8"),
        ("token", "f8"),
        ("weights", "f8"),
        # PIECEWISE, milliseconds; see Piecewise
        ("n_lines", "i8"),
        ("lines", "f8", (4, 4)),  # each: least tokens of a batch, constant, slope, square
        ("attention_from", "f8"),
        ("attention_below", "f8"),
        ("attention_constant", "f8"),
        ("attention_slope", "f8"),
        ("halved_context", "f8"),
        ("halved_product", "f8"),
        ("long_from", "f8"),
        ("long_terms", "f8", (4,)),  # constant, new tokens, context, both
        ("divisor", "f8"),
    ]
)
"""The parameters of a cost model; only those of its family are used."""


def chunk_cost(cost: Record, begin: int, end: int) -> float:
    """Cost of a prompt's tokens from `begin` to `end` besides the term in their number, as input of `step_s`.

    LINEAR and ROOFLINE: their share of the prompt's square, so that chunks add up to the whole. PIECEWISE: the term of
    long sequences, milliseconds.
    """
    if cost.family != PIECEWISE:
        return float(end) * end - float(begin) * begin
    new, context = float(end - begin), float(end)
    if new * context < cost.long_from:
        return 0.0
    terms = cost.long_terms
    return float(terms[0] + terms[1] * new + terms[2] * context + terms[3] * new * context)


def step_s(
    cost: Record,
    prefill: int,
    prefill_context: int,
    chunks: float,
    decodes: int,
    context: int,
    shared: int,
    batch: int,
) -> float:
    """Seconds of one step.

    `prefill` prompt tokens over contexts of `prefill_context` tokens, their `chunks` by `chunk_cost`; `decodes`
    sequences that compute one token each, over `context` tokens together, the new ones included; `shared` tokens of all
    contexts are counted more than once because several of the `batch` sequences use them.
    """
    if cost.family == LINEAR:
        base = cost.decode_base if decodes else cost.prefill_base
        computed = cost.prefill_token * prefill + cost.prefill_pair * chunks
        return float(base + computed + cost.decode * decodes + cost.kv_token * context)
    if cost.family == ROOFLINE:
        work = max(cost.token * (prefill + decodes), cost.weights)
        return float(cost.overhead + work + cost.prefill_pair * chunks + cost.kv_token * context)
    tokens, everything = prefill + decodes, prefill_context + context
    line = 0
    for number in range(1, cost.n_lines):
        if tokens >= cost.lines[number, 0]:
            line = number
    linear = cost.lines[line, 1] + cost.lines[line, 2] * tokens + cost.lines[line, 3] * tokens * tokens
    # Preble's parabola falls below zero towards its end: no batch takes less than the smallest.
    linear = max(linear, cost.lines[0, 1])
    attention = cost.attention_below
    if everything > cost.attention_from:
        attention = cost.attention_constant + cost.attention_slope * everything
        unique = everything - shared
        if unique <= cost.halved_context * batch and batch * unique <= cost.halved_product:
            attention *= 0.5
    return float((linear + attention + chunks) / cost.divisor * 1e-3)


class CostModel(ABC):
    """Seconds per step."""

    @abstractmethod
    def parameters(self) -> Record:
        """Return the parameters as the compiled engine takes them."""

    def step_s(
        self, chunks: Sequence[tuple[int, int]] = (), contexts: Sequence[int] = (), *, shared_tokens: int = 0
    ) -> float:
        """Seconds of a step that computes chunks of prompts, from position to position, and a token over each context.

        A context includes its new token. `shared_tokens`: context tokens that are counted more than once.
        """
        cost = self.parameters()
        return step_s(
            cost,
            sum(end - begin for begin, end in chunks),
            sum(end for _, end in chunks),
            sum(chunk_cost(cost, begin, end) for begin, end in chunks),
            len(contexts),
            sum(contexts),
            shared_tokens,
            len(chunks) + len(contexts),
        )


@dataclass(frozen=True, slots=True)
class StepCost(CostModel):
    """Linear step time with quadratic prefill attention.

    step = base + prefill_token * n + prefill_pair * q + decode * B + kv_token * K      (seconds)

    n: prompt tokens computed in this step. q: their share of n^2; a chunk from position c to e has
    e^2 - c^2, so that the chunks of a prompt add up to what it costs in one piece. B: sequences that compute
    one token over a context. K: tokens of those contexts, the new ones included. base: `decode_base` where
    a sequence decodes, else `prefill_base`; it is mostly reading the weights, which a mixed step does once.
    """

    prefill_base: float
    decode_base: float
    prefill_token: float = 0.0
    prefill_pair: float = 0.0
    decode: float = 0.0
    kv_token: float = 0.0

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  (for engine files)

    def __post_init__(self) -> None:
        _check_seconds(self, "prefill_base", "decode_base")

    def parameters(self) -> Record:
        """Return the six coefficients."""
        return _record(LINEAR, **asdict(self))


@dataclass(frozen=True, slots=True)
class Roofline(CostModel):
    """Step time from the peak compute and bandwidth of a GPU and the size of an LLM.

    step = overhead + max(token * (n + B), weights) + prefill_pair * q + kv_token * K      (seconds)

    The larger of computing the batch's tokens and reading the weights; then attention: computing over prompts (q as in
    StepCost), reading K tokens of context.
    """

    token: float
    weights: float
    overhead: float = 0.0
    prefill_pair: float = 0.0
    kv_token: float = 0.0

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  (for engine files)

    def __post_init__(self) -> None:
        _check_seconds(self, "weights")

    def parameters(self) -> Record:
        """Return the five coefficients."""
        return _record(ROOFLINE, **asdict(self))


@dataclass(frozen=True, slots=True)
class CostSegment:
    """constant + slope * T + square * T^2 milliseconds, for batches of T >= `since` tokens."""

    since: float
    constant: float
    slope: float = 0.0
    square: float = 0.0


@dataclass(frozen=True, slots=True)
class Piecewise(CostModel):
    """Step time in pieces, as in Preble's simulator (methods: E2).

    step = (linear(T) + attention(C) + sum over chunks of long(e, s)) / efficiency      (milliseconds)

    T: tokens of the batch. linear: the last of `lines` that T has reached, at least the first one's constant, below
    which (and below zero) Preble's parabola falls. C: tokens of all contexts; attention is a constant up to 1,024 of
    them and a line beyond, halved where the unique ones among them are few: at most 1,024 per sequence, and at most
    2^24 times the number of sequences. long: for a chunk of e tokens that ends at s where
    e * s reaches `long_from`.
    """

    lines: tuple[CostSegment, ...]
    efficiency: float
    attention_below: float = 0.0
    attention_constant: float = 0.0
    attention_slope: float = 0.0
    long_from: float = math.inf
    long_terms: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def parameters(self) -> Record:
        """Return the lines and the terms of attention and long sequences."""
        lines = np.zeros((4, 4))
        lines[: len(self.lines)] = [(line.since, line.constant, line.slope, line.square) for line in self.lines]
        return _record(
            PIECEWISE,
            n_lines=len(self.lines),
            lines=lines,
            attention_from=1024.0,
            attention_below=self.attention_below,
            attention_constant=self.attention_constant,
            attention_slope=self.attention_slope,
            halved_context=1024.0,
            halved_product=32.0 * 256.0 * 2048.0,
            long_from=self.long_from,
            long_terms=self.long_terms,
            divisor=self.efficiency,
        )


def _check_seconds(cost: StepCost | Roofline, *above_0: str) -> None:
    for name, value in asdict(cost).items():
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{value}", field=name, hint="seconds, at least 0")
        if name in above_0 and not value:
            raise InputError("a step that takes no time", field=name, hint="seconds above 0")


def _record(family: int, **values: object) -> Record:
    record = np.zeros(1, COST).view(np.recarray)[0]
    record["family"] = family
    for name, value in values.items():
        record[name] = value
    return record
