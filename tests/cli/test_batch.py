from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from starlette.responses import JSONResponse
from typer.testing import CliRunner, Result

from lengthwise.cli.batch import batch
from tests.client.test_batch import Llm, answers, line, written
from tests.gateway.engine import free_port, served, wait_for


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(batch)
    return CliRunner().invoke(app, [*arguments, "--predictor", "none"])


def command(url: str, requests: Path, out: Path, *options: str) -> list[str]:
    place = ["--engine", url, str(requests), "-o", str(out), "--predictor", "none", *options]
    return [sys.executable, "-m", "lengthwise", "batch", *place]


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    return written(tmp_path / "requests.jsonl", [line(number) for number in range(8)])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def test_a_batch_is_answered_and_summed_up(requests: Path, out: Path) -> None:
    with served(Llm().app()) as url:
        result = run(str(requests), "-o", str(out), "--engine", url)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"8 of 8 requests have answers: {out}\n8 answers in ")
    assert len(answers(out)) == 8


def test_failures_are_shown_with_their_lines_and_exit_code_is_1(requests: Path, out: Path) -> None:
    wrong = JSONResponse({"error": {"message": "no such thing"}}, 400)
    with served(Llm(fault=lambda body: wrong if body["max_tokens"] == 12 else None).app()) as url:
        result = run(str(requests), "-o", str(out), "--engine", url)
        as_json = run(str(requests), "-o", str(out), "--engine", url, "--json")
    assert result.exit_code == as_json.exit_code == 1
    assert "line 3 (id 2): http_400: no such thing\n" in result.stdout
    assert "the same command goes on" in result.stdout
    facts = json.loads(as_json.stdout)
    assert facts["failed"] == [{"line": 3, "custom_id": "id 2", "kind": "http_400", "message": "no such thing"}]
    assert (facts["answers"], facts["resumed"], facts["policy"]) == (7, 7, "lept")
    assert facts["errors"] == str(out.with_name("answers.errors.jsonl"))


@pytest.mark.parametrize("what", ["dead", "twice", "itself", "folder", "policy", "url", "first"])
def test_wrong_input_is_one_line_and_exit_code_2(requests: Path, out: Path, what: str) -> None:
    url, place, more = "http://127.0.0.1:1", out, list[str]()
    if what == "dead":
        url, message = f"http://127.0.0.1:{free_port()}", "cannot be reached"
    elif what == "twice":
        more, message = ["--engine", f"{url}/v1"], "is given twice"
    elif what == "itself":
        place, message = requests, "is the file of requests"
    elif what == "folder":
        place, message = out / "x" / "y", "no such folder"
    elif what == "policy":
        more, message = ["--policy", "leptt"], "leptt"
    elif what == "url":
        url, message = "not a url", "is not the URL of an engine"
    else:
        more, message = ["--first", "0"], "--first"
    done = subprocess.run(command(url, requests, place, *more), capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert requests.read_text().count("\n") == 8
    assert not out.exists()


def lasting(tmp_path: Path) -> tuple[Path, Llm]:
    """Return a batch that takes a while."""
    return written(tmp_path / "many.jsonl", [line(number) for number in range(3000)]), Llm()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_goes_on_without_asking_twice(tmp_path: Path, out: Path, number: signal.Signals) -> None:
    requests, llm = lasting(tmp_path)
    with served(llm.app()) as url:
        with subprocess.Popen(
            command(url, requests, out, "--at-once", "2", "--json"), stdout=subprocess.PIPE
        ) as process:
            try:
                wait_for(lambda: out.exists() and out.read_bytes().count(b"\n") > 20, 120)
                process.send_signal(number)
                printed = process.communicate(timeout=60)[0]
            finally:
                process.kill()
        kept = {json.loads(each)["custom_id"] for each in out.read_bytes().split(b"\n")[:-1]}
        assert 20 < len(kept) < 3000
        if number == signal.SIGINT:
            assert process.returncode == 130
            assert json.loads(printed)["interrupted"]
        llm.bodies.clear()
        done = subprocess.run(command(url, requests, out), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = {f"id {prompt.split()[1]}" for prompt in llm.asked}
    assert again.isdisjoint(kept)
    assert again | kept == set(answers(out)) == {f"id {number}" for number in range(3000)}
    assert set(llm.asked.values()) == {1}


def test_a_full_disk_is_said_and_the_file_has_every_answer_before(tmp_path: Path, requests: Path, out: Path) -> None:
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    environment: dict[str, Any] = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with served(Llm().app()) as url:
        full = subprocess.run(
            [sys.executable, "-c", limited, *command(url, requests, out, "--at-once", "1")],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert full.returncode == 2, full.stderr
        assert full.stderr.count("\n") == 2
        assert f"error: {out}: cannot be written: File too large; it has every answer before this one" in full.stderr
        assert 0 < len(answers(out)) < 8
        done = subprocess.run(command(url, requests, out), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(answers(out)) == 8
