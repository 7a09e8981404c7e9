"""An engine's step time and limits, fitted from the outside: from when its answers began and ended.

While answer i is generated, one step is taken for each of its n_i - 1 further tokens, so that

    finish_i - first_i = base * (n_i - 1) + decode * T_i + prefill_token * P_i

with T_i the tokens that all answers together got in that time (each spread evenly over its own), and P_i the prompt
tokens of those that began in it. Least squares with coefficients of at least 0, each answer weighted by 1/sqrt(n_i).
Coarser than `lengthwise engine fit`, which sees the engine's own steps: nothing is said of attention over long
contexts, of prefixes found in the cache, or of the chunks of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import optimize

from lengthwise.errors import InputError
from lengthwise.simulator import EngineSpec, StepCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lengthwise.bench.shadow.traffic import ShadowTraffic
    from lengthwise.engines.shadow_log import Gauges, Memory

    Floats = NDArray[np.float64]

_FEWEST: Final = 20
_FEWEST_TOKENS: Final = 8  # shorter answers say more of the network than of the engine
_LEAST_BASE_S: Final = 1e-6
_BATCHED_TOKENS: Final = 2048  # vLLM's default
_BLOCK: Final = 16


@dataclass(frozen=True)
class FittedEngine:
    """The engine, and where its limits come from."""

    spec: EngineSpec
    answers: int
    """That the step time was fitted to; 0 where the engine was given."""
    slots_from: str
    memory_from: str


def fit_engine(
    traffic: ShadowTraffic, gauges: Sequence[Gauges], memory: Memory | None, *, max_num_seqs: int | None = None
) -> FittedEngine:
    """Fit step time and limits; how many run at once is taken as it is where it is given."""
    cost, answers = fit_cost(traffic)
    slots, slots_from = (max_num_seqs, "given") if max_num_seqs is not None else _slots(traffic, gauges)
    longest = int((traffic.workload.input_tokens + traffic.workload.output_tokens).max())
    if memory is not None:
        tokens, memory_from = memory.kv_tokens, "told by the engine"
    else:
        tokens, memory_from = (slots + 1) * (longest + _BLOCK), "not known: never short"
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
    """The step time, and from how many streamed answers."""
    n = traffic.workload.output_tokens.astype(np.float64)
    streamed = ~np.isnan(traffic.first_token)
    used = streamed & (n >= _FEWEST_TOKENS) & (traffic.finish > traffic.first_token)
    if used.sum() < _FEWEST:
        raise InputError(
            f"{int(used.sum())} streamed answers of {_FEWEST_TOKENS} or more tokens are too few to fit an engine",
            source=traffic.workload.name,
            hint="give one with --engine (a name, or a file of `lengthwise engine fit`)",
        )
    # An answer in one piece tells no first token: its tokens are spread over all of its time.
    begin = np.where(streamed, traffic.first_token, traffic.workload.arrival_s)
    tokens = _spread(begin, traffic.finish, n)
    prompts = _started(begin, traffic.workload.input_tokens.astype(np.float64))
    first, finish = begin[used], traffic.finish[used]
    columns = np.column_stack(
        [n[used] - 1, tokens(finish) - tokens(first), prompts(finish) - prompts(first)],
    )
    seconds = finish - first
    # By tokens, not by seconds: those depend on how fast the engine happened to be, and slow answers would count less.
    weight = 1.0 / np.sqrt(n[used])
    base, decode, prefill = optimize.nnls(columns * weight[:, None], seconds * weight)[0]
    base = max(float(base), _LEAST_BASE_S)
    return StepCost(base, base, float(prefill), 0.0, float(decode), 0.0), int(used.sum())


class _Curve:
    """A growing total over time, straight between its points."""

    def __init__(self, times: Floats, totals: Floats) -> None:
        self._times, self._totals = times, totals

    def __call__(self, at: Floats) -> Floats:
        return np.interp(at, self._times, self._totals)


def _spread(begin: Floats, end: Floats, amount: Floats) -> _Curve:
    """The running total of amounts that each come evenly between their begin and end."""
    rate = amount / np.maximum(end - begin, 1e-9)
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    rates = np.cumsum(np.concatenate([rate, -rate])[order])
    return _Curve(times, np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))]))


def _started(begin: Floats, amount: Floats) -> _Curve:
    """The running total of amounts that come at once; between two of them it grows straight, which is near enough."""
    order = np.argsort(begin, kind="stable")
    return _Curve(begin[order], np.cumsum(amount[order]))


def _slots(traffic: ShadowTraffic, gauges: Sequence[Gauges]) -> tuple[int, str]:
    """How many run at once: what the engine ran while others waited, else the most that were ever generated at once."""
    full = [each.running for each in gauges if each.waiting > 0 and each.running > 0]
    if full:
        return max(full), "the most that ran while others waited"
    streamed = ~np.isnan(traffic.first_token)
    begin = np.where(streamed, traffic.first_token, traffic.workload.arrival_s)
    steps = np.concatenate([np.ones(len(begin)), -np.ones(len(begin))])
    order = np.lexsort((steps, np.concatenate([begin, traffic.finish])))
    most = max(1, int(np.cumsum(steps[order]).max()))
    return most, "the most that were answered at once; the engine was never seen with a queue"
