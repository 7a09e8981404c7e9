"""`lengthwise engine` refuses invalid options before anything starts; `engine fit` writes an engine file."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.errors import InputError
from lengthwise.predictors.probe import write_probe
from lengthwise.simulator import Fleet, StepCost
from lengthwise.simulator.step_log import COLUMNS, write_steps
from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions
from tests.client.test_step_times import Endpoint
from tests.gateway.engine import served
from tests.predictors.test_probe import made_probe
from tests.simulator.test_fit import FACTS, TRUE, steps


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """Restore the SIGTERM handler that the command replaces."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.vllm.embedded._has_gpu", lambda: False)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A probe of the LLM tiny: hidden size 8, layer 3."""
    write_probe(tmp_path / "tiny.lw", made_probe())
    return tmp_path / "tiny.lw"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--probe", "default", "--stock"], "--probe with --stock"),
        (["--probe", "nowhere.lw"], "nowhere.lw: is not a file"),
        (["--probe", "mine"], "probe 'mine' is not known; give default"),
        (["--probe", "default", "--model", "owner/Other-7B"], "and the engine serves owner/Other-7B"),
    ],
)
def test_an_unusable_probe_is_refused(options: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["engine", *options])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_probe_of_another_hidden_size_or_layer_is_refused(tiny: Path, tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text('{"hidden_size": 64, "num_hidden_layers": 12}')
    done = CliRunner().invoke(app, ["engine", "--probe", str(tiny), "--model", str(model)])
    assert done.exit_code == 2
    assert "reads 8 numbers a state, and the LLM's have 64" in done.stderr
    (model / "config.json").write_text('{"hidden_size": 8, "num_hidden_layers": 2}')
    done = CliRunner().invoke(app, ["engine", "--probe", str(tiny), "--model", str(model)])
    assert done.exit_code == 2
    assert "reads layer 3, and the LLM has 2" in done.stderr


def test_a_probe_with_stock_vllm_is_refused() -> None:
    with pytest.raises(InputError, match="stock"):
        EmbeddedEngine(EngineOptions(probe="default", plugin=False)).start()


def test_the_vllm_command_names_the_probe_and_its_worker_class(tiny: Path, tmp_path: Path) -> None:
    command = EmbeddedEngine(EngineOptions(policy="srpt", probe=str(tiny), model=str(tmp_path))).command()
    assert command[command.index("--worker-cls") + 1] == "lengthwise.vllm.worker.StatesWorker"
    assert f'"probe": "{tiny}"' in command[command.index("--additional-config") + 1]
    assert "--worker-cls" not in EmbeddedEngine(EngineOptions(policy="srpt", model=str(tmp_path))).command()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of steps whose durations follow TRUE exactly."""
    seen = steps(TRUE)
    known = {name: getattr(seen, name) for name in COLUMNS if hasattr(seen, name)}
    rows = np.stack([known.get(name, np.zeros(len(seen))) for name in COLUMNS], axis=1)
    path = tmp_path / "steps.parquet"
    write_steps(path, rows, FACTS)
    return path


def test_fit_turns_a_log_of_steps_into_an_engine_for_the_simulator(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "engine.yaml"
    result = CliRunner().invoke(app, ["engine", "fit", "--steps", str(log), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "prefill_token" in result.output
    assert "400 steps of tiny on stand-in 1" in result.output
    assert out.read_text().startswith("# Fitted by `lengthwise engine fit` on 400 steps of tiny on stand-in 1")
    (spec,) = Fleet.parse(str(out)).engines
    assert isinstance(spec.cost, StepCost)
    assert spec.cost.prefill_pair == pytest.approx(TRUE.prefill_pair, rel=1e-4)
    assert (spec.kv_tokens, spec.chunked_prefill) == (FACTS.kv_tokens, False)
    arguments = ["simulate", "castillo", "--load", "0.5", "--requests", "40", "--fleet", str(out)]
    simulated = CliRunner().invoke(app, arguments)
    assert simulated.exit_code == 0, simulated.output


def test_fit_probes_an_endpoint_and_keeps_its_limits(tmp_path: Path) -> None:
    out = tmp_path / "engine.yaml"
    with served(Endpoint().app()) as url:
        arguments = ["engine", "fit", "--url", f"{url}/v1", "-o", str(out), "--max-num-seqs", "2", "--longest", "64"]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert f"measured by a client of {url}" in out.read_text()
    (spec,) = Fleet.parse(str(out)).engines
    assert (spec.kv_tokens, spec.max_num_seqs, spec.max_model_len) == (363 * 128, 2, 512)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "{tmp}/gone.parquet"], "gone.parquet: cannot be read as Parquet"),
        (["--steps", "{log}", "--url", "http://127.0.0.1:1"], "both --url and --steps"),
        (["--url", "nonsense"], "'nonsense' is not the URL of an engine"),
        (["--url", "http://127.0.0.1:1"], "cannot be reached"),
    ],
)
def test_bad_input_of_fit_is_one_line_and_exit_code_2(
    log: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    filled = [option.format(tmp=tmp_path, log=log) for option in options]
    result = CliRunner().invoke(app, ["engine", "fit", "-o", str(tmp_path / "engine.yaml"), *filled])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "engine.yaml").exists()


def test_engine_without_a_subcommand_validates_its_policy() -> None:
    result = CliRunner().invoke(app, ["engine", "--policy", "nonsense", "--port", "0"])
    assert result.exit_code == 2
    assert "nonsense" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--stock", "--steps", "steps.parquet"], "--steps with --stock"), (["--steps", "gone/steps.parquet"], "folder")],
)
def test_an_unwritable_step_log_is_refused_before_the_engine_starts(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["engine", "--port", "0", *options])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "starting" not in result.stderr


def test_simulated_engines_are_served_until_the_command_is_stopped() -> None:
    command = [sys.executable, "-m", "lengthwise", "engine", "--simulated", "2*llama-3-8b@a100?speed=50", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            urls = re.findall(r"http://127\.0\.0\.1:\d+/v1", line)
            assert len(urls) == 2
            with urllib.request.urlopen(urls[1] + "/models", timeout=60) as response:  # noqa: S310
                assert json.load(response)["data"][0]["id"] == "llama-3-8b"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) in (0, -signal.SIGTERM)
        finally:
            process.kill()
