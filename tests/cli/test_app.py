"""The command line as a whole: commands are imported when called, and errors are one line."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lengthwise
from lengthwise.cli import COMMANDS, MEANT, PANELS, _load, app
from lengthwise.cli.serve import PANELS as PANELS_OF_SERVE
from lengthwise.errors import EXTRAS
from lengthwise.gateway import GatewayConfig
from lengthwise.policies.registry import POLICIES, WRAPPERS
from lengthwise.routers import ROUTERS
from lengthwise.version import install_line

HEAVY = ("numpy", "scipy", "pyarrow", "numba", "onnxruntime", "tokenizers", "matplotlib", "plotly", "torch", "aiohttp")
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "opentelemetry": "opentelemetry-sdk"}


def modules_after(*arguments: str) -> set[str]:
    code = (
        "import json, sys\n"
        "from lengthwise.cli import app\n"
        f"app({[*arguments]!r}, standalone_mode=False)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["doctor"]], ids=" ".join)
def test_help_version_and_doctor_import_no_other_command_and_nothing_heavy(arguments: list[str]) -> None:
    loaded = modules_after(*arguments)
    assert not loaded.intersection(HEAVY)
    commands = {name.removeprefix("lengthwise.cli.") for name in loaded if name.startswith("lengthwise.cli.")}
    assert commands <= {"doctor"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_has_a_help_page(name: str) -> None:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"lengthwise {name}" in result.stdout or f" {name} " in result.stdout


def test_commands_and_the_options_of_simulate_are_in_panels() -> None:
    whole, simulate = (CliRunner().invoke(app, [*name, "--help"]).stdout for name in ([], ["simulate"]))
    assert [line.split("─ ")[1].split(" ─")[0] for line in whole.splitlines() if "╭─ " in line][1:] == list(PANELS)
    titles = [line.split("─ ")[1].split(" ─")[0] for line in simulate.splitlines() if "╭─ " in line]
    assert {"Traffic", "Engines", "Delays", "Limits", "Output"} < set(titles)


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(app, ["nope"])
    assert result.exit_code == 2
    assert "No such command 'nope'" in result.stderr
    assert "Did you mean" not in result.stderr


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("simulat", "lengthwise simulate"),
        ("bnch", "lengthwise bench"),
        ("sim", "lengthwise simulate"),
        ("run", "lengthwise serve"),
        ("policy", "lengthwise policies"),
        ("version", "lengthwise --version"),
        ("keys create", "lengthwise keys add"),
        ("workload info", "lengthwise workload describe"),
        ("workload decribe", "lengthwise workload describe"),
        ("traces ls", "lengthwise traces list"),
    ],
)
def test_the_command_that_is_meant_is_suggested(given: str, meant: str) -> None:
    result = CliRunner().invoke(app, given.split())
    assert result.exit_code == 2
    assert f"Did you mean `{meant}`?" in _in_one_line(result.stderr)


def test_an_unknown_command_of_a_group_names_all_of_them_and_the_one_that_creates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CliRunner().invoke(app, ["workload", "create"])
    assert result.exit_code == 2
    shown = _in_one_line(result.stderr)
    assert "There are castillo, day, react, agents, alpaca, trace and describe." in shown
    suggested = shown.partition("Did you mean `lengthwise ")[2].partition("`")[0]
    assert suggested.startswith("workload castillo --llm")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, suggested.split()).exit_code == 0


def test_every_command_that_is_suggested_exists() -> None:
    for group, words in MEANT.items():
        known = _load(group).commands if group else {**COMMANDS, "--version": 0, "--help": 0}
        assert not words.keys() & known.keys()
        assert {meant.split()[0] for meant in words.values()} <= known.keys()


def _in_one_line(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("name", ["serve", "simulate", "keys"])
def test_flags_have_no_type_in_the_help(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "160"}).stdout
    assert "<bool>" not in shown
    assert "--help" in shown


def test_the_options_of_serve_are_in_groups_and_none_is_left_over() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"]).stdout
    groups = [line.split("─ ")[1].split(" ─")[0] for line in shown.splitlines() if "╭─ " in line]
    assert groups == ["Options", *PANELS_OF_SERVE]
    assert {name for names in PANELS_OF_SERVE.values() for name in names} == set(GatewayConfig.model_fields) - {
        "engines", "models", "classes", "tenants"
    }  # fmt: skip


@pytest.mark.parametrize(("command", "names"), [("policies", {*POLICIES, *WRAPPERS}), ("routers", {*ROUTERS})])
def test_policies_and_routers_are_listed_with_one_line_each(command: str, names: set[str]) -> None:
    listed = json.loads(CliRunner().invoke(app, [command, "--json"]).stdout)
    assert {row["name"] for row in listed} == names
    assert all(row["what"].endswith(".") for row in listed)
    assert set(re.findall(r"^│?([a-z0-9_]+)", CliRunner().invoke(app, [command]).stdout, re.MULTILINE)) >= names


def test_output_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    for name, problem in (("page.txt", "does not end in .html"), ("folder.html", "is a folder")):
        result = CliRunner().invoke(app, ["evaluate", "constant", "nowhere", "--report", str(tmp_path / name)])
        assert result.exit_code == 2
        assert f"{name}: {problem}" in result.stderr


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("pyarrow", "simulate castillo", "sim"),
        ("pyarrow", "bench --url http://127.0.0.1:1", "serve"),
        ("httptools", "serve --engine http://127.0.0.1:1", "serve"),
    ],
)
def test_a_missing_package_names_the_extra_that_installs_it(package: str, arguments: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv = ['lengthwise', *{arguments.split()!r}]\n"
        "from lengthwise.cli import main; main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == (f"error: {package} is not installed; run: {install_line(extra)}")


def options(command: Any) -> set[str]:
    """The options of a command and of the commands below it."""
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")}
    return own.union(*(options(below) for below in getattr(command, "commands", {}).values()))


def test_every_option_that_an_error_names_exists() -> None:
    known = {name: options(_load(name)) for name in COMMANDS}
    of_any = set().union(*known.values(), ["--no-deps", "--measure", "--plot"])  # of pip, and of the studies
    package = Path(lengthwise.__file__).parent
    named = 0
    for path in package.rglob("*.py"):
        command = path.stem if path.parent.name == "cli" else ""
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InputError":
                texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                found = {flag for text in map(str, texts) for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)}
                assert found <= known.get(command, of_any), f"{path.name}:{node.lineno}"
                named += len(found)
    assert named > 50


def test_the_extras_that_an_error_names_install_the_package() -> None:
    brought = {extra: {_distribution(line) for line in requires} for extra, requires in _extras().items()}
    for extra, packages in EXTRAS.items():
        missing = {DISTRIBUTIONS.get(package, package.replace("_", "-")) for package in packages} - brought[extra]
        assert not missing, extra


def test_a_router_that_misses_numba_names_extras_that_install_it() -> None:
    code = (
        "import sys; sys.modules['numba'] = None; from lengthwise.routers import make_router; make_router('lengthwise')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    named = re.findall(r"\[(\w+)\]", run.stderr.splitlines()[-1])
    assert named
    assert all("numba" in map(_distribution, _extras()[extra]) for extra in named)


def _extras() -> dict[str, list[str]]:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


def _distribution(requirement: str) -> str:
    return re.split(r"[\[<>=;]", requirement)[0]
