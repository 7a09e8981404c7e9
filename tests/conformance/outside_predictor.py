"""Predictors outside the package, named by dotted path in the tests."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from lengthwise.predictors.contract import LogTPredictions, PredictionInput


class LastLength:
    """Predicts the last complete answer's length to the same prompt, else 100 tokens."""

    def __init__(self) -> None:
        self._lengths: dict[str, int] = {}

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        medians = [self._lengths.get(each.text, 100) for each in inputs]
        return LogTPredictions.of([math.log(median) for median in medians], 0.02, [each.cap for each in inputs])

    def observe(self, request: PredictionInput, tokens: int, *, censored: bool = False) -> None:
        if tokens == 13:
            raise ValueError("an unlucky length")
        if not censored:
            self._lengths[request.text] = tokens

    def state(self) -> bytes:
        return json.dumps(self._lengths).encode()

    def restore(self, state: bytes) -> None:
        self._lengths = json.loads(state)


class LastLengthByTenant(LastLength):
    """Keeps tenants apart itself, where `tenants_apart` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants_apart = False

    def _own(self, request: PredictionInput) -> PredictionInput:
        return replace(request, text=f"{request.tenant}: {request.text}") if self.tenants_apart else request

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        return super().predict([self._own(each) for each in inputs])

    def observe(self, request: PredictionInput, tokens: int, *, censored: bool = False) -> None:
        super().observe(self._own(request), tokens, censored=censored)


class OnlyObserves:
    """Not one that learns: its state cannot be saved."""

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        return LogTPredictions.of([0.0] * len(inputs), 1.0, [each.cap for each in inputs])

    def observe(self, request: PredictionInput, tokens: int, *, censored: bool = False) -> None: ...
