"""The pace of a measurement: found from busy engines' steps, some slower than they were, and kept in the folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.bench.evidence.bench import Bench
from lengthwise.bench.evidence.cell import CellFailedError
from lengthwise.bench.evidence.pace import SLACK, known_pace, write_pace
from lengthwise.bench.evidence.store import Store
from lengthwise.bench.evidence.traffic import Sizes
from lengthwise.engines.steps import EngineFacts, step_content, write_steps
from lengthwise.errors import InputError
from lengthwise.simulator.costs import StepCost

COST = StepCost(0.02, 0.03, 1e-4, 1e-8, 2e-3, 1e-6)
FACTS = EngineFacts("vllm", "some-llm", 10_000, 16, 2048, 4, 2048, prefix_caching=True, chunked_prefill=False)


def busy(folder: Path, seed: int) -> Path:
    """Steps that took exactly what COST says."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    rows = []
    for _ in range(400):
        contexts = rng.integers(10, 900, rng.integers(0, 5)).tolist()
        prompts = rng.integers(10, 900, rng.integers(0 if contexts else 1, 3)).tolist()
        step = step_content([(each - 1, 1) for each in contexts] + [(0, each) for each in prompts])
        seconds = COST.step_s([(0, each) for each in prompts], contexts)
        rows.append((0.0, seconds, *step, 0, len(contexts), 0.0))
    write_steps(folder / "steps.parquet", np.array(rows), FACTS)
    return folder


def test_a_pace_is_what_busy_engines_took_and_some_more(tmp_path: Path) -> None:
    assert known_pace(tmp_path) is None
    engines = [busy(tmp_path / str(seed), seed) for seed in range(2)]
    pace = write_pace(tmp_path, engines)
    assert asdict(pace) == pytest.approx({name: SLACK * seconds for name, seconds in asdict(COST).items()}, rel=1e-3)
    assert known_pace(tmp_path) == pace


def test_a_broken_pace_is_named(tmp_path: Path) -> None:
    (tmp_path / "pace.json").write_text("{")
    with pytest.raises(InputError, match=r"pace\.json"):
        known_pace(tmp_path)


def test_a_measurement_of_several_engines_finds_its_pace_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Path] = []

    def run_cell(run: Any, traffic: Any, folder: Path, *_: Any) -> None:
        assert run.pace is None, "as fast as they can"
        assert len(traffic.prompts) == 8
        ran.append(busy(folder, len(ran)))

    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.setattr("lengthwise.bench.evidence.bench.run_cell", run_cell)
    for _ in range(2):
        bench = Bench(Store(tmp_path), Sizes(n=8), lambda _: None, lambda *_: None, at_once=3)
        bench.begin()
        assert bench._pace == known_pace(tmp_path)
    assert len(ran) == 3


def test_where_vllm_compiles_one_engine_is_started_alone_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    def run_cell(_run: Any, _traffic: Any, folder: Path, *_: Any) -> None:
        did.append("ran")
        busy(folder, 0)

    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.setattr("lengthwise.bench.evidence.bench.run_cell", run_cell)
    monkeypatch.setattr("lengthwise.bench.evidence.bench.compile_once", lambda *_: did.append("compiled"))
    Bench(Store(tmp_path), Sizes(n=8), lambda _: None, lambda *_: None, compiled=True, at_once=2).begin()
    assert did == ["compiled", "ran", "ran"]


def test_a_pace_that_cannot_be_found_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_cell(*_: Any) -> None:
        raise CellFailedError("the engine did not start")

    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.setattr("lengthwise.bench.evidence.bench.run_cell", run_cell)
    bench = Bench(Store(tmp_path), Sizes(n=8), lambda _: None, lambda *_: None, at_once=2)
    with pytest.raises(InputError, match="the engine did not start"):
        bench.begin()
