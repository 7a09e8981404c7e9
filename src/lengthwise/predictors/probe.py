"""Probes (TRAIL): from an LLM's hidden state during decoding to a prediction of the remaining length.

Bins of remaining length, smoothing of successive readings, the network in NumPy, its file, and its readings of one
running request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lengthwise.errors import InputError
from lengthwise.lengths import BaseDistribution, Histogram, LengthDistribution, LogT, LogTColumns, Point, wide_prior
from lengthwise.predictors.model_file import Weights, pack_arrays, read_model_file, unpack_arrays, write_model_file
from lengthwise.predictors.resolve import MODELS, model_path

Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]

PAPER_END: Final = 512
PAPER_BINS: Final = 10
_FIRST_EDGE: Final = 4


@dataclass(frozen=True)
class Bins:
    """Bin i holds the remaining lengths in (edges[i], edges[i+1]]; longer ones count to the last bin."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        steps = np.diff(self.edges)
        if len(self.edges) < 2 or self.edges[0] != 0 or not (steps >= 1).all():
            raise InputError(
                "the edges are not increasing from 0", hint="give edges from 0 up, each at least a token above the last"
            )

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, remaining: ArrayLike) -> NDArray[np.intp]:
        """Return the bin of each remaining length."""
        place = np.searchsorted(self.edges, np.asarray(remaining, np.float64), side="left") - 1
        return np.clip(place, 0, len(self) - 1)

    def after(self, tokens: int) -> Floats:
        """Return T^tokens: the distribution of each bin's mass (row) after `tokens` more tokens.

        TRAIL (arXiv 2410.01035): with each token a bin of width w moves 1/w of its mass to the bin below; the lowest
        keeps all.
        """
        return _after(self.edges, tokens)

    def between(self, survival: Floats) -> Floats:
        """Return rows of mass from P(remaining > edge) at every edge; the rest goes to the last bin."""
        mass = np.maximum(survival[:, :-1] - survival[:, 1:], 1e-12)
        mass[:, -1] += survival[:, -1]
        return np.asarray(mass / mass.sum(axis=1, keepdims=True))

    def quantile(self, probabilities: Floats, q: float, cap: ArrayLike) -> Floats:
        """Return each row's quantile, interpolated inside a bin, at most `cap`."""
        sums = np.cumsum(probabilities, axis=1)
        sums /= sums[:, -1:]
        place = np.minimum((sums < q).sum(axis=1), len(self) - 1)
        rows = np.arange(len(sums))
        below = np.where(place > 0, sums[rows, place - 1], 0.0)
        inside = (q - below) / np.maximum(sums[rows, place] - below, 1e-12)
        edges = np.array(self.edges)
        found = edges[place] + np.clip(inside, 0.0, 1.0) * (edges[place + 1] - edges[place])
        return np.asarray(np.minimum(found, cap))


def paper_bins() -> Bins:
    """Return TRAIL's bins: ten equal ones on 0 to 512."""
    return Bins(tuple(np.linspace(0.0, PAPER_END, PAPER_BINS + 1).tolist()))


def log_bins(cap: int, count: int = 24) -> Bins:
    """Return bins whose widths grow with the length, from four tokens to the cap."""
    if cap <= _FIRST_EDGE:
        raise InputError(f"a cap of {cap} tokens", hint=f"give more than {_FIRST_EDGE}")
    inner = np.unique(np.round(np.geomspace(_FIRST_EDGE, cap, count)))
    return Bins((0.0, *inner.tolist()))


@lru_cache(maxsize=256)
def _after(edges: tuple[float, ...], tokens: int) -> Floats:
    widths = np.diff(edges)
    once = np.diag(1.0 - 1.0 / widths) + np.diag(1.0 / widths[1:], k=-1)
    once[0, 0] = 1.0
    return np.asarray(np.linalg.matrix_power(once, tokens))


_MIN_MASS: Final = 1e-9  # every bin keeps some mass


@dataclass(frozen=True)
class Smoothing:
    """q_t ~ (q_s T^(t-s))^carry * p_t^trust; the first one q_0 ~ b^start * p_0^(1 - start), b the prompt's prediction.

    carry = trust = 1, start = 0 is TRAIL's (arXiv 2410.01035), which assumes independent readings. Those of one
    answer are not: values below 1 discount old and repeated evidence. carry = 0, trust = 1 is no smoothing.
    """

    carry: float = 1.0
    trust: float = 1.0
    start: float = 0.0

    def first(self, prior: Floats, reading: Floats) -> Floats:
        """Return the predictions after the first readings, a row each; `prior` is the prompt's prediction in bins."""
        mass = np.maximum(prior, _MIN_MASS) ** self.start * np.maximum(reading, _MIN_MASS) ** (1.0 - self.start)
        return np.asarray(mass / mass.sum(axis=-1, keepdims=True))

    def step(self, bins: Bins, before: Floats, tokens: int, reading: Floats) -> Floats:
        """Return the predictions after readings that are `tokens` after the previous ones, a row each."""
        prior = np.maximum(before @ bins.after(tokens), _MIN_MASS)
        mass = prior**self.carry * np.maximum(reading, _MIN_MASS) ** self.trust
        return np.asarray(mass / mass.sum(axis=-1, keepdims=True))

    def rows(
        self, bins: Bins, readings: Floats, prior: Floats, answer: NDArray[np.int64], generated: NDArray[np.int64]
    ) -> Floats:
        """Smooth the readings of many answers, each in order of its tokens; `prior` as of `first`, for each row."""
        smooth = np.empty_like(readings)
        order = np.lexsort((generated, answer))
        last = -1
        for row in order.tolist():
            if last < 0 or answer[last] != answer[row]:
                smooth[row] = self.first(prior[row], readings[row])
            else:
                tokens = int(generated[row] - generated[last])
                smooth[row] = self.step(bins, smooth[last], tokens, readings[row])
            last = row
        return smooth


NONE: Final = Smoothing(carry=0.0, trust=1.0)
PAPER: Final = Smoothing()


PROMPT: Final = "prompt"
ENTROPY: Final = "entropy"
_QUARTILES_APART: Final = 1.45
"""Distance of the quartiles of a log-t with nu 3.5, in sigmas."""


def features(
    inputs: Sequence[str], generated: ArrayLike, *, mu: ArrayLike, sigma: ArrayLike, left: ArrayLike, entropy: ArrayLike
) -> NDArray[np.float32]:
    """Return the columns that `inputs` name, roughly centred; the generated tokens are always included.

    `left` is the median remaining length by the prompt's prediction after `generated` tokens.
    """
    age = np.asarray(generated, np.float64)
    columns = [np.log1p(age) / 3.0 - 1.0, age / 512.0 - 0.5]
    if PROMPT in inputs:
        log_left = np.log(np.maximum(np.asarray(left, np.float64), 1.0))
        columns += [np.asarray(mu, np.float64) - 5.0, np.asarray(sigma, np.float64), log_left - 5.0]
    if ENTROPY in inputs:
        columns.append(np.asarray(entropy, np.float64) - 1.0)
    return np.stack(columns, axis=1).astype(np.float32)


def left_by_age(generated: ArrayLike, mu: Floats, sigma: Floats, nu: float, cap: ArrayLike, q: float = 0.5) -> Floats:
    """Return quantiles of LogT(mu, sigma, cap, nu).remaining(generated), for many at once."""
    age = np.asarray(generated, np.float64)
    reached = LogTColumns(mu, sigma, np.full(len(mu), np.inf), nu).survival(age[:, None])[:, 0]
    length = np.exp(np.minimum(mu - sigma * special.stdtrit(nu, (1.0 - q) * reached), 50.0))
    return np.asarray(np.maximum(np.minimum(length, cap) - age, 0.0))


def mass_by_age(bins: Bins, generated: ArrayLike, mu: Floats, sigma: Floats, nu: float) -> Floats:
    """Return the mass of log-t predictions in each bin of remaining length, given the generated tokens."""
    reach = np.asarray(generated, np.float64)[:, None] + np.asarray(bins.edges)
    return bins.between(LogTColumns(mu, sigma, np.full(len(mu), np.inf), nu).survival(reach))


def mass_of(bins: Bins, prediction: LengthDistribution) -> Floats:
    """Return the mass of a prediction of remaining length in each bin."""
    return np.asarray(bins.between(np.array([[prediction.survival(edge) for edge in bins.edges]]))[0])


def of_prediction(prediction: LengthDistribution) -> tuple[float, float]:
    """Return mu and sigma of a prediction; from its quartiles if it is not a log-t."""
    if isinstance(prediction, LogT):
        return prediction.mu, prediction.sigma
    low, middle, high = (float(np.log(max(1.0, prediction.quantile(q)))) for q in (0.25, 0.5, 0.75))
    return middle, max(0.01, (high - low) / _QUARTILES_APART)


KIND: Final = "probe"
DEFAULT: Final = "default"
"""The name of the packaged probe, which is for the embedded LLM."""
SHIPPED: Final = MODELS / "probe.lw"
EVERY: Final = 16
_NETWORK: Final = "network.npz"
_SETTINGS: Final = "probe.json"


CLIP: Final = 4.0
"""Standardised states are clipped here: single tokens can have extreme values."""


@dataclass(frozen=True, eq=False)
class ProbeNetwork(Weights):
    """x = clip((state - centre) / spread); h = relu([x, f] A + a); logits = h B + f S + b."""

    centre: Float32s
    spread: Float32s
    a: Float32s
    a_bias: Float32s
    b: Float32s
    b_bias: Float32s
    skip: Float32s

    @classmethod
    def mean(cls, networks: Sequence[Self]) -> Self:
        """Return one network whose logits are the mean of several networks'; they must standardise alike."""
        share = np.float32(1.0 / len(networks))
        found = {name: np.concatenate([getattr(one, name) for one in networks], axis=-1) for name in ("a", "a_bias")}
        found["b"] = np.concatenate([one.b for one in networks]) * share
        found |= {name: np.mean([getattr(one, name) for one in networks], axis=0) for name in ("b_bias", "skip")}
        return cls.of({"centre": networks[0].centre, "spread": networks[0].spread, **found})

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return len(self.centre)

    def standardise(self, states: NDArray[Any]) -> Float32s:
        """Return standardised states, clipped."""
        return np.clip((np.asarray(states, np.float32) - self.centre) / self.spread, -CLIP, CLIP)

    def probabilities(self, states: NDArray[Any], features: Float32s) -> NDArray[np.float64]:
        """Return (n, bins) that sum to 1."""
        hidden = np.concatenate([self.standardise(states), features], axis=1) @ self.a + self.a_bias
        logits = (np.maximum(hidden, 0.0) @ self.b + features @ self.skip + self.b_bias).astype(np.float64)
        return np.asarray(special.softmax(logits, axis=1))


@dataclass(frozen=True, eq=False)
class Probe:
    """Predicts the remaining length from the hidden state after `layer` layers.

    `inputs` names further inputs: "prompt" (the prediction from the prompt), "entropy" (of the next token, nats). The
    state after `generated` tokens is the one that the next token is sampled from.
    """

    layer: int
    bins: Bins
    network: ProbeNetwork
    inputs: tuple[str, ...] = (PROMPT,)
    smoothing: Smoothing = field(default_factory=Smoothing)
    every: int = EVERY
    llm: str = ""
    card: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Probe({self.llm!r}, layer {self.layer}, {len(self.bins)} bins)"

    def probabilities(
        self,
        states: NDArray[Any],
        generated: ArrayLike,
        *,
        mu: ArrayLike = 0.0,
        sigma: ArrayLike = 0.0,
        left: ArrayLike = 0.0,
        entropy: ArrayLike = 0.0,
    ) -> Floats:
        """Return (n, bins) for n states, before smoothing."""
        columns = np.broadcast_arrays(*(np.asarray(each, np.float64) for each in (generated, mu, sigma, left, entropy)))
        age, mu_, sigma_, left_, entropy_ = (each.reshape(-1) for each in columns)
        inputs = features(self.inputs, age, mu=mu_, sigma=sigma_, left=left_, entropy=entropy_)
        return self.network.probabilities(np.atleast_2d(states), inputs)

    def prediction(self, probabilities: Floats, cap: int) -> BaseDistribution:
        """Return one row as a prediction of the remaining length, at most `cap` tokens; mass beyond is at the cap."""
        return Point(0) if cap < 1 else Histogram(self.bins.edges, probabilities, cap)

    def read(
        self,
        readings: Sequence[Reading],
        states: NDArray[Any],
        generated: Sequence[int],
        entropy: ArrayLike = 0.0,
    ) -> list[BaseDistribution]:
        """Read a state of each of these requests, all at once; return the remaining lengths after `generated`.

        The state after `generated` tokens is the one that the next token is sampled from. If it raises, no reading
        has changed.
        """
        inputs: dict[str, ArrayLike] = {"entropy": entropy}
        if PROMPT in self.inputs:
            left = _left([each.prompt for each in readings], generated)
            inputs |= {"mu": [each.mu for each in readings], "sigma": [each.sigma for each in readings], "left": left}
        masses = self.probabilities(states, generated, **inputs)
        gaps = np.array([each.gap(tokens) for each, tokens in zip(readings, generated, strict=True)])
        for gap in np.unique(gaps).tolist():
            rows = np.flatnonzero(gaps == gap)
            if gap == _NOT_READ:
                prior = [mass_of(self.bins, readings[row].prompt.remaining(generated[row])) for row in rows]
                masses[rows] = self.smoothing.first(np.array(prior), masses[rows])
            elif gap > 0:
                before = np.array([readings[row].mass for row in rows])
                masses[rows] = self.smoothing.step(self.bins, before, gap, masses[rows])
        found = [
            self.prediction(mass, each.cap - tokens)
            for each, tokens, mass in zip(readings, generated, masses, strict=True)
        ]
        for each, tokens, mass, remaining in zip(readings, generated, masses, found, strict=True):
            each.update(tokens, mass, remaining)
        return found

    def follow(self, prediction: LengthDistribution | None = None, cap: int | None = None) -> Reading:
        """Start to follow a request with this prediction from its prompt; None means the wide prior."""
        known = wide_prior() if prediction is None else prediction
        return Reading(self, known, known.cap if cap is None else cap)


_NOT_READ: Final = -1


class Reading:
    """One running request: read every `probe.every` tokens, counted down in between."""

    def __init__(self, probe: Probe, prediction: LengthDistribution, cap: int) -> None:
        self._probe, self.cap = probe, cap
        self.set_prompt_prediction(prediction)
        self.mass: Floats | None = None
        self._at = 0
        self._remaining: BaseDistribution | None = None

    def set_prompt_prediction(self, prediction: LengthDistribution) -> None:
        """Replace the prediction from the prompt, if it arrives late; used from the next reading on."""
        self.prompt = prediction
        self.mu, self.sigma = of_prediction(prediction)

    def due(self, generated: int) -> bool:
        """Return whether the next reading is due; the first state, before any token, is always read."""
        return self.mass is None or generated - self._at >= self._probe.every

    def gap(self, generated: int) -> int:
        """Return the tokens since the last reading, _NOT_READ before the first."""
        return _NOT_READ if self.mass is None else max(0, generated - self._at)

    def read(self, state: NDArray[Any], generated: int, entropy: float = 0.0) -> BaseDistribution:
        """Read one state: `Probe.read`."""
        return self._probe.read([self], np.asarray(state)[None], [generated], entropy)[0]

    def update(self, generated: int, mass: Floats, remaining: BaseDistribution) -> None:
        """Take over what the probe read after `generated` tokens."""
        self.mass, self._at, self._remaining = mass, generated, remaining

    def remaining(self, generated: int) -> LengthDistribution:
        """Return the remaining length by the last reading; before the first, by the prompt."""
        if self._remaining is None:
            return self.prompt.remaining(generated)
        return self._remaining.remaining(max(0, generated - self._at))


def _left(predictions: Sequence[LengthDistribution], generated: Sequence[int]) -> Floats:
    """Return the median remaining length by each prediction; at once for log-t predictions of one nu."""
    log_t = [each for each in predictions if isinstance(each, LogT)]
    if len(log_t) < len(predictions) or len({each.nu for each in log_t}) > 1:
        return np.array(
            [each.remaining(age).quantile(0.5) for each, age in zip(predictions, generated, strict=True)], np.float64
        )
    mu, sigma, cap = np.array([(each.mu, each.sigma, each.cap) for each in log_t], np.float64).T
    return left_by_age(generated, mu, sigma, log_t[0].nu, cap)


def first_error(probe: Probe) -> float:
    """Return the mean absolute error of the first reading, after prefill, over that of the best constant.

    From the card: held-out prompts, the lengths of their answers.
    """
    try:
        figures = probe.card["figures"]
        return float(figures[_SMOOTHED][_FIRST]) / float(figures[_CONSTANT][_FIRST])
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError("its card has no error of the first reading", source="probe", hint="train it again") from error


_SMOOTHED, _CONSTANT, _FIRST = "joint + smoothing", "constant", "0"  # keys of the card's figures


def write_probe(path: Path, probe: Probe) -> None:
    """Write a probe as one model file with its card; weights in half precision."""
    settings = {
        "layer": probe.layer,
        "edges": probe.bins.edges,
        "inputs": probe.inputs,
        **asdict(probe.smoothing),
        "every": probe.every,
        "llm": probe.llm,
    }
    weights = {name: np.asarray(value, np.float16) for name, value in probe.network.arrays().items()}
    parts = {_SETTINGS: json.dumps(settings, indent=1).encode(), _NETWORK: pack_arrays(weights)}
    write_model_file(path, {**probe.card, "kind": KIND}, parts)


def probe_path(name: str | Path) -> Path:
    """Return the path of the packaged probe or of the named file."""
    if name == DEFAULT:
        return SHIPPED
    try:
        return model_path(name)
    except InputError as error:
        hint = f"give {DEFAULT}, or a file that `lengthwise probe train` wrote"
        raise InputError(f"probe '{name}' is not known", hint=hint) from error


def load_probe(name: str | Path) -> Probe:
    """Load the packaged probe (`default`), or one from a model file."""
    path = probe_path(name)
    file = read_model_file(path)
    if file.kind != KIND:
        raise InputError(f"holds a '{file.kind}'", source=path, field="kind", hint="give what `lengthwise probe` wrote")
    try:
        settings = json.loads(file.part(_SETTINGS, path))
        network = ProbeNetwork.of(unpack_arrays(file.part(_NETWORK, path)))
        probe = Probe(
            layer=int(settings["layer"]),
            bins=Bins(tuple(settings["edges"])),
            network=network,
            inputs=tuple(settings["inputs"]),
            smoothing=Smoothing(settings["carry"], settings["trust"], settings["start"]),
            every=int(settings["every"]),
            llm=settings["llm"],
            card=file.card,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(
            "its parts do not fit together", source=path, hint="the file is broken; get it again"
        ) from error
    if not set(probe.inputs) <= {PROMPT, ENTROPY} or network.b.shape[1] != len(probe.bins):
        raise InputError("its parts do not fit together", source=path, hint="update lengthwise, or get the file again")
    return probe
