"""Rows of a traffic log whose lengths follow a known distribution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.predictors.resolve import predictor_label
from lengthwise.traffic.reader import HEADER, LoggedTraffic, TrafficRow, row_json

FAST = predictor_label("fast")
PLAIN = TrafficRow(
    time=1e9, request_id="r", tenant="default", model="m", engine="engine-0", input_tokens=5, max_tokens=None, names="",
    blocks="", predictor=FAST, source="predictor", prediction=(5.0, 0.5), predicted=(5.0, 0.5), history=(4.0, 1.0),
    output_tokens=100, censored=False, finish_reason="stop", wait_s=0.0, first_byte_s=0.1, total_s=1.0,
)  # fmt: skip


def made(n: int, *, seed: int = 0, shift: float = 0.0, spread: float = 0.5, **fields: Any) -> list[TrafficRow]:
    """Return `n` rows, one per minute, whose log lengths are predicted mu + `shift` + `spread` * t."""
    rng = np.random.default_rng(seed)
    mu = rng.normal(5.0, 1.0, n)
    y = mu + shift + spread * rng.standard_t(3.5, n)
    tokens = np.maximum(1, np.rint(np.exp(np.clip(y, 0, 9)))).astype(int)
    return [
        PLAIN._replace(
            time=1e9 + 60.0 * i,
            request_id=f"r-{i}",
            prediction=(float(mu[i]), 0.5),
            predicted=(float(mu[i]), 0.5),
            history=(5.0, 1.2),
            output_tokens=int(tokens[i]),
            **fields,
        )
        for i in range(n)
    ]


def write(folder: Path, rows: list[TrafficRow]) -> Path:
    """Write the rows as one part of a log and return its folder."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(HEADER) + "\n", *map(row_json, rows)]
    (folder / "traffic-1-1.jsonl").write_text("".join(lines))
    return folder


def traffic(rows: list[TrafficRow]) -> LoggedTraffic:
    return LoggedTraffic.of(rows, "made up")
