from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app

SIMULATE = (
    *("simulate", "castillo", "--policy", "fcfs", "--fleet", "3*llama-3-8b@a100", "--max-num-seqs", "4"),
    *("--requests", "40"),
)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"LENGTHWISE_DATA": ""})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run.parquet"
    routers = ("--router", "round_robin,random,lengthwise")
    done = invoke(*SIMULATE, "--load", "0.9", *routers, "--out", str(path), "--explain")
    assert done.exit_code == 0, done.output
    return path


def test_explain_prints_the_cost_terms_of_each_candidate_and_the_cheapest_was_chosen(run: Path) -> None:
    done = invoke("explain", str(run), "17", "--router", "lengthwise", "--json")
    (decision,) = json.loads(done.stdout)
    sums = {engine: sum(terms.values()) for engine, terms in decision["costs"].items()}
    assert sorted(sums) == ["engine-0", "engine-1", "engine-2"]
    assert sums[decision["engine"]] == min(sums.values())
    written = pq.read_table(run, filters=[("request", "=", 17), ("router", "=", "lengthwise")]).to_pylist()
    assert decision["engine"] == written[0]["engine"]


def test_explain_describes_every_run_of_the_file(run: Path) -> None:
    done = invoke("explain", str(run), "3")
    assert done.exit_code == 0
    assert done.stdout.count("Sent to engine-") == 3
    assert done.stdout.count("compares no costs") == 2
    assert "first_token" in done.stdout
    assert done.stdout.count(" chosen") >= 3, "a wide table has several parts"


def test_a_file_without_the_explained_request_is_an_error(run: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    assert invoke(*SIMULATE, "--load", "0.9", "--out", str(plain)).exit_code == 0
    assert "candidates" not in pq.read_schema(plain).names
    (tmp_path / "text.parquet").write_text("no")
    for arguments, message in (
        ((str(run), "40"), "they are numbered from 0 to 39"),
        ((str(run), "1", "--router", "e2"), "there are: router lengthwise; router random; router round_robin"),
        ((str(plain), "1"), "has no column candidates"),
        ((str(tmp_path / "none.parquet"), "1"), "is not a file"),
        ((str(tmp_path / "text.parquet"), "1"), "is not a Parquet file"),
    ):
        done = invoke("explain", *arguments)
        assert (done.exit_code, message in done.stderr) == (2, True), done.output
    done = invoke(*SIMULATE, "--load", "0.9", "--explain")
    assert (done.exit_code, "give a file with --out" in done.stderr) == (2, True)


def test_a_routing_trace_needs_more_than_one_engine(tmp_path: Path) -> None:
    done = invoke(
        "simulate", "castillo", "--load", "1", "--requests", "20", "-o", str(tmp_path / "a.parquet"), "--explain"
    )
    assert done.exit_code == 2
    assert "one engine leaves no choice to explain" in done.stderr
