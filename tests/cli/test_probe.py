from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lengthwise.cli import app

pytest.importorskip("torch", reason="torch is an extra")


def made_folder(folder: Path, prompts: int = 60) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = [(n, age, length - age) for n in range(prompts) for length in [20 + n * 3] for age in range(0, length, 16)]
    pid, pos, rem = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    states = rng.standard_normal((len(rows), 5)).astype(np.float16)
    states[:, 0] = np.log(rem)
    np.savez(folder / "states.npz", pid=pid, pos=pos, rem=rem, capped=pid < 0, test=pid % 4 == 0, L3=states)
    table = {
        "corpus": ["Mbpp"] * prompts,
        "prompt_id": [str(n) for n in range(prompts)],
        "split": ["train"] * prompts,
        "prompt": [f"Write a function that adds {n} numbers." for n in range(prompts)],
    }
    pq.write_table(pa.table(table), folder / "prompts.parquet")
    return folder


def test_a_probe_is_trained_on_a_folder_of_states(tmp_path: Path) -> None:
    states, out = made_folder(tmp_path / "states"), tmp_path / "probe.lw"
    arguments = ["probe", "train", str(states), "-o", str(out), "--predictor", "fast", "--epochs", "3", "--json"]
    arguments += ["--report", str(tmp_path / "probe.html")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["layer"] == 3
    assert {score["name"] for score in report["held_out"]} >= {"constant", "probe", "joint + smoothing"}
    over = {score["name"]: score["over_joint"] for score in report["held_out"]}
    assert over["joint + smoothing"] == [1.0, 1.0, 1.0]
    assert over["constant"][1] <= over["constant"][0] <= over["constant"][2]
    assert over["constant"][0] > 1.0
    assert out.is_file()
    assert "True against predicted" in (tmp_path / "probe.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere", "-o", "probe.lw"], "holds no whole collection"),
        (["train", "nowhere", "-o", "no/such/probe.lw"], "no such folder"),
        (["collect", "-o", "no/such/states"], "no such folder"),
        (["collect", "-o", "states", "--layers", "ten"], "names no layers"),
        (["collect", "-o", "."], "exists already; name another folder"),
        (["collect", "-o", "stopped", "--layers", "ten"], "names no layers"),
    ],
)
def test_bad_options_are_named(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stopped" / "parts").mkdir(parents=True)
    done = CliRunner().invoke(app, ["probe", *arguments])
    assert done.exit_code == 2
    assert message in done.stderr
