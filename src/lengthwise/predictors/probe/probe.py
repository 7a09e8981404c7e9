"""A probe: its network in NumPy, its file, and its readings of one running request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import BaseDistribution, Histogram, LengthDistribution, Point, wide_prior
from lengthwise.predictors.model_file import Weights, pack_arrays, read_model_file, unpack_arrays, write_model_file
from lengthwise.predictors.probe.bins import ENTROPY, PROMPT, Bins, Smoothing, features, mass_of, of_prediction
from lengthwise.predictors.resolve import MODELS, model_path

Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]

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
        mass = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(mass / mass.sum(axis=1, keepdims=True))


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

    def follow(self, prediction: LengthDistribution | None = None, cap: int | None = None) -> Reading:
        """Start to follow a request with this prediction from its prompt; None means the wide prior."""
        known = wide_prior() if prediction is None else prediction
        return Reading(self, known, known.cap if cap is None else cap)


class Reading:
    """One running request: read every `probe.every` tokens, counted down in between."""

    def __init__(self, probe: Probe, prediction: LengthDistribution, cap: int) -> None:
        self._probe, self._prompt, self._cap = probe, prediction, cap
        self._mu, self._sigma = of_prediction(prediction)
        self._mass: Floats | None = None
        self._at = 0
        self._remaining: BaseDistribution | None = None

    @property
    def prompt(self) -> LengthDistribution:
        """The prediction from the prompt."""
        return self._prompt

    def set_prompt_prediction(self, prediction: LengthDistribution) -> None:
        """Replace the prediction from the prompt, if it arrives late; used from the next reading on."""
        self._prompt = prediction
        self._mu, self._sigma = of_prediction(prediction)

    def due(self, generated: int) -> bool:
        """Return whether the next reading is due; the first state, before any token, is always read."""
        return self._mass is None or generated - self._at >= self._probe.every

    def read(self, state: NDArray[Any], generated: int, entropy: float = 0.0) -> BaseDistribution:
        """Read the state that token `generated` + 1 is sampled from; return the remaining length after `generated`."""
        inputs: dict[str, float] = {"entropy": entropy}
        if PROMPT in self._probe.inputs:
            left = self._prompt.remaining(generated).quantile(0.5)
            inputs |= {"mu": self._mu, "sigma": self._sigma, "left": left}
        mass = self._probe.probabilities(state, generated, **inputs)[0]
        if self._mass is None:
            prior = mass_of(self._probe.bins, self._prompt.remaining(generated))
            mass = self._probe.smoothing.first(prior, mass)
        elif generated > self._at:
            mass = self._probe.smoothing.step(self._probe.bins, self._mass, generated - self._at, mass)
        self._mass, self._at = mass, generated
        self._remaining = self._probe.prediction(mass, self._cap - generated)
        return self._remaining

    def remaining(self, generated: int) -> LengthDistribution:
        """Return the remaining length by the last reading; before the first, by the prompt."""
        if self._remaining is None:
            return self._prompt.remaining(generated)
        return self._remaining.remaining(max(0, generated - self._at))


def write_probe(path: Path, probe: Probe) -> None:
    """Write a probe as one model file with its card; weights in half precision."""
    settings = {
        "layer": probe.layer,
        "edges": probe.bins.edges,
        "inputs": probe.inputs,
        "carry": probe.smoothing.carry,
        "trust": probe.smoothing.trust,
        "start": probe.smoothing.start,
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
