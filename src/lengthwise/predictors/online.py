"""Calibration that follows an LLM while it serves: a predictor's predictions, corrected by what its answers turn out to be.

For each LLM, with mu_i and sigma_i the predictor's own prediction about answer i:

    log(length_i) = mu_i + shift + factor * sigma_i * T_i,   T Student-t with nu 3.5

shift and factor are a `history.Tracker`'s: steady while nothing drifts, quick when something does. Before anything is
observed they are 0 and 1, with the weight of 20 observations.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.predictors.calibration import Adjustment, as_logt
from lengthwise.predictors.contract import LengthPredictor, LogTPredictions, PredictionInput
from lengthwise.predictors.history import Tracker, remember

FORMAT: Final = 1
_PRIOR_WEIGHT: Final = 20.0
_REMEMBERED: Final = 8192  # predictions waiting for their answer; one that is not among them is made again


class OnlineCalibrated:
    """Any predictor, calibrated online per LLM. One observation costs O(1)."""

    def __init__(self, predictor: LengthPredictor) -> None:
        self.predictor = predictor
        self._trackers: dict[str, Tracker] = {}
        self._waiting: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        """Return one prediction for each input, in order; of another shape than log-t it becomes one."""
        predictions = as_logt(self.predictor.predict(inputs))
        for each, mu, sigma in zip(inputs, predictions.mu.tolist(), predictions.sigma.tolist(), strict=True):
            self._remember(each, mu, sigma)
        found = [self.adjustment(each.llm) for each in inputs]
        return predictions.adjusted([each.shift for each in found], [each.factor for each in found])

    def observe(self, request: PredictionInput, length: int, *, censored: bool = False) -> None:
        """Take in an answer's length; `censored` where it was cut or still runs, so that it is at least this long.

        Tell each answer once: at its end, or where it is cut, or once while it runs. Cutting must not depend on the
        length still to come: by max_tokens, a deadline or the clock it does not.
        """
        mu, sigma = self._prediction(request)
        tracker = remember(self._trackers, request.llm, _start())
        tracker.observe(math.log(max(1, length)) - mu, sigma, censored=censored)

    def adjustment(self, llm: str) -> Adjustment:
        """What is done to this LLM's predictions now."""
        tracker = self._trackers.get(llm)
        return Adjustment() if tracker is None else Adjustment(tracker.location, tracker.scale, tracker.seen)

    def alarms(self, llm: str) -> int:
        """How often this LLM's lengths were found to have moved at once."""
        tracker = self._trackers.get(llm)
        return 0 if tracker is None else tracker.alarms

    def state(self) -> str:
        """What was learned, as JSON; the predictor itself is not in it."""
        trackers = {llm: tracker.to_json() for llm, tracker in self._trackers.items()}
        return json.dumps({"format": FORMAT, "llms": trackers})

    def restore(self, state: str, source: str = "calibration state") -> None:
        """Go on from a saved state."""
        try:
            told = json.loads(state)
            written = int(told["format"])
            if written <= FORMAT:
                self._trackers = {str(llm): _checked(each) for llm, each in told["llms"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError("is not a saved calibration", source=source, hint="delete it to start afresh") from error
        if written > FORMAT:
            raise InputError(f"has format {written}, newer than {FORMAT}", source=source, hint="update lengthwise")

    def _remember(self, request: PredictionInput, mu: float, sigma: float) -> None:
        key = hash(request)  # not the request itself: a prompt may have megabytes
        self._waiting[key] = (mu, sigma)
        self._waiting.move_to_end(key)
        if len(self._waiting) > _REMEMBERED:
            self._waiting.popitem(last=False)

    def _prediction(self, request: PredictionInput) -> tuple[float, float]:
        """What the predictor alone predicts. Kept for the next answer to the same request."""
        known = self._waiting.get(hash(request))
        if known is None:
            predictions = as_logt(self.predictor.predict([request]))
            known = float(predictions.mu[0]), float(predictions.sigma[0])
            self._remember(request, *known)
        return known


def _start() -> Tracker:
    return Tracker.starting(0.0, 1.0, _PRIOR_WEIGHT)


def _checked(state: Mapping[str, Any]) -> Tracker:
    """A tracker that can go on: every number finite, every weight above 0."""
    tracker = Tracker.from_json(state)
    for part in (tracker.slow, tracker.fast):
        numbers = np.array([part.memory, part.location, part.scale, part.count, part.weight, part.squares])
        if not np.isfinite(numbers).all() or min(part.memory - 1, part.scale, part.count, part.weight) <= 0:
            raise ValueError("not a running estimate")
    return tracker
