"""Rows of a traffic log whose lengths follow a known distribution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.predictors.resolve import predictor_label
from lengthwise.traffic.log import HEADER, line_of
from lengthwise.traffic.reader import LoggedTraffic
from lengthwise.traffic.rows import RequestRow

FAST = predictor_label("fast")
PLAIN = RequestRow(
    arrival_s=1e9, started_s=1e9, first_token_s=1e9 + 0.1, finished_s=1e9 + 1.0, finish_reason="stop", request_id="r",
    tenant="default", llm="m", engine="engine-0", input_tokens=5, output_tokens=100, source="predictor", predictor=FAST,
    mu=5.0, sigma=0.5, predictor_mu=5.0, predictor_sigma=0.5, history_mu=4.0, history_sigma=1.0,
)  # fmt: skip


def made(n: int, *, seed: int = 0, shift: float = 0.0, spread: float = 0.5, **fields: Any) -> list[RequestRow]:
    """Return `n` rows, one per minute, whose log lengths are predicted mu + `shift` + `spread` * t."""
    rng = np.random.default_rng(seed)
    mu = rng.normal(5.0, 1.0, n)
    y = mu + shift + spread * rng.standard_t(3.5, n)
    tokens = np.maximum(1, np.rint(np.exp(np.clip(y, 0, 9)))).astype(int)
    return [
        PLAIN._replace(
            arrival_s=1e9 + 60.0 * i,
            request_id=f"r-{i}",
            mu=float(mu[i]),
            sigma=0.5,
            predictor_mu=float(mu[i]),
            predictor_sigma=0.5,
            history_mu=5.0,
            history_sigma=1.2,
            output_tokens=int(tokens[i]),
            **fields,
        )
        for i in range(n)
    ]


def write(folder: Path, rows: list[RequestRow]) -> Path:
    """Write the rows as one part of a log and return its folder."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(HEADER) + "\n", *map(line_of, rows)]
    (folder / "traffic-1-1.jsonl").write_text("".join(lines))
    return folder


def traffic(rows: list[RequestRow]) -> LoggedTraffic:
    return LoggedTraffic.of(rows, "made up")
