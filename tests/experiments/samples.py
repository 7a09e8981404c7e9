"""A small table of length samples with a known truth, and a check that every study's output passes."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go

from experiments.study import Output
from lengthwise.lengths.families import LOGT
from lengthwise.reports.tables import to_json
from lengthwise.workloads import LengthSamples
from lengthwise.workloads.length_families import Effort

QUICK = Effort(critical_draws=40, evidence_rows=100, power_samples=(10,), power_prompts=25)


def made_up(prompts: int = 60, llms: tuple[str, ...] = ("owner/a", "owner/b"), seed: int = 0) -> LengthSamples:
    """Log-t lengths, with one constant row, one degenerate sample and one degenerate row."""
    rng = np.random.default_rng(seed)
    rows = prompts * len(llms)
    params = np.column_stack([rng.normal(5.5, 0.6, rows), np.full(rows, 0.2), np.full(rows, 3.5)])
    lengths = np.clip(np.rint(LOGT.draw(rng, params, 10)), 1, 8000).astype(np.int64)
    lengths[0] = 57
    lengths[1, 3] = 15_000
    lengths[2, :5] = 15_000
    return LengthSamples.from_table(
        {
            "corpus": np.repeat(["Mbpp", "DollyDataset"], [rows // 2, rows - rows // 2]).tolist(),
            "split": ["test"] * rows,
            "prompt_id": [f"p{i // len(llms)}" for i in range(rows)],
            "llm": list(llms) * prompts,
            "input_tokens": rng.integers(30, 300, rows).tolist(),
            "lengths": lengths.tolist(),
        },
        origin="made up",
    )


def check_output(output: Output) -> None:
    """Every row has a cell per column, Plotly knows every name in every figure, and the cache returns the same."""
    assert output.tables
    for table in output.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    for figure in output.figures:
        data, layout = json.loads(to_json(figure.data)), json.loads(to_json(figure.layout))
        go.Figure({"data": data, "layout": layout})  # raises on a name or a value that Plotly does not know
    page = output.html()
    assert page.startswith("<!doctype html>")
    assert page.count('drawFigure("figure') >= len(output.figures)
    again = Output.from_cache(json.loads(json.dumps(output.to_cache())))
    assert again.to_cache() == output.to_cache()  # not the page, which states the time
