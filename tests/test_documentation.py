"""The commands and the Python code of README.md and of the pages in docs/start run as they are printed there."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lengthwise.cli import COMMANDS, _load
from tests.cli.test_app import options

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))
LIMIT_S = 600
# Not run here: make and pip change the environment, the others need a real engine. tests/gateway/test_real_engine.py
# sends README's request to one; the commands against a running server have tests of their own.
NOT_RUN = (
    "make ",
    "pip ",
    "vllm ",
    "PYTHONPATH=. ",
    "LENGTHWISE_BENCH_TOKEN",
    "lengthwise adapt",
    "lengthwise bench --url",
    "lengthwise collect --url",
    "lengthwise demo",
    "lengthwise doctor --engine",
    "lengthwise engine fit --url",
    "lengthwise evaluate --from",
    "lengthwise serve --engine http",
    "lengthwise report traffic/",
    "python -m experiments run",
)
RUN = ("lengthwise ", "python ", "curl ")
FORMULA = "key = "


def shell_commands(page: Path) -> list[str]:
    """The indented lines of a page, each with the lines that continue its quoted argument."""
    commands: list[str] = []
    unfinished = False
    for line in re.findall(r"^    (\S.*|  +.*)$", without_code(page), re.MULTILINE):
        if unfinished:
            commands[-1] += f"\n{line}"
        else:
            commands.append(line)
        unfinished = commands[-1].count("'") % 2 == 1 or line.endswith("\\")
    return commands


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def python_code(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def is_run(command: str) -> bool:
    return command.startswith(RUN) and not command.startswith(NOT_RUN)


def execute(command: list[str], folder: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "LENGTHWISE_DATA"}
    paths = [str(ROOT / "src"), str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, f"{command[-1]}\n{run.stderr}"
    assert run.stdout


def as_shell(command: str) -> list[str]:
    """Return the command with this interpreter in place of the installed programs."""
    python = f'"{sys.executable}"'
    command = re.sub(r"^lengthwise ", f"{python} -m lengthwise ", command)
    return ["bash", "-c", re.sub(r"^python ", f"{python} ", command)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of a clone that the commands name."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    return tmp_path


@contextmanager
def gateway(command: str, folder: Path) -> Iterator[int]:
    """Run `lengthwise serve ...` on a free port until the commands after it have run."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = int(held.getsockname()[1])
    arguments = as_shell(
        f"exec {command} --port {port}".replace("exec lengthwise", f'exec "{sys.executable}" -m lengthwise')
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(arguments, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        while not is_ready(port):
            assert process.poll() is None, (folder / "serve.log").read_text(encoding="utf-8")
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_every_command_of_a_page_is_run_or_known_to_need_an_engine(page: Path) -> None:
    for command in shell_commands(page):
        assert command.startswith((*RUN, *NOT_RUN, FORMULA)), command


@pytest.mark.parametrize(
    "command", [line for line in shell_commands(README) if line.startswith("lengthwise ") and is_run(line)]
)
def test_a_command_of_the_readme_runs(command: str, folder: Path) -> None:
    extra = f" --cache {folder / 'cache'}" if command.startswith("lengthwise sweep") else ""
    execute(as_shell(command + extra), folder)


@pytest.mark.parametrize("code", python_code(README))
def test_the_python_code_of_the_readme_runs(code: str, folder: Path) -> None:
    execute([sys.executable, "-W", "error", "-c", f"{code}\nprint('done')"], folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_and_the_commands_of_a_page_run_in_their_order(page: Path, folder: Path) -> None:
    for code in python_code(page):
        if named := re.match(r"# (\w+\.py)\n", code):
            (folder / named[1]).write_text(code, encoding="utf-8")
        else:
            execute([sys.executable, "-W", "error", "-c", code], folder)
    elsewhere = shell_commands(README)
    commands = [command for command in shell_commands(page) if is_run(command) and command not in elsewhere]
    served = next((command for command in commands if command.startswith("lengthwise serve")), None)
    if served is None:
        for command in commands:
            execute(as_shell(command), folder)
        return
    place = commands.index(served)
    for command in commands[:place]:
        execute(as_shell(command), folder)
    with gateway(served, folder) as port:
        for command in commands[place + 1 :]:
            execute(
                as_shell(command.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("curl ", "curl -f ", 1)), folder
            )


def test_every_option_of_a_command_in_the_documentation_exists() -> None:
    known = {name: options(_load(name)) for name in COMMANDS}
    named = 0
    for page in (README, *sorted((ROOT / "docs").rglob("*.md"))):
        for name, rest in re.findall(r"lengthwise ([a-z]+)((?:[^\n`|;#&]|\\\n)*)", page.read_text(encoding="utf-8")):
            found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", rest)) if name in known else set()
            assert found <= {*known.get(name, ()), "--help"}, f"{page.name}: lengthwise {name}{rest}"
            named += len(found)
    assert named > 200


def test_every_test_that_the_threat_model_names_exists() -> None:
    page = (ROOT / "docs" / "guides" / "security.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", page)
    assert len(named) > 30
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / "gateway" / file).read_text(), f"{file} has no {name}"


def test_the_readme_is_short_and_shows_the_gain_first() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 120
    assert any("figures/gain.svg" in line for line in lines[:20])
    assert any("figures/demo.webp" in line for line in lines[:20])


def test_the_pictures_of_the_readme_exist_and_are_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\((docs/figures/[^)]+)\)", README.read_text(encoding="utf-8"))
    assert "docs/figures/demo.webp" in shown
    assert all((ROOT / name).stat().st_size < 1 << 20 for name in shown)


def test_the_latencies_that_the_readme_states_are_those_of_the_raw_rows() -> None:
    from scripts.docs_figures import mean_by_length

    edges, ours = mean_by_length("lengthwise")
    before = mean_by_length("fcfs")[1]
    assert edges[-1] == 2048
    assert f"takes {ours[0]:.1f} s instead of {before[0]:.1f} s" in README.read_text(encoding="utf-8")


def test_the_measured_figures_of_the_readme_are_those_of_the_study() -> None:
    opening = README.read_text(encoding="utf-8").partition("## Quick start")[0]
    study = (ROOT / "docs" / "studies" / "evidence.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| ([\d.]+x?) (?:better|of FCFS) (\[[\d., ]+\])(?= \|)", opening)
    assert len(rows) == 6
    for figure, interval in rows:
        assert f"{figure} {interval}" in study
