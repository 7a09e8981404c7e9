from __future__ import annotations

from pathlib import Path

import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.model_file import read_model_file, write_model_file

CARD = {"kind": "test", "name": "t", "data": "none", "licences": [], "limits": "all"}


def test_a_file_comes_back_as_it_was_and_is_the_same_twice(tmp_path: Path) -> None:
    for name in ("a.lw", "b.lw"):
        write_model_file(tmp_path / name, CARD, {"weights": b"\x00\x01"})
    model = read_model_file(tmp_path / "a.lw")
    assert model.kind == "test"
    assert model.part("weights") == b"\x00\x01"
    assert (tmp_path / "a.lw").read_bytes() == (tmp_path / "b.lw").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.lw", "b.lw"]


def test_the_error_names_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.lw"
    with pytest.raises(InputError, match="is not a file"):
        read_model_file(path)
    write_model_file(path, CARD, {"weights": b"12345678" * 100})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="is not a complete model file"):
        read_model_file(path)
    write_model_file(path, CARD, {})
    with pytest.raises(InputError, match="part 'weights' is missing"):
        read_model_file(path).part("weights")
    with pytest.raises(InputError, match="the card has no kind"):
        write_model_file(path, {k: v for k, v in CARD.items() if k != "kind"}, {})


def test_a_newer_file_asks_for_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.predictors.model_file.FORMAT", 2)
    write_model_file(tmp_path / "m.lw", CARD, {})
    monkeypatch.setattr("lengthwise.predictors.model_file.FORMAT", 1)
    with pytest.raises(InputError, match="newer than 1; update"):
        read_model_file(tmp_path / "m.lw")
