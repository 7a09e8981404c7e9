"""How long one step takes: the formulas of all cost models, on a record of parameters.

The kernel compiles them, and cost models and the readable engine call them as they are: each formula exists once.
"""

from __future__ import annotations

from typing import Final

from lengthwise.simulator.kernel.records import Record

LINEAR: Final = 0
ROOFLINE: Final = 1
PIECEWISE: Final = 2


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
