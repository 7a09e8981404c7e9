"""A predictor and the LLMs it was adapted to: one more question to it for each known LLM, and a sum."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.predictors.adapt.kinds import NAMES, kinds
from lengthwise.predictors.adapt.mixture import Mixture, Tilt
from lengthwise.predictors.calibration import as_logt
from lengthwise.predictors.contract import LogTPredictions, as_inputs
from lengthwise.predictors.load import ADAPTED
from lengthwise.workloads.length_samples import resolve_llm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lengthwise.predictors.contract import PredictionInput, Predictions
    from lengthwise.predictors.load import LoadedPredictor

    Floats = NDArray[np.float64]

_MOST_NAMES: Final = 10_000  # names come from clients: memory stays bounded
_LEAST_LOG, _MOST_LOG = 0.0, 12.0


@dataclass(eq=False)
class AdaptedPredictor:
    """Predictions of `base`, and for adapted LLMs mixtures of its predictions for those it was trained on."""

    base: LoadedPredictor
    adapted: Mapping[str, Mixture]
    card: Mapping[str, Any] = field(default_factory=dict)
    _met: dict[str, Mixture | None] = field(default_factory=dict, repr=False)

    @property
    def llms(self) -> tuple[str, ...]:
        """Every LLM it knows."""
        return tuple(dict.fromkeys([*self.base.llms, *self.adapted]))

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> Predictions:
        """Return one prediction for each input, in order; bare prompts need as many LLM names."""
        asked = as_inputs(inputs, llms)
        found = [self._meet(each.llm) for each in asked]
        if not any(found):
            return self.base.predict(asked)
        questions: list[PredictionInput] = []
        starts = []
        for each, mixture in zip(asked, found, strict=True):
            starts.append(len(questions))
            questions += [each] if mixture is None else [replace(each, llm=llm) for llm in self.base.llms]
        said = as_logt(self.base.predict(questions))
        table = np.stack([said.mu, said.sigma, said.sample_mean, said.sample_std])
        out = table[:, starts]
        for number, (start, mixture) in enumerate(zip(starts, found, strict=True)):
            if mixture is not None:
                known = table[:, None, start : start + len(self.base.llms)]
                out[:, number] = mixed(mixture, known, kinds([asked[number].text]))[:, 0]
        caps = said.columns.cap[starts]
        return LogTPredictions.of(out[0], out[1], caps, nu=said.columns.nu, sample_mean=out[2], sample_std=out[3])

    def _meet(self, name: str) -> Mixture | None:
        """The mixture an LLM's name means; None where the base has to say what it means."""
        if name not in self._met:
            try:
                found = self.adapted.get(resolve_llm(name, self.llms))
            except InputError:
                found = None
            if len(self._met) >= _MOST_NAMES:
                return found
            self._met[name] = found
        return self._met[name]


def mixed(mixture: Mixture, said: Floats, kind: Floats) -> Floats:
    """Mu, sigma, sampling mean and std (4, n, L) of the known LLMs -> those of the new one (4, n).

    Sampling mean and std keep the ratio to the median that they have, by likeness, for the known LLMs.
    """
    mu, sigma = mixture.apply(said[0], said[1], kind)
    mu = np.clip(mu, _LEAST_LOG, _MOST_LOG)
    ratios = [np.log(np.maximum(said[row], 0.5)) - said[0] for row in (2, 3)]
    mean, std = (np.exp(mu + ratio @ mixture.likeness) for ratio in ratios)
    return np.stack([mu, sigma, mean, std])


def to_part(adapted: Mapping[str, Mixture], llms: Sequence[str]) -> bytes:
    """What `from_part` reads."""
    tree = {
        name: {
            "weights": dict(zip(llms, each.weights.tolist(), strict=True)),
            "likeness": dict(zip(llms, each.likeness.tolist(), strict=True)),
            "shift": each.shift,
            "factor": each.factor,
            "tilt": {
                kind: [float(each.tilt.weights[i]), float(each.tilt.centre[i]), float(each.tilt.spread[i])]
                for i, kind in enumerate(NAMES)
            },
        }
        for name, each in adapted.items()
    }
    return json.dumps(tree, indent=1).encode()


def from_part(data: bytes, llms: Sequence[str], source: str | Path) -> dict[str, Mixture]:
    """Mixtures by the names of their LLMs; of other LLMs than these they mean nothing."""
    try:
        return {
            str(name): Mixture(
                np.array([each["weights"][llm] for llm in llms], np.float64),
                np.array([each["likeness"][llm] for llm in llms], np.float64),
                float(each["shift"]),
                float(each["factor"]),
                Tilt(*np.array([each["tilt"][kind] for kind in NAMES], np.float64).T),
            )
            for name, each in json.loads(data).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"part '{ADAPTED}' is not what it should be", source=source, hint="adapt it again") from error
