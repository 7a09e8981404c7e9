"""`lengthwise simulate --disaggregate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app

FLEET = ("--fleet", "4*llama-3-8b@a100", "--max-num-seqs", "4", "--requests", "80", "--load", "0.9")


def run(*arguments: str) -> Result:
    command = ["simulate", "castillo", *FLEET, *arguments]
    return CliRunner().invoke(app, command, env={"LENGTHWISE_DATA": "", "COLUMNS": "200"})


def facts(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_pools_are_reported_and_load_is_relative_to_undivided_engines() -> None:
    apart, mixed = facts("--disaggregate", "1:3"), facts()
    assert (apart["pools"]["prefill"], apart["pools"]["decode"]) == (1, 3)
    assert mixed["pools"] is None
    assert apart["capacity"] == mixed["capacity"]
    assert apart["runs"][0]["refused"] == 0
    assert apart["runs"][0]["ttft_s"] != mixed["runs"][0]["ttft_s"]


def test_the_table_states_the_pools_and_the_link() -> None:
    done = run("--disaggregate", "1:3", "--router", "lengthwise", "--refresh", "noisy:0.8", "--kv-link", "50")
    assert done.exit_code == 0, done.output
    assert "Prefill on 1 engines, decode on 3; KV goes over 50 GB/s and 1.0 ms of latency" in done.stdout
    assert "predictions refreshed there by noisy:0.8" in done.stdout


def test_engines_may_change_pools_and_a_probe_may_refresh_predictions() -> None:
    done = run("--disaggregate", "1:3", "--router", "lengthwise", "--refresh", "probe", "--switch-every", "2")
    assert done.exit_code == 0, done.output
    assert "Prefill on 1 engines, decode on 3 at first" in done.stdout
    assert "predictions refreshed there by probe" in done.stdout


def test_refreshed_predictions_improve_the_order_of_decode() -> None:
    command = ("--disaggregate", "2:2", "--policy", "sjf", "--predictor", "none", "--load", "1.1")
    kept, refreshed = (facts(*command, *more)["runs"][0] for more in ((), ("--refresh", "oracle")))
    assert refreshed["per_token_s"]["mean"] < kept["per_token_s"]["mean"]


def test_a_slower_link_delays_answers(tmp_path: Path) -> None:
    quick, slow = (facts("--disaggregate", "2:2", "--kv-link", link)["runs"][0] for link in ("25", "0.01"))
    assert quick["ttft_s"] == slow["ttft_s"]
    assert quick["e2e_s"]["mean"] < slow["e2e_s"]["mean"]
    out = tmp_path / "run.parquet"
    assert run("--disaggregate", "2:2", "--decode-router", "least_load", "-o", str(out)).exit_code == 0
    assert set(pq.read_table(out)["decode_engine"].to_pylist()) <= {"engine-2", "engine-3", None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--disaggregate", "2:6"), "add up to 4"),
        (("--disaggregate", "4:0"), "each pool needs an engine"),
        (("--disaggregate", "four"), "PREFILL:DECODE"),
        (("--disaggregate", "2:2", "--kv-link", "0"), "above 0"),
        (("--disaggregate", "2:2", "--down", "0@1"), "down"),
        (("--disaggregate", "2:2", "--prediction-delay", "1"), "prediction-delay"),
        (("--disaggregate", "2:2", "--decode-router", "lengthwize"), "did you mean lengthwise"),
        (("--disaggregate", "2:2", "--refresh", "noisy:2"), "noisy"),
        (("--disaggregate", "2:2", "--predictor", "probe"), "exists after prefill"),
        (("--disaggregate", "2:2", "--switch-every", "0"), "above 0"),
        (("--switch-every", "5"), "--disaggregate"),
        (("--refresh", "oracle"), "--disaggregate"),
        (("--kv-link", "50"), "--disaggregate"),
        (("--decode-router", "random"), "--disaggregate"),
    ],
)
def test_an_invalid_option_is_refused(options: tuple[str, ...], message: str) -> None:
    done = run(*options)
    assert done.exit_code == 2
    assert message in done.output.replace("\n", " ")
