"""The commands and the Python code of README.md run as they are printed there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
LIMIT_S = 600
# Not run here: the targets of make and pip change the environment; vllm and curl need a real engine, and
# tests/gateway/test_real_engine.py sends the same request to one.
NOT_RUN = ("make", "pip", "vllm", "curl")


def shell_commands() -> list[str]:
    """The indented lines of README, without those that continue a quoted argument."""
    commands, quoted = [], False
    for line in re.findall(r"^    (\S.*|  +.*)$", TEXT, re.MULTILINE):
        if not quoted:
            commands.append(line)
        quoted ^= line.count("'") % 2 == 1
    return commands


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "LENGTHWISE_DATA"}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a clone that the commands name."""
    path = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "configs", path / "configs")
    return path


def test_the_commands_that_are_not_run_are_the_known_ones() -> None:
    assert {shlex.split(command.partition("'")[0])[0] for command in shell_commands()} <= {*NOT_RUN, "lengthwise"}


@pytest.mark.parametrize("command", [line for line in shell_commands() if line.startswith("lengthwise ")])
def test_a_command_of_the_readme_runs(command: str, folder: Path) -> None:
    arguments = shlex.split(command, comments=True)[1:]
    if arguments[0] == "sweep":
        arguments += ["--cache", str(folder / "cache")]
    run = subprocess.run(
        [sys.executable, "-m", "lengthwise", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


@pytest.mark.parametrize("code", re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
def test_the_python_code_of_the_readme_runs(code: str, folder: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
