"""Synthetic measurements: a folder as `lengthwise bench` writes it, with latencies that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lengthwise.bench.episodes import Arm, Kind, TrafficPlan, turns
from lengthwise.bench.store import SCHEMA, BenchStore

Latency = Callable[[Arm, int, np.random.Generator], np.ndarray]


def measured(
    folder: Path, arms: Sequence[Arm], blocks: int, latency: Latency, kinds: Sequence[str] = ("burst",)
) -> BenchStore:
    """Write a measurement in which `latency(arm, block, rng)` gives the E2E latencies of each episode."""
    store = BenchStore(folder)
    store.update(
        {
            "traffic": asdict(TrafficPlan()),
            "arms": [asdict(arm) for arm in arms],
            "requests": 50,
            "capacity": 2.0,
            "data": "made up",
            "left_out": {},
            "machine": "none",
            "engine": {"max_num_seqs": 4},
        }
    )
    for block in turns([Kind.of(kind) for kind in kinds], arms, blocks):
        tables, episodes = [], []
        for turn in block:
            e2e = latency(turn.arm, turn.block, np.random.default_rng(turn.block))
            n = len(e2e)
            columns: dict[str, Any] = {name: [0] * n for name in SCHEMA.names}
            columns |= {
                "kind": [turn.kind.name] * n,
                "block": [turn.block] * n,
                "place": [turn.place] * n,
                "policy": [turn.arm.policy] * n,
                "predictor": [turn.arm.predictor] * n,
                "copy": [turn.arm.copy] * n,
                "request": list(range(n)),
                "finished_s": e2e.tolist(),
                "first_token_s": (0.5 * e2e).tolist(),
                "output_tokens": list(range(1, n + 1)),
                "mu": np.log(np.arange(1, n + 1)).tolist() if turn.arm.predictor == "fast" else [None] * n,
            }
            tables.append(pa.table(columns, schema=SCHEMA))
            facts = {"makespan_s": float(e2e.max()), "schedule_ms": 0.1, "late_s": 0.001, "began": 0.0}
            episodes.append(
                {"kind": turn.kind.name, "block": turn.block, "place": turn.place, **asdict(turn.arm), **facts}
            )
        store.add(episodes, pa.concat_tables(tables))
    return store
