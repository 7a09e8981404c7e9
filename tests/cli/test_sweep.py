from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app

SWEEP = """\
workload: castillo
fleet: 2*llama-3-8b@a100
limits: {max_num_seqs: 4}
requests: 60
router: [least_load, lengthwise]
policy: fcfs
predictor: [oracle, none]
load: [0.7, 0.9]
seeds: 2
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def invoke(sweep: Path, *options: str) -> Result:
    arguments = ["sweep", str(sweep), "--jobs", "1", "--cache", str(sweep.parent / "cache"), *options]
    return CliRunner().invoke(app, arguments, env={"LENGTHWISE_DATA": ""})


def test_a_sweep_is_printed_written_and_cached(sweep: Path) -> None:
    out = sweep.parent / "sweep.parquet"
    first = invoke(sweep, "--out", str(out))
    assert first.exit_code == 0, first.output
    assert "castillo on 2*llama-3-8b@a100" in first.stdout
    assert "between fcfs behind lengthwise" in first.stdout
    assert max(map(len, first.stdout.partition("┏")[2].splitlines()[:20])) <= 80
    assert "0 from the cache, 14 computed" in first.stderr
    second = json.loads(invoke(sweep, "--json").stdout)
    assert (second["from_cache"], second["computed"]) == (14, 0)
    assert second["rows"] == json.loads(json.dumps(pq.read_table(out).to_pylist()))
    assert [row["predictor"] for row in second["rows"][:3]] == [None, "oracle", "none"]


def test_a_report_of_a_sweep_is_one_page_with_the_verdict_and_the_command(sweep: Path) -> None:
    page = sweep.parent / "out.html"
    result = invoke(sweep, "--report", str(page))
    assert result.exit_code == 0, result.output
    text = page.read_text(encoding="utf-8")
    assert text.count('data-figure="figure') == 4
    assert result.stdout.split(". ")[0] in text
    assert "<dt>Seed</dt><dd>0 to 1</dd>" in text


def test_bad_options_are_named(sweep: Path) -> None:
    reason = "no Ray cluster at 127.0.0.1:1" if find_spec("ray") else "Ray is not installed"
    assert reason in invoke(sweep, "--ray", "127.0.0.1:1").stderr
    assert "does not end in .parquet" in invoke(sweep, "--out", "x.csv").stderr
    assert "give at least 1" in invoke(sweep, "--jobs", "0").stderr
    assert "no such file" in invoke(sweep.parent / "none.yaml").stderr
