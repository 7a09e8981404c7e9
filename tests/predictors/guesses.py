"""A predictor whose predictions, failures and hangs a test controls."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from lengthwise.predictors.contract import LogTPredictions, PredictionInput


@dataclass
class Guess:
    """Predicts the last word of the prompt, a number of tokens; raises if it is not a number.

    While the gate is closed it hangs.
    """

    gate: threading.Event = field(default_factory=threading.Event)
    inside: threading.Event = field(default_factory=threading.Event)
    predicted: list[str] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        self.calls += 1
        self.inside.set()
        assert self.gate.wait(60), "a gate was left closed"
        medians = [float(each.text.split()[-1]) for each in inputs]
        self.predicted += [each.text for each in inputs]
        return LogTPredictions.of([math.log(each) for each in medians], 0.1, [each.cap for each in inputs])
