"""Predictions for every request of a workload before it runs, as columns.

`oracle` uses the true lengths of the workload, `noisy` those with noise of a known size, `probe` those with the error
of a probe's first reading, models read its prompts, `history` uses the answers of earlier requests; `memory` and
predictors that learn (`fast+learn`) those of finished ones. Nothing here knows engines or policies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.defaults import DEFAULT_PREDICTOR
from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP, TIE_NU, LengthDistribution, LogT, LogTColumns, Point, log_t, wide_prior
from lengthwise.policies.job import CVAR_ALPHA
from lengthwise.predictors.contract import (
    Description,
    LearningPredictor,
    LengthPredictor,
    PredictionInput,
    Predictions,
    as_logt,
)
from lengthwise.predictors.history import History
from lengthwise.predictors.prefix_memory import MemoryPredictor
from lengthwise.predictors.resolve import PredictorSpec, after_prefill_only, parse_predictor_spec, resolve_predictor
from lengthwise.predictors.start_order import StartOrder
from lengthwise.traffic.scores import kendall_tau, tau_within
from lengthwise.workloads import Workload

Floats = NDArray[np.float64]
Progress = Callable[[float], None]

_BATCH: Final = 256
_TTFT_S: Final = 1.0
_TPOT_S: Final = 0.03
TAU_WITHIN: Final = 0.01
_MIN_SIGMA: Final = 0.02
_NOISE_DRAWS: Final = 8  # seeds tried until the tau of a small workload is reached
_NOISE_STEPS: Final = 40


@dataclass(frozen=True, eq=False)
class RequestPredictions:
    """A prediction for each request, in the workload's order: LogT(mu, sigma, cap).

    sigma 0: exactly exp(mu) tokens. mu NaN: no prediction, and policies use the wide prior.
    """

    predictor: str
    mu: Floats
    sigma: Floats
    cap: Floats
    llms: NDArray[np.object_]
    truth: Floats
    """Mean of the prompt's clean samples, else the true length."""

    @cached_property
    def tau(self) -> float:
        """Kendall's tau-b of the medians with `truth`, within each LLM, averaged.

        NaN where all medians are equal or there is no prediction.
        """
        return math.nan if np.isnan(self.mu).all() else tau_within(self.llms, self.mu, self.truth)

    def __len__(self) -> int:
        return len(self.mu)

    def __getitem__(self, row: int) -> LengthDistribution | None:
        mu, sigma, cap = self.mu.item(row), self.sigma.item(row), int(self.cap.item(row))
        if math.isnan(mu):
            return None
        return LogT(mu, sigma, cap) if sigma > 0.0 else Point(round(math.exp(mu)), cap)

    def __iter__(self) -> Iterator[LengthDistribution | None]:
        return (self[row] for row in range(len(self)))

    def take(self, rows: slice | NDArray[np.integer]) -> RequestPredictions:
        """Return the predictions of some requests, in this order."""
        columns = ("mu", "sigma", "cap", "llms", "truth")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})

    def expected_and_tail(self) -> tuple[Floats, Floats]:
        """Return mean and CVaR at 0.9 of each prediction, accurate to 1e-4."""
        exact = np.rint(np.exp(self.mu))
        certain = self.sigma == 0.0
        if certain.all():
            return exact, exact
        prior = wide_prior()
        mu = np.where(np.isnan(self.mu), prior.mu, self.mu)
        sigma = np.where(np.isnan(self.mu) | certain, prior.sigma, self.sigma)
        expected, tail = LogTColumns.of(mu, sigma, self.cap).mean_and_cvar(CVAR_ALPHA)
        return np.where(certain, exact, expected), np.where(certain, exact, tail)


def default_predictor(workload: Workload) -> str:
    """Return the default predictor of simulations: the one that serves for prompts with text, else `history`."""
    return "history" if workload.table["prompt"].null_count else DEFAULT_PREDICTOR


def predict_workload(
    workload: Workload,
    predictor: str,
    *,
    seed: int = 0,
    started_s: Floats | None = None,
    finished_s: Floats | None = None,
    on_progress: Progress | None = None,
) -> RequestPredictions:
    """Return the predictions of a predictor by its name (see `parse_predictor_spec`); `seed` is for noise.

    Requests with the same prompt and LLM have the same prediction, noise included; not so where one learns: it learns
    as a host does, in the order of `started_s`, by default that of arrival, from requests that have finished. Without
    `finished_s` a request takes a second and 30 ms per token.
    """
    spec = parse_predictor_spec(predictor)
    true = workload.output_tokens.astype(np.float64)
    caps = pc.fill_null(workload.table["max_tokens"], DEFAULT_CAP).to_numpy().astype(np.float64)
    # An answer may be longer than the default cap; predictors that use the true length do not truncate it.
    known = np.maximum(true, caps)
    if spec.kind == "oracle":
        mu, sigma, caps = np.log(true), np.zeros(len(true)), known
    elif spec.kind == "none":
        mu = sigma = np.full(len(true), np.nan)
    elif spec.kind == "noisy":
        (mu, sigma), caps = _noisy(workload, spec, true, known, seed), known
    elif spec.kind == "probe":
        from lengthwise.predictors.probe import DEFAULT, first_error, load_probe

        medians = probed_medians(true, known, first_error(load_probe(DEFAULT)), seed, groups=_llms(workload))
        mu, sigma, caps = np.log(medians), np.full(len(true), own_sigma(true, medians)), known
    elif spec.kind == "history":
        mu, sigma = _history(workload)
    elif _learns(spec):
        mu, sigma = _learned(workload, spec, started_s, finished_s, on_progress)
    else:
        mu, sigma = _model(workload, spec, on_progress)
    return RequestPredictions(predictor, mu, sigma, caps, _llms(workload), _centre(workload))


def check_before_prefill(predictors: Iterable[str]) -> None:
    """Raise InputError for a predictor that reads what exists only after prefill."""
    if any(parse_predictor_spec(name).kind == "probe" for name in predictors):
        raise after_prefill_only()


def learns(predictor: str) -> bool:
    """Whether predictions depend on when earlier requests finish."""
    return _learns(parse_predictor_spec(predictor))


def _learns(spec: PredictorSpec) -> bool:
    return spec.learns or (spec.kind == "plugin" and isinstance(resolve_predictor(spec), LearningPredictor))


def _noisy(workload: Workload, spec: PredictorSpec, true: Floats, caps: Floats, seed: int) -> tuple[Floats, Floats]:
    centre = _centre(workload)
    # Where only true lengths are known, two requests with the same prompt have different ones.
    units = _units(workload) if np.isfinite(workload.sample_mean).all() else np.arange(len(true))
    medians = noisy_medians(spec, centre, caps, seed, units=units, groups=_llms(workload))
    return np.log(medians), np.full(len(true), own_sigma(true, medians))


def _history(workload: Workload) -> tuple[Floats, Floats]:
    """Predict from the LLM's answers to all earlier requests, as if each had finished before the next arrives."""
    history = History()
    limits = workload.table["max_tokens"].to_pylist()
    mu, sigma = [], []
    for llm, length, limit in zip(_llms(workload).tolist(), workload.output_tokens.tolist(), limits, strict=True):
        tracker = history.by_llm.get(llm, history.pooled)
        mu.append(tracker.location)
        sigma.append(tracker.scale)
        history.observe(llm, length, censored=limit is not None and length >= limit)
    return np.array(mu), np.array(sigma)


def _learned(
    workload: Workload,
    spec: PredictorSpec,
    started_s: Floats | None,
    finished_s: Floats | None,
    on_progress: Progress | None,
) -> tuple[Floats, Floats]:
    """Predict each request at its arrival, from the answers that are learned from by then."""
    predictor: LearningPredictor
    if spec.model is None:
        texts, predictor = [""] * len(workload), MemoryPredictor()
    elif spec.kind == "plugin":
        texts, predictor = _texts(workload, spec).to_pylist(), cast("LearningPredictor", resolve_predictor(spec))
    else:
        from lengthwise.predictors.learner import KnownPrompts, Learner  # brings the compiler

        texts = list(map(str, _units(workload)))
        learning = spec.kind == "learn"
        below = parse_predictor_spec(spec.model)
        known = KnownPrompts(*_prompts(workload, below, on_progress, described=learning))
        predictor = Learner(known, learning=learning, memory=spec.memory or not learning)
    tokens = workload.output_tokens.tolist()
    limits, tenants, sessions = (workload.table[name].to_pylist() for name in ("max_tokens", "tenant", "session"))
    inputs = [
        PredictionInput(text, llm, limit, blocks=workload.blocks(row), tenant=tenant, session=session)
        for row, (text, llm, limit, tenant, session) in enumerate(
            zip(texts, _llms(workload).tolist(), limits, tenants, sessions, strict=True)
        )
    ]
    if finished_s is None:
        finished_s = workload.arrival_s + _TTFT_S + _TPOT_S * workload.output_tokens
    llms = _llms(workload)
    order, released_s = _released(llms, workload.arrival_s if started_s is None else started_s, finished_s)
    ended = np.searchsorted(released_s, workload.arrival_s, side="right").tolist()
    mu, sigma, observed = np.empty(len(inputs)), np.empty(len(inputs)), 0
    for row, each in enumerate(inputs):
        for done in order[observed : ended[row]]:
            limit = limits[done]
            predictor.observe(inputs[done], tokens[done], censored=limit is not None and tokens[done] >= limit)
        observed = max(observed, ended[row])
        found = as_logt(predictor.predict([each]))
        mu[row], sigma[row] = found.mu[0], found.sigma[0]
    return mu, sigma


def _released(llms: NDArray[np.object_], started_s: Floats, finished_s: Floats) -> tuple[list[int], Floats]:
    """Return the requests that finish, in the order in which a host learns from them, and when it does."""
    rows = np.flatnonzero(np.isfinite(finished_s))
    times, is_end = np.concatenate([started_s[rows], finished_s[rows]]), np.repeat([False, True], len(rows))
    orders: dict[str, StartOrder[int]] = {}
    released: list[int] = []
    released_s: list[float] = []
    for event in np.lexsort((is_end, times)).tolist():
        row = rows[event % len(rows)].item()
        order = orders.setdefault(llms[row], StartOrder())
        if not is_end[event]:
            order.started(row)
            continue
        known = order.ended(row, row)
        released += known
        released_s += [times[event].item()] * len(known)
    return released, np.array(released_s)


def _described(
    predictor: LengthPredictor, inputs: Sequence[PredictionInput]
) -> tuple[Predictions, Sequence[Description]]:
    from lengthwise.predictors.learner import describe  # brings the compiler

    return describe(predictor, inputs)


def _model(workload: Workload, spec: PredictorSpec, on_progress: Progress | None) -> tuple[Floats, Floats]:
    units = _units(workload)
    mu, sigma, _ = _prompts(workload, spec, on_progress, described=False)
    return mu[units], sigma[units]


def _texts(workload: Workload, spec: PredictorSpec) -> pa.ChunkedArray:
    """Return the prompts; InputError if one has no text."""
    prompts = workload.table["prompt"]
    if prompts.null_count:
        raise InputError(
            f"has no prompt texts for predictor '{spec.model or spec.kind}' to read",
            source=workload.name,
            field="prompt",
            hint="take oracle, noisy:TAU, history or none, or a workload with prompts",
        )
    return prompts


def _prompts(
    workload: Workload, spec: PredictorSpec, on_progress: Progress | None, *, described: bool
) -> tuple[Floats, Floats, list[Description]]:
    """Predict each distinct prompt once, in batches of similar length to reduce padding; describe it if asked."""
    prompts = _texts(workload, spec)
    predictor = resolve_predictor(spec)
    units = _units(workload)
    firsts = np.unique(units, return_index=True)[1]
    texts, llms = prompts.take(firsts).to_pylist(), _llms(workload)[firsts].tolist()
    tokens = workload.input_tokens[firsts].tolist()
    inputs = [PredictionInput(text, llm, None, n) for text, llm, n in zip(texts, llms, tokens, strict=True)]
    order = np.argsort([len(text) for text in texts], kind="stable")
    mu, sigma = np.empty(len(inputs)), np.empty(len(inputs))
    descriptions: dict[int, Description] = {}
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        batch = [inputs[row] for row in rows]
        found, each = _described(predictor, batch) if described else (predictor.predict(batch), [])
        predictions = as_logt(found)
        mu[rows], sigma[rows] = predictions.mu, predictions.sigma
        descriptions.update(zip(rows.tolist(), each, strict=False))
        if on_progress is not None:
            on_progress(min(1.0, (start + _BATCH) / len(order)))
    return mu, sigma, [descriptions[row] for row in sorted(descriptions)]


def _centre(workload: Workload) -> Floats:
    """The ideal prediction: the mean of the prompt's clean samples, else the true length."""
    means = workload.sample_mean
    return np.where(np.isfinite(means), means, workload.output_tokens.astype(np.float64))


def _llms(workload: Workload) -> NDArray[np.object_]:
    return np.array(pc.fill_null(workload.table["llm"], "").to_pylist(), dtype=object)


def _units(workload: Workload) -> NDArray[np.intp]:
    """Return a number per request, equal for the same prompt and LLM; without a prompt each has a different one."""
    found: dict[tuple[str | int, str], int] = {}
    keys = zip(workload.table["prompt"].to_pylist(), _llms(workload).tolist(), strict=True)
    numbers = [
        found.setdefault((row if text is None else text, llm), len(found)) for row, (text, llm) in enumerate(keys)
    ]
    return np.array(numbers, dtype=np.intp)


def noisy_medians(
    spec: PredictorSpec,
    centre: Floats,
    caps: Floats,
    seed: int,
    *,
    units: NDArray[np.intp] | None = None,
    groups: NDArray[np.object_] | None = None,
) -> Floats:
    """Return the medians of a `noisy` predictor: `centre` with log-normal noise, between 1 token and the cap.

    The spread of the noise is `spec.log_error`, or such that Kendall's tau-b with `centre` is `spec.tau` within 0.01.
    Values of one unit (repeats of a prompt) get the same noise; tau is averaged over the groups (LLMs). Without
    them, every value is its own unit and all are one group.
    """
    units = np.arange(len(centre)) if units is None else units
    if spec.log_error is not None:
        return _disturb(centre, caps, spec.log_error, _normals(len(centre), seed, 0)[units])
    return _disturb_to_tau(centre, caps, 1.0 if spec.tau is None else spec.tau, seed, units, groups)


def probed_medians(true: Floats, caps: Floats, error: float, seed: int, *, groups: NDArray[np.object_]) -> Floats:
    """Return the medians of a calibrated prediction whose mean absolute error is `error` times that of a constant.

        log median = m + k^2 (log length - m) + k sqrt(1 - k^2) s e,   e standard normal

    m and s are mean and spread of the log lengths of a group (an LLM), whose constant is its median; k in [0, 1] is
    found by bisection on these values. Unlike those of `noisy`, predictions of long answers are too short: they
    regress to the mean, as a probe's do.
    """
    log_length = np.log(true)
    mean, spread, constant = (np.zeros(len(true)) for _ in range(3))
    for group in set(groups.tolist()):
        rows = groups == group
        mean[rows], spread[rows] = log_length[rows].mean(), log_length[rows].std()
        constant[rows] = np.median(true[rows])
    goal, noise = error * np.abs(constant - true).sum(), _normals(len(true), seed, _NOISE_DRAWS)
    low, high, medians = 0.0, 1.0, true
    for _ in range(_NOISE_STEPS):
        k = (low + high) / 2
        found = mean + k**2 * (log_length - mean) + k * math.sqrt(1.0 - k**2) * spread * noise
        medians = np.exp(np.clip(found, 0.0, np.log(caps)))
        low, high = (k, high) if np.abs(medians - true).sum() > goal else (low, k)
    return medians


def own_sigma(true: Floats, medians: Floats) -> float:
    """Return the sigma that matches the actual log errors, sampling included: its quartiles are those of the errors."""
    error = float(np.median(np.abs(np.log(true / medians)))) if len(true) else 0.0
    return max(_MIN_SIGMA, error / log_t.isf(0.25, TIE_NU))


def _disturb(centre: Floats, caps: Floats, spread: float, normals: Floats) -> Floats:
    """Return the values with log-normal noise, clipped to between 1 token and the cap."""
    return np.asarray(np.exp(np.clip(np.log(centre) + spread * normals, 0.0, np.log(caps))))


def _disturb_to_tau(
    centre: Floats, caps: Floats, tau: float, seed: int, units: NDArray[np.intp], groups: NDArray[np.object_] | None
) -> Floats:
    """Find the spread by bisection on these values.

    Raises InputError where ties or few requests leave no spread with this tau (lengths that are 1 or 300 have tau 0.71
    as soon as noise breaks the ties).
    """
    if tau == 1.0 or len(centre) < 2:
        return _disturb(centre, caps, 0.0, np.zeros(len(centre)))
    nearest = math.nan
    for draw in range(_NOISE_DRAWS):
        normals = _normals(len(centre), seed, draw)[units]
        low, high = -7.0, 5.0  # logs of the spread
        for _ in range(_NOISE_STEPS):
            middle = (low + high) / 2
            values = _disturb(centre, caps, math.exp(middle), normals)
            reached = kendall_tau(values, centre) if groups is None else tau_within(groups, values, centre)
            if abs(reached - tau) <= TAU_WITHIN / 2:
                return values
            if math.isnan(nearest) or abs(reached - tau) < abs(nearest - tau):
                nearest = reached
            low, high = (middle, high) if reached > tau else (low, middle)
    best = "their lengths are all the same" if math.isnan(nearest) else f"the nearest is {nearest:.2f}"
    raise InputError(
        f"no noise gives these {len(centre)} requests a tau of {tau:g}; {best}",
        hint="use another tau, or more requests with more different lengths",
    )


def _normals(n: int, seed: int, draw: int) -> Floats:
    return np.random.default_rng([seed % 2**64, draw, 0x6E6F69]).standard_normal(n)
