"""Routers over a grid: every router in every place, and the targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.router_grid import BASELINES, STUDY, RouterGrid, measure, tables, verdicts
from experiments.study import Run
from lengthwise.simulator.tasks import ResultCache
from tests.experiments.samples import check_output

SMALL = RouterGrid(requests=64, loads=(0.9,), engines=(2,), seeds=2, workloads=("react",))


def test_every_router_is_compared_in_every_place(tmp_path: Path) -> None:
    found = measure(Run(ResultCache(tmp_path)), SMALL)
    (each,) = found
    assert tuple(each.others) == BASELINES
    assert each.e2e(each.best).ratio == max(each.e2e(router).ratio for router in BASELINES)
    assert [row[:3] for row in tables(found)[0].rows] == [["react", "0.9", "2"]]
    assert len(verdicts(found)) == 3
    check_output(STUDY.output(found))


def test_a_missing_trace_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_DATA", "")
    assert STUDY.needs(SMALL) is None
    assert "mooncake_conversation" in (STUDY.needs(RouterGrid()) or "")
