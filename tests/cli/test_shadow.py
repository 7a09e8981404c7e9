from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.traffic.shadow_log import read_log
from tests.gateway.engine import StandIn, free_port, served

COMMAND = [sys.executable, "-c", "from lengthwise.cli import main; main()", "shadow", "--port", "0"]


@contextmanager
def shadowing(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command in a process and yield it with the URL that it prints."""
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[2]
        finally:
            process.kill()


def ask(url: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode())  # noqa: S310
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
        return bytes(response.read())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """Thirty streamed answers through the command, then Ctrl-C: its log, output and exit code."""
    log = tmp_path_factory.mktemp("shadow") / "log.jsonl"
    engine = StandIn(token_s=0.002)
    with (
        served(engine.app()) as url,
        shadowing("--url", url, "--log", str(log), "--predictor", "none") as (
            process,
            at,
        ),
    ):
        bodies = [{"prompt": "hello", "stream": True, "user": str(n), "max_tokens": 9 + n} for n in range(30)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda body: ask(at, body), bodies))
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=600)  # the kernel may have to be compiled first
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
    assert engine.finished == 30
    return log, printed, process.returncode


def test_ctrl_c_prints_the_gain_in_a_replay_and_the_path_of_the_log(run: tuple[Path, str, int]) -> None:
    log, printed, code = run
    assert code == 0
    assert f"log: {log}" in printed
    for text in ("Does the replay match?", "30 of 30 requests replayed", "What would have been gained", "lengthwise"):
        assert text in printed
    assert sorted(entry.output_tokens or 0 for entry in read_log(log).entries) == list(range(9, 39))


def test_a_page_of_a_log_opens_with_the_verdict(run: tuple[Path, str, int], tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    result = CliRunner().invoke(app, ["shadow", "report", str(run[0]), "--report", str(page)])
    assert result.exit_code == 0, result.stderr
    text = page.read_text(encoding="utf-8")
    assert (
        text.index("<h1>In a replay: ") < text.index("Latency by output length") < text.index("Does the replay match?")
    )


def test_report_prints_the_same_again_as_text_and_as_json(run: tuple[Path, str, int]) -> None:
    log, printed, _ = run
    again = CliRunner().invoke(app, ["shadow", "report", str(log)])
    assert again.exit_code == 0
    assert printed.endswith(again.stdout)
    report = json.loads(CliRunner().invoke(app, ["shadow", "report", str(log), "--policy", "sjf", "--json"]).stdout)
    assert (report["requests"], report["replayed"], report["accuracy"]) == (30, 30, [])
    assert [run["policy"] for run in report["runs"]] == ["sjf", "sjf"]


def test_too_little_traffic_for_a_report_is_stated_and_is_no_failure(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with served(StandIn().app()) as url, shadowing("--url", url, "--log", str(log)) as (process, at):
        ask(at, {"prompt": "hello", "max_tokens": 3})
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=600)  # the kernel may have to be compiled first
    assert process.returncode == 0
    assert "1 answers of known length are too few for a report" in printed
    assert len(read_log(log).entries) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--url: no engine is given"),
        (["--url", "nope"], "'nope' is not the URL of an engine"),
        (["--url", f"http://127.0.0.1:{free_port()}"], "does not answer"),
        (["--url", "http://127.0.0.1:1", "--predictor", "fats"], "there is no predictor 'fats'"),
        (["--url", "http://127.0.0.1:1", "--policy", "sjff"], "there is no policy 'sjff'"),
        (["--url", "http://127.0.0.1:1", "--engine", "missing.yaml"], "missing.yaml"),
        (["report", "missing.jsonl"], "missing.jsonl: cannot be read"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["shadow", *options])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_existing_log_is_not_overwritten(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("precious")
    with served(StandIn().app()) as url:
        result = CliRunner().invoke(app, ["shadow", "--url", url, "--port", "0", "--log", str(log)])
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert log.read_text() == "precious"
