"""A release: the sdist builds, and the wheel from it installs into a clean environment and works there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import lengthwise
from lengthwise.cli import COMMANDS

ROOT = Path(__file__).parents[1]
WHEEL_LIMIT_MB = 40
CORE_LIMIT_MB = 450
pytestmark = pytest.mark.xdist_group("release")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command without the repository on the path and return what it prints."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LENGTHWISE_DATA", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with nothing but pip and the build backend."""
    folder = tmp_path_factory.mktemp("release")
    run(sys.executable, "-m", "venv", "venv", cwd=folder)
    run(folder / "venv/bin/pip", "install", "--quiet", "hatchling", cwd=folder)
    return folder / "venv"


@pytest.fixture(scope="module")
def sdist(environment: Path) -> Path:
    target = environment.parent / "dist"
    run(environment / "bin/python", "-m", "hatchling", "build", "-t", "sdist", "-d", target, cwd=ROOT)
    (archive,) = target.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(environment: Path, sdist: Path) -> Path:
    """The wheel, built from the sdist as a package index would."""
    pip = environment / "bin/pip"
    run(pip, "wheel", "--no-deps", "--no-build-isolation", "-w", sdist.parent, sdist, cwd=sdist.parent)
    (archive,) = sdist.parent.glob("*.whl")
    return archive


def needed_distributions(roots: list[str]) -> dict[str, Distribution]:
    """Return the distributions that these requirements bring, as they are installed beside the tests."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(text) for text in roots]
    while waiting:
        requirement = waiting.pop()
        if requirement.name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[requirement.name] = distribution(requirement.name)
        waiting += [Requirement(text) for text in found[requirement.name].requires or []]
    return found


@pytest.fixture(scope="module")
def core(environment: Path, wheel: Path) -> tuple[Path, float]:
    """The environment with the wheel and its own dependencies only, and the size of its packages in MB.

    Dependencies are linked from the environment of the tests instead of being downloaded again.
    """
    run(environment / "bin/pip", "install", "--quiet", "--no-deps", wheel, cwd=environment.parent)
    site = Path(
        run(environment / "bin/python", "-c", "import site; print(site.getsitepackages()[0])", cwd=ROOT).strip()
    )
    size = sum(path.stat().st_size for path in (site / "lengthwise").rglob("*") if path.is_file())
    for found in needed_distributions(requirements_of(wheel)).values():
        for file in found.files or []:
            size += Path(str(found.locate_file(file))).stat().st_size if file.suffix != ".pyc" else 0
            top = file.parts[0]
            if top != ".." and top != "__pycache__" and not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return environment, size / 1e6


def requirements_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as content:
        (name,) = [name for name in content.namelist() if name.endswith(".dist-info/METADATA")]
        head = HeaderParser().parsestr(content.read(name).decode())
    return [text for text in head.get_all("Requires-Dist") or [] if "extra ==" not in text]


def test_the_wheel_is_small_and_holds_the_package_and_nothing_else(
    wheel: Path, sdist: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = wheel.stat().st_size / 1e6
    with capsys.disabled():
        print(f"\nwheel {size:.1f} MB, sdist {sdist.stat().st_size / 1e6:.1f} MB")  # noqa: T201
    assert size <= WHEEL_LIMIT_MB
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"lengthwise"}
    assert "lengthwise/py.typed" in names
    assert not any(name.endswith((".pyc", ".nbi", ".nbc")) for name in names)


def test_the_sdist_holds_sources_tests_and_documentation(sdist: Path) -> None:
    with tarfile.open(sdist) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    for name in (
        "Makefile",
        "mkdocs.yml",
        "docs/index.md",
        "tests/conftest.py",
        "experiments/study.py",
        "CITATION.cff",
    ):
        assert name in names


def test_the_plain_install_is_light_and_predicts(
    core: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment, size = core
    with capsys.disabled():
        print(f"\nplain install {size:.0f} MB of packages")  # noqa: T201
    assert size <= CORE_LIMIT_MB
    program = environment / "bin/lengthwise"
    assert run(program, "--version", cwd=tmp_path).strip() == f"lengthwise {lengthwise.__version__}"
    assert "Predict how long" in run(program, "--help", cwd=tmp_path)
    assert "tokens" in run(program, "predict", "Why is the sky blue?", "--llm", "llama-3.1-8b", cwd=tmp_path)
    place = run(environment / "bin/python", "-c", "import lengthwise; print(lengthwise.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(environment)


@pytest.mark.parametrize(("command", "extra"), [("simulate castillo", "sim"), ("serve --engine http://x:1", "serve")])
def test_a_command_beyond_the_plain_install_names_its_extra(
    core: tuple[Path, float], command: str, extra: str, tmp_path: Path
) -> None:
    program = core[0] / "bin/lengthwise"
    done = subprocess.run([program, *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f".whl[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [("lengthwise si", {"simulate"}), ("lengthwise doctor --eng", {"--engine"}), ("lengthwise ", set(COMMANDS))],
)
def test_the_shell_completes_commands_and_options(
    core: tuple[Path, float], words: str, expected: set[str], tmp_path: Path
) -> None:
    number = str(len(words.split(" ")) - 1)
    variables = {"_LENGTHWISE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": number}
    assert expected <= set(run(core[0] / "bin/lengthwise", cwd=tmp_path, **variables).split())
