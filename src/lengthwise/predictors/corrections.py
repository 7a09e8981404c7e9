"""Corrections of a predictor by LLM and tenant: its medians times exp(shift), its spreads times factor.

They need lengths and predictions only, no text. `fit_corrections` estimates both as `calibration` does, for an LLM with
the weight n / (n + 20) against all, and for a tenant against its LLM. A model file stores them as `corrections.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.calibration import MIN_LENGTHS, Adjustment, adjusted, fit_calibration
from lengthwise.predictors.contract import (
    LoadedPredictor,
    LogTPredictions,
    PredictionInput,
    Predictions,
    as_inputs,
    as_logt,
)
from lengthwise.predictors.model_file import CORRECTIONS

Floats = NDArray[np.float64]
Corrections = Mapping[tuple[str, str | None], Adjustment]
"""By LLM and tenant; the tenant None stands for those not among them."""


@dataclass(eq=False)
class CorrectedPredictor:
    """The predictions of `base`, corrected for some LLMs and tenants."""

    base: LoadedPredictor
    corrections: Corrections
    card: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"CorrectedPredictor({self.base!r}, {len(self.corrections)} corrections)"

    @property
    def llms(self) -> tuple[str, ...]:
        """The LLMs it knows."""
        return self.base.llms

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> Predictions:
        """Return one prediction for each input, in order; bare prompts need as many LLM names."""
        asked = as_inputs(inputs, llms)
        found = [adjustment_of(self.corrections, each.llm, each.tenant) for each in asked]
        predictions = self.base.predict(asked)
        if all(each == Adjustment() for each in found):
            return predictions
        return adjusted(as_logt(predictions), found)


def adjustment_of(corrections: Corrections, llm: str, tenant: str | None) -> Adjustment:
    """Return the correction of a request: its tenant's, else its LLM's, else none."""
    return corrections.get((llm, tenant)) or corrections.get((llm, None)) or Adjustment()


def corrected(corrections: Corrections, llms: Sequence[str], tenants: Sequence[str], prediction: Floats) -> Floats:
    """Return corrected mu and sigma (n, 2)."""
    found = [adjustment_of(corrections, llm, tenant) for llm, tenant in zip(llms, tenants, strict=True)]
    shift, factor = np.array([each.shift for each in found]), np.array([each.factor for each in found])
    return np.stack([prediction[:, 0] + shift, prediction[:, 1] * factor], axis=1)


def fit_corrections(
    llms: Sequence[str], tenants: Sequence[str], prediction: Floats, tokens: Floats, censored: NDArray[np.bool_]
) -> dict[tuple[str, str | None], Adjustment]:
    """Fit corrections of predictions (n, 2) to lengths; {} if there are too few."""
    names, groups = np.array(llms, object), np.array(tenants, object)
    by_llm = _fit(names, prediction, tokens, censored)
    found: dict[tuple[str, str | None], Adjustment] = {(llm, None): each for llm, each in by_llm.items()}
    for llm, own in by_llm.items():
        rows = names == llm
        if len(set(groups[rows])) < 2:
            continue
        rest = np.stack([prediction[rows, 0] + own.shift, prediction[rows, 1] * own.factor], axis=1)
        by_tenant = _fit(groups[rows], rest, tokens[rows], censored[rows])
        found |= {(llm, tenant): composed(own, each) for tenant, each in by_tenant.items()}
    return found


def composed(first: Adjustment, second: Adjustment) -> Adjustment:
    """Return one adjustment after another."""
    return Adjustment(first.shift + second.shift, first.factor * second.factor, second.prompts)


def _fit(
    names: NDArray[np.object_], prediction: Floats, tokens: Floats, censored: NDArray[np.bool_]
) -> dict[str, Adjustment]:
    if len(names) < MIN_LENGTHS:
        return {}
    caps = np.maximum(tokens, 1.0)
    columns = LogTPredictions.of(prediction[:, 0], prediction[:, 1], caps)
    fitted = fit_calibration(columns, names.tolist(), tokens, censored=censored)
    return {name: each for name, each in fitted.by_llm.items() if each.prompts >= MIN_LENGTHS}


def to_part(corrections: Corrections) -> bytes:
    """Return the part of a model file that `from_part` reads."""
    rows = [{"llm": llm, "tenant": tenant, **asdict(each)} for (llm, tenant), each in corrections.items()]
    return json.dumps(rows, indent=1).encode()


def from_part(data: bytes, source: str | Path) -> dict[tuple[str, str | None], Adjustment]:
    """Read corrections; InputError unless every number is finite and every factor above 0."""
    try:
        found = {}
        for row in json.loads(data):
            each = Adjustment(float(row["shift"]), float(row["factor"]), int(row["prompts"]))
            if not (math.isfinite(each.shift) and math.isfinite(each.factor) and each.factor > 0):
                raise ValueError("not a correction")
            found[(str(row["llm"]), None if row["tenant"] is None else str(row["tenant"]))] = each
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"part '{CORRECTIONS}' is invalid", source=source, hint="adapt it again") from error
    return found
