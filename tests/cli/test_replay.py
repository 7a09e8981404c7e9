from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.workloads import Workload, write_workload
from tests.gateway.engine import StandIn, free_port, served, wait_for
from tests.gateway.helpers import gateway


@pytest.fixture
def workload(tmp_path: Path) -> str:
    table = {"arrival_s": [0.0, 0.05, 0.1], "input_tokens": [5, 6, 7], "output_tokens": [4, 1, 9]}
    path = tmp_path / "w.parquet"
    write_workload(Workload.from_table(table, name="w"), path)
    return str(path)


def test_a_workload_is_replayed_through_a_real_gateway(workload: str, tmp_path: Path) -> None:
    engine = StandIn(token_s=0.002, owned_by="vllm", scheduler={"policy": "sjf"})  # hints are for our scheduler
    rows = tmp_path / "rows.parquet"
    with served(engine.app()) as engine_url, gateway(engine_url) as url:
        options = ["--url", url, "--json", "--hints", "oracle", "-o", str(rows)]
        result = CliRunner().invoke(app, ["replay", workload, *options])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["requests"], report["served"], report["errors"], report["lengths_differ"]) == (3, 3, {}, 0)
    assert {"mean", "p50", "p90", "p99"} == set(report["ttft_s"]) == set(report["e2e_s"]) == set(report["per_token_s"])
    assert report["tpot_s"]["mean"] > 0
    assert pq.read_table(rows)["output_tokens"].to_pylist() == [4, 1, 9]
    assert [body["vllm_xargs"]["expected_tokens"] for body in engine.bodies] == [4, 1, 9]


def test_failures_are_named_and_exit_code_is_1_unless_accepted(workload: str) -> None:
    with served(StandIn(mode="error").app()) as url:
        result = CliRunner().invoke(app, ["replay", workload, "--url", url, "--limit", "2"])
        accepted = CliRunner().invoke(app, ["replay", workload, "--url", url, "--max-failed", "1"])
    assert (result.exit_code, accepted.exit_code) == (1, 0)
    assert result.stdout.startswith("100.0 % of requests FAILED.")
    assert "failed: 2 http_500" in result.stdout
    assert "100.0% of the requests failed; up to 1.0% is accepted (--max-failed)" in result.stderr


def test_a_dead_endpoint_stops_the_replay_before_the_last_arrival(tmp_path: Path) -> None:
    count = 2000
    table = {"arrival_s": [0.01 * i for i in range(30)] + [3600.0] * (count - 30), "input_tokens": [5] * count}
    path = tmp_path / "w.parquet"
    write_workload(Workload.from_table(table | {"output_tokens": [3] * count}, name="w"), path)
    with served(StandIn(mode="error").app()) as url:
        result = CliRunner().invoke(app, ["replay", str(path), "--url", url, "--json"])
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["stopped"]
    assert 20 <= report["sent"] <= 30
    assert report["verdict"].startswith("Stopped: the endpoint is dead (http_500)")


def test_the_api_key_is_sent_and_stays_out_of_the_report(workload: str, tmp_path: Path) -> None:
    engine, page = StandIn(), tmp_path / "out.html"
    with served(engine.app()) as url:
        options = ["--url", url, "--api-key", "sk-secret", "--report", str(page)]
        result = CliRunner().invoke(app, ["replay", workload, *options])
    assert result.exit_code == 0, result.stderr
    assert {headers["authorization"] for headers in engine.headers} == {"Bearer sk-secret"}
    text = page.read_text(encoding="utf-8")
    assert "sk-secret" not in text
    assert "Latency by output length" in text


def test_inter_token_latency_and_goodput_within_the_limits_are_measured(workload: str) -> None:
    with served(StandIn(token_s=0.02).app()) as url:
        options = ["--url", url, "--json", "--slo-ttft", "1000", "--slo-tpot", "1000", "--slo-e2e"]
        loose, strict = (
            json.loads(CliRunner().invoke(app, ["replay", workload, *options, limit]).stdout)
            for limit in ("1000", "1e-6")
        )
    assert (loose["within_slo"], strict["within_slo"], strict["goodput_per_s"]) == (1.0, 0.0, 0.0)
    assert loose["goodput_per_s"] == pytest.approx(loose["requests_per_s"])
    assert loose["itl_s"]["mean"] > 0.0


def test_rates_are_swept_up_to_the_measured_throughput(workload: str, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    with served(StandIn(token_s=0.002).app()) as url:
        swept = CliRunner().invoke(
            app, ["replay", workload, "--url", url, "--sweep", "2", "--json", "--report", str(page)]
        )
        given = CliRunner().invoke(app, ["replay", workload, "--url", url, "--rate", "20,40"])
    assert swept.exit_code == 0, swept.stderr
    report = json.loads(swept.stdout)
    most = report["rates"][0]["requests_per_s"]
    assert [each["rate"] for each in report["rates"]] == [None, pytest.approx(most / 2), pytest.approx(most)]
    assert "Latency by load" in page.read_text(encoding="utf-8")
    assert all(text in given.stdout for text in ("20/s", "40/s", "goodput/s"))


def test_ctrl_c_prints_the_measurements_so_far(tmp_path: Path) -> None:
    arrivals, lengths = [0.0, 0.5, 3600.0], [2, 100_000, 3]
    table = {"arrival_s": arrivals, "input_tokens": [5, 5, 5], "output_tokens": lengths}
    path = tmp_path / "w.parquet"
    write_workload(Workload.from_table(table, name="w"), path)
    engine = StandIn(token_s=0.01)
    with served(engine.app()) as url:
        command = [sys.executable, "-c", "from lengthwise.cli import main; main()", "replay", str(path)]
        with subprocess.Popen([*command, "--url", url, "--json"], stdout=subprocess.PIPE) as process:
            try:
                wait_for(lambda: len(engine.bodies) == 2, 120)  # the first answer is complete by now
                process.send_signal(signal.SIGINT)
                report = json.loads(process.communicate(timeout=60)[0])
            finally:
                process.kill()  # without this a failure above waits forever
        wait_for(lambda: engine.aborted == 1)
    assert process.returncode == 130
    assert (report["interrupted"], report["sent"], report["served"]) == (True, 2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.parquet"], "no such file"),
        (["{w}", "--url", "{dead}"], "cannot be reached; start one with `lengthwise engine` or `lengthwise serve`"),
        (["{w}", "--url", "nonsense"], "'nonsense' is not the URL of an engine"),
        (["{w}", "--speed", "0"], "--speed: a speed of 0"),
        (["{w}", "--rate", "1", "--sweep", "2"], "both --rate and --sweep"),
        (["{w}", "--rate", "1,2", "-o", "x.parquet"], "one file for several rates"),
        (["{w}", "--slo-ttft", "0"], "a limit of 0 s"),
        (["{w}", "-o", "/no/such/folder/x.parquet"], "/no/such/folder: no such folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(workload: str, arguments: list[str], message: str) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    filled = [text.replace("{w}", workload).replace("{dead}", dead) for text in arguments]
    result = CliRunner().invoke(app, ["replay", *filled])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
