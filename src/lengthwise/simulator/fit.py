"""Fit a cost model to an engine's steps: the duration of a step by its content, robust to stalls of the machine.

    step = base + prefill_token * n + prefill_pair * q + decode * B + kv_token * K      (seconds; see StepCost)

The steps are those of a step log, those that a client of an otherwise idle endpoint measures (`StepTimes`), or the sums
of the steps that the streamed answers of traffic span (`AnswerTimes`).

Non-negative least squares on relative errors, with Huber weights: a stall carries no information about the cost of a
token. An engine that schedules ahead prepares a step that computes prompts while the step before runs, so that part of
its time is logged there: where single steps fit badly, such a step and its neighbours are fitted as one sum. But stalls
delay a queue, so all six coefficients are finally scaled by one factor, so that the total time of the fitted steps
matches the measured total, in which each step counts with at most ten times its fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.optimize import nnls

from lengthwise.errors import InputError
from lengthwise.files import atomic_path
from lengthwise.simulator.costs import StepCost
from lengthwise.simulator.fleet import EngineSpec, engine_yaml
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.step_log import EngineFacts

Floats = NDArray[np.float64]

_MIN_STEPS: Final = 20
STALL: Final = 10.0  # times the fit: longer steps are due to the machine, not the engine
_HUBER: Final = 1.345  # 95 % efficiency under normal errors
_ROUNDS: Final = 30
_BASE_S: Final = 1e-6  # the least duration of a step
_BASES: Final = 2  # StepCost's first coefficients: of a step that only computes prompts, and of one that decodes
_MIN_ANSWERS: Final = 20
_MIN_TOKENS: Final = 8  # the duration of shorter answers is mostly network latency
_CLOCK_ROUNDS: Final = 4
_CLOCK_WITHIN: Final = 0.03


@dataclass(frozen=True, eq=False)
class StepTimes:
    """The content and duration of steps, as columns."""

    prompt_tokens: Floats
    prompt_pairs: Floats
    decodes: Floats
    context_tokens: Floats
    seconds: Floats

    @classmethod
    def of(cls, table: pa.Table) -> StepTimes:
        """Return the steps of a step log."""
        names = ("prompt_tokens", "prompt_pairs", "decodes", "context_tokens", "seconds")
        return cls(*(table[name].to_numpy().astype(np.float64) for name in names))

    @property
    def decoding(self) -> NDArray[np.bool_]:
        """Whether a step decodes."""
        return np.asarray(self.decodes > 0)

    @property
    def prefilling(self) -> NDArray[np.bool_]:
        """Whether a step computes prompt tokens."""
        return np.asarray(self.prompt_tokens > 0)

    def at(self, cost: StepCost) -> Floats:
        """Return the duration of each step under a cost model."""
        return np.asarray(self.columns() @ np.array(list(asdict(cost).values())))

    def columns(self) -> Floats:
        """Return the factors of StepCost's coefficients, in their order."""
        decoding = self.decoding.astype(np.float64)
        content = (self.prompt_tokens, self.prompt_pairs, self.decodes, self.context_tokens)
        return np.stack([1.0 - decoding, decoding, *content], axis=1)

    @property
    def near_prefill(self) -> NDArray[np.bool_]:
        """Whether a step or one of its neighbours computes prompt tokens."""
        return np.asarray(np.convolve(self.prefilling, np.ones(3), "same") > 0)

    def shifted(self, coefficients: Floats) -> bool:
        """Whether the time of prompts is logged with neighbouring steps: the fit is worse there than elsewhere."""
        error = np.abs(self.seconds / np.maximum(self.columns() @ coefficients, _BASE_S) - 1.0)
        neighbours, others = self.near_prefill & ~self.prefilling, ~self.near_prefill
        if not neighbours.any() or not others.any():
            return False
        return bool(np.median(error[neighbours]) > 2.0 * np.median(error[others]))

    def sums(self) -> tuple[Floats, Floats]:
        """Return factors and durations, summed over each run of steps that compute prompts and their neighbours."""
        near = self.near_prefill
        starts = np.flatnonzero(~(near & np.roll(near, 1)) | (np.arange(len(self)) == 0))
        return np.add.reduceat(self.columns(), starts), np.add.reduceat(self.seconds, starts)

    def check(self) -> None:
        """Raise InputError if the steps are too few or lack prefill or decode."""
        if not (np.isfinite(self.seconds) & (self.seconds > 0)).all():
            raise InputError("a step that took no time", field="seconds", hint="give seconds above 0")
        if len(self) < _MIN_STEPS:
            raise InputError(f"{len(self)} steps are too few to fit", hint=f"give at least {_MIN_STEPS}")
        for kind, mask in (("decodes", self.decoding), ("computes a prompt", self.prefilling)):
            if not mask.any():
                raise InputError(f"no step {kind}", hint="give a log of an engine that answered requests")

    def __len__(self) -> int:
        return len(self.seconds)


@dataclass(frozen=True, eq=False)
class AnswerTimes(StepTimes):
    """From the first to the last token of each streamed answer of an engine's traffic: the sums of so many steps.

    An answer of n tokens spans n - 1 steps. These decode the tokens that all answers together received in that time,
    each spread evenly over its duration, and compute the prompts of the requests that started in it. Coarser than
    steps: attention over long contexts, cached prefixes and chunked prefill cannot be told apart from outside.
    """

    steps: Floats

    @classmethod
    def of_traffic(
        cls,
        *,
        arrival_s: Floats,
        first_token_s: Floats,
        finished_s: Floats,
        input_tokens: NDArray[np.int64],
        output_tokens: NDArray[np.int64],
    ) -> AnswerTimes:
        """Return the answers of requests; the first token is NaN for one in one piece."""
        tokens = output_tokens.astype(np.float64)
        streamed = ~np.isnan(first_token_s)
        used = streamed & (tokens >= _MIN_TOKENS) & (finished_s > first_token_s)
        # The tokens of an answer in one piece are spread over its whole time.
        begin = np.where(streamed, first_token_s, arrival_s)
        order = np.argsort(begin, kind="stable")
        # Cumulative totals over time, linear between their points: tokens of all answers, and prompt tokens started.
        totals = _spread(begin, finished_s, tokens), (begin[order], np.cumsum(input_tokens[order], dtype=np.float64))
        first, finish = first_token_s[used], finished_s[used]
        decodes, prompts = (np.interp(finish, *total) - np.interp(first, *total) for total in totals)
        none = np.zeros(len(first))
        return cls(prompts, none, decodes, none, finish - first, tokens[used] - 1)

    def check(self) -> None:
        """Raise InputError if the answers are too few."""
        if len(self) < _MIN_ANSWERS:
            raise InputError(
                f"{len(self)} streamed answers of {_MIN_TOKENS} or more tokens are too few to fit an engine",
                hint="give one with --engine (a name, or a file of `lengthwise engine fit`)",
            )

    def columns(self) -> Floats:
        """Return the factors of StepCost's coefficients, in their order: a base counts for each step."""
        columns = super().columns()
        columns[:, :_BASES] *= self.steps[:, None]
        return columns

    def shifted(self, coefficients: Floats) -> bool:
        """Answers are no neighbours of each other."""
        return False


def _spread(begin: Floats, end: Floats, amount: Floats) -> tuple[Floats, Floats]:
    """Return times and the cumulative totals of amounts that each arrive evenly between begin and end."""
    rate = amount / np.maximum(end - begin, 1e-9)
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    rates = np.cumsum(np.concatenate([rate, -rate])[order])
    return times, np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))])


@dataclass(frozen=True)
class Share:
    """Errors of the fit on one kind of step, relative to the fit; those of single steps are before scaling."""

    kind: str
    steps: int
    seconds: float
    median_error: float
    p90_error: float
    total_error: float
    """Of the total duration of these steps: fitted / measured - 1."""


@dataclass(frozen=True)
class FittedCost:
    """A cost model and its errors on the steps that it was fitted to."""

    cost: StepCost
    raised: float
    """The factor by which all coefficients were scaled to account for stalls."""
    shares: tuple[Share, ...]
    """All steps first, then those that only decode, only compute prompts, or do both."""


def fit_cost(steps: StepTimes) -> FittedCost:
    """Fit a cost model; InputError if the steps are too few or lack prefill or decode."""
    steps.check()
    columns, seconds = steps.columns(), steps.seconds
    robust = _huber(columns, seconds)
    if steps.shifted(robust):
        sums = steps.sums()
        joint = _huber(*sums)
        if _misfit(joint, *sums) < 0.5 * _misfit(robust, *sums):
            robust, (columns, seconds) = joint, sums
    fitted = columns @ robust
    raised = float(np.minimum(seconds, STALL * fitted).sum() / fitted.sum())
    prefill_base, decode_base, *others = (robust * raised).tolist()
    if not (steps.prefilling & ~steps.decoding).any():
        prefill_base = decode_base  # no pure prefill step was seen; both are mostly the reading of the weights
    cost = StepCost(max(prefill_base, _BASE_S), max(decode_base, _BASE_S), *others)
    return FittedCost(cost, raised, tuple(_shares(steps, steps.at(cost), raised)))


def fit_clock(run: Callable[[float], Outcome], service_s: float) -> tuple[float, Outcome]:
    """Return how many times as fast an engine is as the simulated one, and what `run` simulates at that speed.

    `run(speed)` simulates arrivals that are `speed` times as far apart. The median time from a request's slot to its
    end, divided by the speed, is then `service_s`, as measured.
    """
    speed, outcome = 1.0, run(1.0)
    for _ in range(_CLOCK_ROUNDS):
        before, speed = speed, float(np.nanmedian(outcome.finished_s - outcome.started_s) / max(service_s, 1e-6))
        outcome = run(speed)
        if abs(speed / before - 1.0) < _CLOCK_WITHIN:
            break
    return speed, outcome


def _misfit(coefficients: Floats, columns: Floats, seconds: Floats) -> float:
    """Return the median relative error of the sums that compute prompts."""
    which = columns[:, 2] > 0
    return float(np.median(np.abs(seconds[which] / np.maximum(columns[which] @ coefficients, _BASE_S) - 1.0)))


def _huber(columns: Floats, seconds: Floats) -> Floats:
    """Return non-negative coefficients by iteratively reweighted least squares on errors relative to the fit."""
    fitted, weight = seconds, np.ones(len(seconds))
    coefficients = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        before, coefficients = coefficients, _nnls(columns, seconds, np.sqrt(weight) / fitted)
        fitted = np.maximum(columns @ coefficients, _BASE_S)
        error = np.abs(seconds / fitted - 1.0)
        threshold = _HUBER * 1.4826 * max(float(np.median(error)), 1e-9)
        weight = np.minimum(1.0, threshold / np.maximum(error, 1e-12))
        if np.allclose(before, coefficients, rtol=1e-6, atol=0.0):
            break
    return coefficients


def _nnls(columns: Floats, seconds: Floats, weight: Floats) -> Floats:
    weighted = columns * weight[:, None]
    norm = np.linalg.norm(weighted, axis=0)
    norm[norm == 0.0] = 1.0  # an empty column gets the coefficient 0
    q, r = np.linalg.qr(weighted / norm)  # the same problem with as many rows as coefficients
    return np.asarray(nnls(r, q.T @ (seconds * weight))[0] / norm, np.float64)


def _shares(steps: StepTimes, fitted: Floats, raised: float) -> list[Share]:
    every = np.ones(len(steps), bool)
    kinds = {
        "all": every,
        "decoding only": steps.decoding & ~steps.prefilling,
        "prompts only": steps.prefilling & ~steps.decoding,
        "both": steps.decoding & steps.prefilling,
    }
    return [_share(kind, steps.seconds[which], fitted[which], raised) for kind, which in kinds.items() if which.any()]


def _share(kind: str, seconds: Floats, fitted: Floats, raised: float) -> Share:
    error = np.abs(raised * seconds / fitted - 1.0)
    median, p90 = (float(part) for part in np.percentile(error, (50, 90)))
    total = float(seconds.sum())
    return Share(kind, len(seconds), total, median, p90, float(fitted.sum()) / total - 1.0)


def engine_spec(name: str, cost: StepCost, facts: EngineFacts) -> EngineSpec:
    """Return an engine's specification for the simulator."""
    limits = asdict(facts)
    del limits["engine"], limits["model"]
    return EngineSpec(name, cost, **limits)


def write_fitted(path: Path, spec: EngineSpec, comment: str) -> None:
    """Write an engine file that starts with a comment on the origin of its figures."""
    header = "".join(f"# {line}\n" for line in comment.splitlines())
    with atomic_path(path) as temporary:
        temporary.write_text(header + engine_yaml(spec), encoding="utf-8")
