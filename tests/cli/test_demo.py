"""`lengthwise demo`: what it says where something is missing or wrong."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.cli.demo import _open
from lengthwise.demo.recording import Recording
from lengthwise.errors import InputError

HEAVY = {"numba", "torch", "pandas", "matplotlib", "plotly", "onnxruntime", "ray", "vllm"}


def refused(*options: str) -> str:
    result = CliRunner().invoke(app, ["demo", "--no-open", *options])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    return line


def test_a_taken_port_is_one_line_that_names_the_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = refused("--port", str(taken.getsockname()[1]))
    assert "is taken" in line
    assert "--port" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--policy", "no_such"), "no_such"),
        (("--fleet", "3*unknown@gpu"), "unknown"),
        (("--from", "no/such/folder"), "is not a folder"),
    ],
)
def test_a_wrong_option_is_one_line(options: tuple[str, ...], words: str) -> None:
    assert words in refused(*options)


def test_a_missing_extra_is_one_line_that_says_what_to_run(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('no', name='uvicorn')\n")
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = ['demo']"
    code = f"{start}; import lengthwise.cli; lengthwise.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: uvicorn is not installed; run: pip install ")
    assert "[serve]" in line


def test_a_recording_without_a_browser_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    line = refused("--record", str(tmp_path / "demo.webp"))
    assert "Chromium" in line
    assert "--record" in line


def test_a_browser_that_ends_at_once_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(InputError, match="does not answer"):
        asyncio.run(Recording(tmp_path / "demo.webp")("http://127.0.0.1:1/"))


def test_a_recording_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    assert "does not end in .webp" in refused("--record", str(tmp_path / "demo.gif"))
    assert "no such folder" in refused("--record", str(tmp_path / "nothing" / "demo.webp"))


def test_without_a_screen_no_browser_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert not _open("http://127.0.0.1:1/")


def test_it_imports_nothing_that_takes_long_to_load_or_to_compile() -> None:
    code = "import sys, lengthwise.cli.demo; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(found.stdout.split())
