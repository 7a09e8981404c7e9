"""A trained probe as tables and a page."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np

from lengthwise.reports.probe import probe_document, tables
from lengthwise.traffic.scores import PredictionScores
from lengthwise.training.probe.errors_by_age import (
    BUCKETS,
    CONSTANT,
    HEAT,
    JOINT_SMOOTH,
    PROMPT_BY_AGE,
    PROMPT_ONLY,
    Way,
    bucket_name,
)

if TYPE_CHECKING:
    from lengthwise.training.probe.learn import Trained


def way(name: str, mae: float, *, coverage_90: float = math.nan) -> Way:
    scores = PredictionScores(mae=mae, tau=0.5, coverage_90=coverage_90)
    return Way(name, (scores,) * len(BUCKETS), scores, (mae / 10, 1.5, 2.5))


def trained(*, new: bool = True) -> Trained:
    """Return a result of training without the training, which needs torch."""
    ways = [way(CONSTANT, 40), way(PROMPT_ONLY, 20), way(PROMPT_BY_AGE, 15), way(JOINT_SMOOTH, 10, coverage_90=0.9)]
    smoothing = SimpleNamespace(carry=0.5, trust=0.25, start=1.0)
    bins = len(HEAT.edges) - 1
    found = SimpleNamespace(
        probe=SimpleNamespace(layer=3, smoothing={"carry": 0.5}),
        tried=[SimpleNamespace(layer=3, error=12.0, smoothed=11.0, smoothing=smoothing)],
        scores=ways,
        new_scores=ways[:2] if new else [],
        heat={name: np.eye(bins) for name in (PROMPT_ONLY, PROMPT_BY_AGE, JOINT_SMOOTH)},
        prompts={"held out": 1200, "new": 30},
        capped=0.1,
    )
    return cast("Trained", found)


def test_layers_and_every_predictor_are_rows() -> None:
    layers, held_out, new = tables(trained())
    assert layers.rows == [["3", "12.0", "11.0", "0.5", "0.25", "1"]]
    assert [row[0] for row in held_out.rows] == [CONSTANT, PROMPT_ONLY, PROMPT_BY_AGE, JOINT_SMOOTH]
    assert "1,200 held-out and test prompts" in held_out.title
    assert "30 of them" in new.title
    assert list(held_out.columns[1:-4]) == [bucket_name(*bucket) for bucket in BUCKETS]
    assert all(len(row) == len(table.columns) for table in (layers, held_out, new) for row in table.rows)


def test_a_predictor_without_an_interval_has_a_dash_and_a_ratio_its_interval() -> None:
    row = tables(trained())[1].rows[1]
    assert row[-4:] == ["20.0", "2.00 [1.50, 2.50]", "0.500", "–"]
    assert tables(trained())[1].rows[3][-1] == "90.0 %"


def test_without_new_prompts_there_is_no_table_of_them() -> None:
    assert len(tables(trained(new=False))) == 2


def test_the_page_opens_with_the_ratio_beside_the_papers() -> None:
    shown = probe_document(trained(), Path("probe.lw"))
    page = shown.html()
    assert (
        "<h1>The error of the prompt alone is 2.00 times that of the probe with it (95 % interval 1.50 to 2.50)" in page
    )
    assert page.count('data-figure="figure') == 2
    assert shown.facts["out"] == "probe.lw"


def test_the_constant_is_not_drawn() -> None:
    heatmaps, by_tokens = probe_document(trained(), Path("probe.lw")).figures()
    assert [trace["name"] for trace in by_tokens.data] == [PROMPT_ONLY, PROMPT_BY_AGE, JOINT_SMOOTH]
    assert len(heatmaps.data) == 3
