"""Predictors that behave as a test tells them."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lengthwise.predictors.contract import LogTBeliefs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lengthwise.predictors.contract import PredictionInput


@dataclass
class Guess:
    """Believes a prompt's last word, a number of tokens; raises where there is none.

    With the gate closed it hangs, as a predictor might.
    """

    gate: threading.Event = field(default_factory=threading.Event)
    inside: threading.Event = field(default_factory=threading.Event)
    believed: list[str] = field(default_factory=list)
    calls: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTBeliefs:
        self.calls += 1
        self.inside.set()
        assert self.gate.wait(60), "a gate was left closed"
        medians = [float(each.text.split()[-1]) for each in inputs]
        self.believed += [each.text for each in inputs]
        return LogTBeliefs.of([math.log(each) for each in medians], 0.1, [each.cap for each in inputs])
