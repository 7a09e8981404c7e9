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
from lengthwise.traffic.reader import read_traffic
from tests.gateway.engine import StandIn, served
from tests.traffic.traffic_rows import made, write

COMMAND = [sys.executable, "-c", "from lengthwise.cli import main; main()", "serve", "--observe", "--port", "0"]


@contextmanager
def observing(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command in a process and yield it with the URL that it prints."""
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = ""
            while not line.startswith("serving on "):
                line = process.stdout.readline()
            yield process, line.split()[2]
        finally:
            process.kill()


def ask(url: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode())  # noqa: S310
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
        return bytes(response.read())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """Thirty streamed answers through the command, then Ctrl-C: its log, output and exit code."""
    log = tmp_path_factory.mktemp("observe") / "traffic"
    engine = StandIn(token_s=0.002)
    with (
        served(engine.app()) as url,
        observing("--engine", url, "--log", str(log), "--predictor", "none") as (
            process,
            at,
        ),
    ):
        bodies = [{"prompt": "hello", "stream": True, "user": str(n), "max_tokens": 9 + n} for n in range(30)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda body: ask(at, body), bodies))
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
    assert engine.finished == 30
    return log, printed, process.returncode


def test_ctrl_c_names_the_log_and_the_command_that_reports_it(run: tuple[Path, str, int]) -> None:
    log, printed, code = run
    assert code == 0
    assert f"lengthwise report {log}" in printed
    assert sorted(row.output_tokens or 0 for row in read_traffic(log).rows) == list(range(9, 39))


def test_the_report_replays_the_log(run: tuple[Path, str, int]) -> None:
    result = CliRunner().invoke(app, ["report", str(run[0])])
    assert result.exit_code == 0, result.stderr
    for text in ("Does the replay match?", "30 of 30 requests replayed", "What would have been gained", "lengthwise"):
        assert text in result.stdout


def test_a_page_of_a_log_opens_with_the_verdict(run: tuple[Path, str, int], tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    result = CliRunner().invoke(app, ["report", str(run[0]), "--report", str(page)])
    assert result.exit_code == 0, result.stderr
    text = page.read_text(encoding="utf-8")
    assert (
        text.index("<h1>In a replay: ") < text.index("Latency by output length") < text.index("Does the replay match?")
    )


def test_the_report_of_a_log_is_printed_as_json(run: tuple[Path, str, int]) -> None:
    report = json.loads(CliRunner().invoke(app, ["report", str(run[0]), "--policy", "sjf", "--json"]).stdout)
    assert (report["requests"], report["replayed"], report["accuracy"]) == (30, 30, {})
    assert [run["policy"] for run in report["runs"]] == ["sjf", "sjf"]


def test_too_little_traffic_for_a_report_is_an_error(tmp_path: Path) -> None:
    log = write(tmp_path / "traffic", made(3))
    result = CliRunner().invoke(app, ["report", str(log)])
    assert result.exit_code == 2
    assert "3 answers of known length are too few for a report" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shadow", "--url", "http://127.0.0.1:1"], "use `lengthwise serve --engine URL --observe --log DIR`"),
        (["shadow"], "then `lengthwise report DIR`"),
        (["serve", "--engine", "http://127.0.0.1:1", "--observe"], "observe is given without log"),
        (["serve", "--engine", "http://127.0.0.1:1", "--observe", "--log", "x", "--policy", "sjf"], "policy is sjf"),
        (["report", "missing.jsonl"], "missing.jsonl"),
        (["report", ".", "b.json"], "a folder is shown alone"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
