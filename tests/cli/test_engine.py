"""`lengthwise engine`: what it refuses, before anything is started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions
from lengthwise.errors import InputError
from lengthwise.predictors.probe import write_probe
from tests.predictors.test_probe import made_probe


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """The command has a SIGTERM stop its engine; the tests' own handler comes back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.engines.embedded._has_gpu", lambda: False)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A probe of an LLM called tiny: 8 numbers a state, layer 3."""
    write_probe(tmp_path / "tiny.lw", made_probe())
    return tmp_path / "tiny.lw"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--probe", "default", "--stock"], "--probe with --stock"),
        (["--probe", "nowhere.lw"], "nowhere.lw: is not a file"),
        (["--probe", "mine"], "probe 'mine' is not known; give default"),
        (["--probe", "default", "--model", "somebody/Else-7B"], "and the engine serves somebody/Else-7B"),
    ],
)
def test_a_probe_that_cannot_be_read_is_refused(given: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["engine", *given])
    assert done.exit_code == 2
    assert says in done.stderr


def test_a_probe_of_states_of_another_size_is_refused(tiny: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (EngineOptions(probe="default", compiled=True), "compiled"),
        (EngineOptions(probe="default", plugin=False), "stock"),
    ],
)
def test_an_engine_that_hands_over_no_states_is_refused(options: EngineOptions, says: str) -> None:
    with pytest.raises(InputError, match=says):
        EmbeddedEngine(options).start()


def test_a_probe_on_a_gpu_is_refused_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.engines.embedded._has_gpu", lambda: True)
    with pytest.raises(InputError, match="CPU worker only"):
        EmbeddedEngine(EngineOptions(probe="default")).start()


def test_the_child_is_given_the_probe_and_the_worker_that_feeds_it(tiny: Path, tmp_path: Path) -> None:
    command = EmbeddedEngine(EngineOptions(policy="srpt", probe=str(tiny), model=str(tmp_path))).command()
    assert command[command.index("--worker-cls") + 1] == "lengthwise.engines.vllm_worker.StatesWorker"
    assert f'"probe": "{tiny}"' in command[command.index("--additional-config") + 1]
    assert "--worker-cls" not in EmbeddedEngine(EngineOptions(policy="srpt", model=str(tmp_path))).command()
