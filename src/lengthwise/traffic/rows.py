"""The record of a finished request."""

from __future__ import annotations

from typing import Literal

PredictionSource = Literal["hint", "predictor", "history", "prior"]
"""Where the prediction of a request comes from."""
