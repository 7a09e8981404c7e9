from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from starlette.responses import JSONResponse
from typer.testing import CliRunner, Result

from lengthwise.cli.collect import collect, read_prompts
from lengthwise.errors import InputError
from lengthwise.workloads import LengthSamples
from tests.client.test_collect import Llm
from tests.gateway.engine import served, wait_for


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(collect)
    return CliRunner().invoke(app, [*arguments])


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "tea.txt"
    path.write_text("what is tea?\n\nand coffee?\n")
    return str(path)


def test_lengths_of_a_served_llm_are_collected(prompts: str, tmp_path: Path) -> None:
    out = tmp_path / "lengths.parquet"
    with served(Llm().app()) as url:
        result = run("--url", url, "--prompts", prompts, "--samples", "5", "-o", str(out), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["answers"], report["whole_prompts"], report["errors"]) == (10, 2, {})
    assert LengthSamples.read(out).lengths_matrix().shape == (2, 5)


def test_the_api_key_is_sent_to_the_endpoint(prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, refused = Llm().app(), JSONResponse({"error": {"message": "no key"}}, 401)

    async def with_key(scope: Any, receive: Any, send: Any) -> None:
        known = scope["type"] != "http" or (b"authorization", b"Bearer lw-1") in scope["headers"]
        await (llm if known else refused)(scope, receive, send)

    out = tmp_path / "lengths.parquet"
    with served(with_key) as url:
        options = ["--url", url, "--prompts", prompts, "--samples", "1", "-o", str(out)]
        assert "answers 401" in str(run(*options).exception)
        monkeypatch.setenv("OPENAI_API_KEY", "lw-1")
        assert run(*options).exit_code == 0
    assert len(LengthSamples.read(out)) == 2


def test_missing_answers_are_counted_and_exit_code_is_1(prompts: str, tmp_path: Path) -> None:
    wrong = JSONResponse({"error": {"message": "no such thing"}}, 400)
    with served(Llm(fault=lambda n: wrong if n == 1 else None).app()) as url:
        result = run("--url", url, "--prompts", prompts, "--samples", "2", "--at-once", "1", "-o", str(tmp_path / "o"))
    assert result.exit_code == 1
    assert "3 of 4 answers of small" in result.stdout
    assert "failed: 1 http_400\nhttp_400: no such thing\n" in result.stdout
    assert "resumes from" in result.stdout


def test_ctrl_c_keeps_the_answers_so_far(prompts: str, tmp_path: Path) -> None:
    out, llm = tmp_path / "o", Llm()
    code = "import typer; from lengthwise.cli.collect import collect; typer.run(collect)"
    options = ["--prompts", prompts, "--samples", "100000", "--at-once", "2", "-o", str(out), "--json"]
    with served(llm.app()) as url:
        command = [sys.executable, "-c", code, "--url", url, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                wait_for(lambda: len(llm.bodies) > 20, 120)
                process.send_signal(signal.SIGINT)
                report = json.loads(process.communicate(timeout=60)[0])
            finally:
                process.kill()  # without this a failure above waits forever
    assert process.returncode == 130
    assert report["interrupted"]
    kept = (tmp_path / "o.partial").read_text().splitlines()
    assert len(kept) == report["answers"] + 1 > 10


def test_prompts_come_from_castillo_length_samples_json_lines_or_lines(tmp_path: Path, prompts: str) -> None:
    castillo = read_prompts("castillo")
    assert len({prompt.key for prompt in castillo}) == len(castillo) > 10
    assert [(p.corpus, p.prompt_id, p.text) for p in read_prompts(prompts)] == [
        ("tea", "1", "what is tea?"),
        ("tea", "2", "and coffee?"),
    ]
    lines = tmp_path / "mine.jsonl"
    lines.write_text('{"prompt": "a\\nb", "prompt_id": 7, "split": "test"}\n{"prompt": "c", "corpus": "other"}\n')
    first, second = read_prompts(str(lines))
    assert (first.corpus, first.prompt_id, first.text, first.split) == ("mine", "7", "a\nb", "test")
    assert (second.corpus, second.prompt_id, second.split) == ("other", "2", None)
    table = {"corpus": ["c"] * 2, "prompt_id": ["1"] * 2, "llm": ["a", "b"], "input_tokens": [1, 1]}
    rows = {**table, "lengths": [[1], [2]], "prompt": ["hi", "hi"]}
    LengthSamples.from_table(rows, origin="x").write(tmp_path / "s.parquet")
    assert [prompt.text for prompt in read_prompts(str(tmp_path / "s.parquet"))] == ["hi"]
    LengthSamples.from_table({**rows, "prompt": ["hi", None]}, origin="x").write(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"row 2, field 'prompt': has no value"):
        read_prompts(str(tmp_path / "t.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b"{oops", "row 1: no prompt"),
        ("x.jsonl", b'{"text": "a"}', "row 1: no prompt"),
        ("x.jsonl", b'{"prompt": 5}', "is not text"),
        ("x.txt", b"\xff\xfe", "is not UTF-8"),
        ("nothing.txt", None, "no such file"),
    ],
)
def test_bad_prompts_are_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_prompts(str(path))
