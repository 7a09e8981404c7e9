"""What a predictor believes of a cell's requests when they come, kept beside what they turned out to be.

Without what the engine learns online, so that it is the same for every cell of a repeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lengthwise.engines.plays import Played, Plays
from lengthwise.experiments.evidence.plan import ORACLE
from lengthwise.experiments.evidence.traffic import PLAYED
from lengthwise.predictors.calibration import as_logt
from lengthwise.predictors.contract import PredictionInput
from lengthwise.predictors.load import load_predictor
from lengthwise.predictors.render import render_chat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.experiments.evidence.cell import Run
    from lengthwise.experiments.evidence.traffic import Traffic
    from lengthwise.predictors.contract import LengthPredictor

    Columns = tuple[NDArray[np.float64], NDArray[np.float64]]


def first_beliefs(run: Run, traffic: Traffic, llm: str) -> Columns | None:
    """The log of the median and the spread of each belief; None for stock vLLM, which has none."""
    if run.cell.stock:
        return None
    if run.cell.predictor == ORACLE:
        told = traffic.lengths if run.true_tokens is None else run.true_tokens
        return np.log(np.maximum(1, told)), np.zeros(len(told))
    predictor: LengthPredictor = load_predictor(run.predictor)
    if run.cell.setting == "a":
        predictor = Played(predictor, Plays(PLAYED, run.sizes.scale))
    inputs = [
        PredictionInput(render_chat([{"role": "user", "content": text}]), llm, traffic.cap, prompt_tokens=int(tokens))
        for text, tokens in zip(traffic.prompts, traffic.prompt_tokens, strict=True)
    ]
    found = as_logt(predictor.predict(inputs))
    return found.mu, found.sigma


def with_beliefs(requests: pa.Table, beliefs: Columns | None) -> pa.Table:
    """The requests with `belief_mu` and `belief_sigma`, nulls where there is no belief."""
    rows = requests["row"].to_numpy()
    for place, name in enumerate(("belief_mu", "belief_sigma")):
        column = pa.nulls(len(rows), pa.float64()) if beliefs is None else pa.array(beliefs[place][rows])
        requests = requests.append_column(name, column)
    return requests
