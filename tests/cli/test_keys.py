from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app
from lengthwise.gateway.keys import key_hash


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "keys.json"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["keys", *arguments])


def test_add_prints_the_key_alone_and_list_shows_its_id_and_limits(keys: Path) -> None:
    added = run("add", "team-a", "--requests-per-minute", "600", "--tokens-per-minute", "200000")
    assert added.exit_code == 0
    key = added.stdout.strip()
    (tenant,) = json.loads(run("list", "--json").stdout)
    assert (tenant["name"], tenant["requests_per_minute"], tenant["tokens_per_minute"]) == ("team-a", 600, 200000)
    (stored,) = tenant["keys"]
    assert stored["id"] == key_hash(key.encode()).hex()[:12]
    table = run("list").stdout
    assert stored["id"] in table
    assert key not in table + keys.read_text()


def test_remove_takes_an_id_or_a_tenant(keys: Path) -> None:
    run("add", "team-a")
    (tenant,) = json.loads(run("list", "--json").stdout)
    key_id = tenant["keys"][0]["id"]
    assert run("remove", key_id).stdout == f"removed {key_id}\n"
    assert run("remove", "team-a").stdout == "removed a tenant without keys\n"
    assert keys.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "team a"], "error: TENANT: 'team a' is not a name"),
        (["add", ""], "error: TENANT: '' is not a name"),
        (["add", "team-a", "--requests-per-minute", "0"], "--requests-per-minute: '0' is not valid"),
        (["add", "team-a", "--keys", "none/keys.json"], "none: no such folder"),
        (["list"], "keys.json: no such file; run: lengthwise keys add TENANT --keys keys.json"),
        (["remove", "team-a"], "keys.json: no such file"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(keys: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not keys.exists()


def test_serve_refuses_a_keys_file_that_does_not_exist(keys: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "--check", "--keys", "keys.json"])
    assert result.exit_code == 2
    assert "keys.json: no such file; run: lengthwise keys add" in result.stderr
