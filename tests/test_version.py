"""The install command is that of the installation: a clone, a wheel, or the index."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from lengthwise import version


def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: object) -> None:
    found = SimpleNamespace(read_text=lambda _name: None if origin is None else json.dumps(origin))
    monkeypatch.setattr(metadata, "distribution", lambda _name: found)
    monkeypatch.setattr(version, "ROOT", tmp_path / "site-packages" / "lengthwise")


def test_a_clone_is_installed_again_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    clone = version.ROOT.parent.parent
    monkeypatch.chdir(clone)
    assert version.install_line("sim", "serve") == "pip install -e '.[sim,serve]'"
    monkeypatch.chdir(clone.parent)
    assert version.install_line("sim") == f"pip install -e '{clone}[sim]'"
    assert version.install_line("all", here=False) == "pip install -e '.[all]'"


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        ({"url": "file:///w/lengthwise-0.1.0-py3-none-any.whl"}, "'/w/lengthwise-0.1.0-py3-none-any.whl[sim]'"),
        (None, "'lengthwise[sim]'"),
        ([], "'lengthwise[sim]'"),
    ],
)
def test_a_wheel_and_the_index_are_named(
    origin: object, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, tmp_path, origin)
    assert version.install_line("sim") == f"pip install {line}"
    assert "/w/" not in version.install_line("sim", here=False)
