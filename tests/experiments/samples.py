"""A check that every study's output passes, and a small effort for the study of length families."""

from __future__ import annotations

import json

import plotly.graph_objects as go

from experiments.length_families.analysis import Effort
from experiments.study import Output
from lengthwise.reports.tables import to_json

QUICK = Effort(critical_draws=40, evidence_rows=100, power_samples=(10,), power_prompts=25)


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
    assert page.count('data-figure="figure') >= len(output.figures)
    again = Output.from_cache(json.loads(json.dumps(output.to_cache())))
    assert again.to_cache() == output.to_cache()  # not the page, which states the time
