"""A small version of the measurement on the real engine: the same code, a few requests, two engines at once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from lengthwise.bench.evidence.analysis import analyse
from lengthwise.bench.evidence.bench import Bench
from lengthwise.bench.evidence.pace import known_pace
from lengthwise.bench.evidence.page import markdown
from lengthwise.bench.evidence.plan import Asked, Cell
from lengthwise.bench.evidence.store import Store
from lengthwise.bench.evidence.traffic import Sizes
from lengthwise.engines.fit import StepTimes
from lengthwise.engines.steps import read_steps
from tests.engines.need import need_vllm

pytestmark = pytest.mark.engine


def test_stock_and_ours_are_measured_on_the_same_requests_by_a_real_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_vllm()
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    cells = Asked(["fcfs", "lengthwise"], ["fast"], [1.1], ["a"], repeats=1, at_once=2).cells()
    bench = Bench(Store(tmp_path), Sizes(n=12, slots=2, cap=24), print, lambda *_: None, at_once=2)
    bench.begin()
    bench.run(cells)
    assert not bench.failed
    pace = known_pace(tmp_path)
    assert pace is not None
    ours, stock = (bench.store.read(Cell("a", *order, 1.1)) for order in (("lengthwise", "fast"), ("fcfs", "none")))
    for name in ("prompt", "true_tokens", "output_tokens", "prompt_tokens", "due_s"):
        assert ours.requests[name].to_pylist() == stock.requests[name].to_pylist()
    assert ours.requests["output_tokens"].to_pylist() == ours.requests["true_tokens"].to_pylist()
    assert ours.requests["output_tokens"].to_numpy().max() <= 24
    assert ours.told["summary"]["preemptions"] == 0
    asked_and_answered = ours.told["counts"]["predictions"]
    assert asked_and_answered["asked"] >= 12
    assert asked_and_answered["answered"] == asked_and_answered["asked"]
    assert stock.told["counts"]["predictions"] is None
    assert ours.told["engine"]["plugin"]
    assert not stock.told["engine"]["plugin"]
    # Both kept the same pace, stock vLLM's worker too, and no step was shorter than it was to be.
    assert ours.told["pace"]["cost"] == stock.told["pace"]["cost"] == asdict(pace)
    assert all(told["pace"]["kept"]["steps"] > 10 for told in (ours.told, stock.told))
    steps = StepTimes.of(read_steps(tmp_path / ours.cell.id / "steps.parquet")[0])
    assert steps.seconds.sum() >= 0.95 * steps.at(pace).sum()
    evidence = analyse(bench.store.settings, bench.store.results())
    line = evidence.line("a", 1.1, "lengthwise", "fast")
    assert line is not None
    assert line.mean.low <= line.mean.ratio <= line.mean.high
    assert "All figures" in markdown(evidence, None)
