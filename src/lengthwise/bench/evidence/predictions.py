"""What a predictor predicts of a cell's requests when they come, kept beside what they turned out to be.

Without what the engine learns online, so that it is the same for every cell of a repeat.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.bench.evidence.cell import Run
from lengthwise.bench.evidence.plan import ORACLE
from lengthwise.bench.evidence.traffic import PLAYED, Traffic
from lengthwise.engines.forced_lengths import ForcedLengthPredictor, ForcedLengths
from lengthwise.predictors.contract import LengthPredictor, PredictionInput, as_logt, render_chat
from lengthwise.predictors.resolve import load_predictor

Columns = tuple[NDArray[np.float64], NDArray[np.float64]]


def first_predictions(run: Run, traffic: Traffic, llm: str) -> Columns | None:
    """The log of the median and the spread of each prediction; None for stock vLLM, which has none."""
    if run.cell.stock:
        return None
    if run.cell.predictor == ORACLE:
        told = traffic.lengths if run.true_tokens is None else run.true_tokens
        return np.log(np.maximum(1, told)), np.zeros(len(told))
    predictor: LengthPredictor = load_predictor(run.predictor)
    if run.cell.setting == "a":
        predictor = ForcedLengthPredictor(predictor, ForcedLengths(PLAYED, run.sizes.scale))
    inputs = [
        PredictionInput(render_chat([{"role": "user", "content": text}]), llm, traffic.cap, prompt_tokens=int(tokens))
        for text, tokens in zip(traffic.prompts, traffic.prompt_tokens, strict=True)
    ]
    found = as_logt(predictor.predict(inputs))
    return found.mu, found.sigma


def with_predictions(requests: pa.Table, predictions: Columns | None) -> pa.Table:
    """The requests with `prediction_mu` and `prediction_sigma`, nulls where there is no prediction."""
    rows = requests["row"].to_numpy()
    for place, name in enumerate(("prediction_mu", "prediction_sigma")):
        column = pa.nulls(len(rows), pa.float64()) if predictions is None else pa.array(predictions[place][rows])
        requests = requests.append_column(name, column)
    return requests
