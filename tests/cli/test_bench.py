from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from lengthwise.bench.episodes import FCFS, Arm
from lengthwise.cli import app
from tests.bench.measured import measured


def bench(*options: str) -> Result:
    return CliRunner().invoke(app, ["bench", *options])  # type: ignore[return-value]


def halved(arm: Arm, block: int, rng: np.random.Generator) -> np.ndarray:
    return (1.0 if arm.policy == FCFS else 0.5) * (1.0 + rng.exponential(size=50))


def test_a_measured_folder_is_reported_as_text_json_and_html(tmp_path: Path) -> None:
    measured(tmp_path / "out", (Arm(FCFS), Arm("sjf", "fast")), 2, halved)
    shown = bench("--no-run", "--out", str(tmp_path / "out"), "--report", str(tmp_path / "r.html"))
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith(
        "Turn it on: sjf, fast lowers mean E2E by 50 %, p99 E2E by 50 % and median TTFT by 50 % against fcfs"
    )
    assert "Turn it on" in (tmp_path / "r.html").read_text()
    facts = json.loads(bench("--no-run", "--out", str(tmp_path / "out"), "--json").output)
    assert facts["arms"][1]["ratios"]["mean"]["ratio"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--no-run"], "no complete block"),
        (["--url", "http://127.0.0.1:9"], "no bench token"),
        (["--url", "http://127.0.0.1:9", "--token", "x", "--episode", "siege"], "no episode 'siege'"),
        (["--url", "http://127.0.0.1:9", "--token", "x", "--policy", "fcfs"], "nothing to compare"),
        (["--url", "http://127.0.0.1:9", "--token", "x", "--scale", "0"], "a scale of 0"),
        (["--url", "http://127.0.0.1:9", "--token", "x", "--policy", ","], "names nothing"),
    ],
)
def test_bad_options_are_named(
    tmp_path: Path, options: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LENGTHWISE_BENCH_TOKEN", raising=False)
    result = bench("--out", str(tmp_path / "out"), *options)
    assert result.exit_code == 2
    assert message in result.output


def test_an_unreachable_server_is_named(tmp_path: Path) -> None:
    result = bench("--url", "http://127.0.0.1:9", "--token", "x", "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "127.0.0.1:9" in result.output
    assert "Traceback" not in result.output


def test_sigterm_ends_a_bench_whose_shell_ignores_sigint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "lengthwise", "bench", "--url", url, "--token", "x", "--out", str(tmp_path)]
        bench = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            bench.terminate()
            assert bench.wait(60) == 130
