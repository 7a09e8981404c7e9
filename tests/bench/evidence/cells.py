"""Finished cells out of thin air: a queue of one server under an order, so that what must come out is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.bench.evidence.plan import ORACLE, Cell, capacity_cell
from lengthwise.bench.evidence.store import Store
from lengthwise.simulator.metrics import summarise

SETTINGS = {
    "n": 40,
    "own_n": 40,
    "own_lengths": 500,
    "slots": 1,
    "seed": 0,
    "scale": 0.15,
    "cap": 256,
    "longest_prompt": 1024,
    "data": "CASTILLO",
    "own_server": False,
}


def lengths_of(repeat: int, n: int = 40) -> NDArray[np.int64]:
    return np.random.default_rng(repeat).integers(1, 100, n)


def served_in(order: Callable[[int], float], lengths: NDArray[np.int64], sent: NDArray[np.float64]) -> dict[str, Any]:
    """One server, a token a second, the next by `order`; the first token comes at once."""
    waiting, now = set(range(len(lengths))), 0.0
    first, finished = np.zeros(len(lengths)), np.zeros(len(lengths))
    while waiting:
        here = [row for row in waiting if sent[row] <= now] or [min(waiting, key=lambda row: sent[row])]
        row = min(here, key=order)
        now = max(now, sent[row])
        first[row], now = now, now + float(lengths[row])
        finished[row] = now
        waiting.remove(row)
    return {"sent_s": sent, "first_token_s": first, "finished_s": finished}


def put(store: Store, cell: Cell, *, noise: float = 0.0, faster: float = 1.0, lengths: Any = None) -> None:
    """A cell whose order is that of arrival for fcfs, else by length disturbed by noise."""
    true = lengths_of(cell.repeat) if lengths is None else lengths
    rng = np.random.default_rng(7)
    predicted = np.log(true) + noise * rng.standard_normal(len(true))
    sent = np.arange(len(true), dtype=np.float64) * (0.0 if cell.load is None else 40.0)
    times = served_in((lambda row: row) if cell.stock else (lambda row: predicted[row]), true, sent)
    times = {name: values / faster for name, values in times.items()}
    summary = summarise(
        sent=times["sent_s"], first_token=times["first_token_s"], finish=times["finished_s"], output_tokens=true
    ).to_dict()
    told = {
        "n": len(true),
        "cap": 256,
        "took_s": 60.0,
        "summary": {**summary, "preemptions": 0},
        "counts": {"left_out": {"prompts over 1,024 tokens": 3}},
        "cpu": {"predictor_s": 0.5, "engine_s": 10.0, "schedule_ms_per_step": 0.2},
        "machine": {"cpu": "one of thin air", "cores": 2, "load_before": [0.5, 0.5, 0.5]},
        "versions": {"vllm": "0.32.0"},
    }
    columns = {"row": np.arange(len(true)), **times, "output_tokens": true}
    columns["prediction_mu"] = pa.nulls(len(true), pa.float64()) if cell.stock else predicted
    store.fresh(cell)
    store.write(cell, told, pa.table(columns))


def headline(store: Store, repeats: int = 3) -> None:
    """What the first table needs, with true lengths better than predictions and both better than fcfs."""
    put(store, capacity_cell("a"))
    for repeat in range(repeats):
        for load in (0.7, 1.1):
            put(store, Cell("a", "fcfs", "none", load, repeat))
            put(store, Cell("a", "lengthwise", "default", load, repeat), noise=0.5)
        put(store, Cell("a", "sjf", "default", 1.1, repeat), noise=0.5)
        put(store, Cell("a", "lengthwise", ORACLE, 1.1, repeat))
