from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.model_file import pack_arrays, read_model_file, unpack_arrays, write_model_file
from lengthwise.predictors.resolve import MODELS, load_predictor, model_path

CARD = {"kind": "test", "name": "t", "data": "none", "licences": [], "limits": "all"}


def test_a_file_is_read_back_and_written_deterministically(tmp_path: Path) -> None:
    for name in ("a.lw", "b.lw"):
        write_model_file(tmp_path / name, CARD, {"weights": b"\x00\x01"})
    model = read_model_file(tmp_path / "a.lw")
    assert model.kind == "test"
    assert model.part("weights") == b"\x00\x01"
    assert (tmp_path / "a.lw").read_bytes() == (tmp_path / "b.lw").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.lw", "b.lw"]


def test_an_unreadable_file_is_an_error_with_the_reason(tmp_path: Path) -> None:
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


def test_a_file_of_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthwise.predictors.model_file.FORMAT", 2)
    write_model_file(tmp_path / "m.lw", CARD, {})
    monkeypatch.setattr("lengthwise.predictors.model_file.FORMAT", 1)
    with pytest.raises(InputError, match="newer than 1; update"):
        read_model_file(tmp_path / "m.lw")


def test_a_file_of_a_format_that_no_release_wrote_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.lw", "w") as archive:
        archive.writestr("card.json", json.dumps({**CARD, "format": 0}))
    with pytest.raises(InputError, match="has format 0, which no release wrote"):
        read_model_file(tmp_path / "m.lw")


def test_a_part_that_was_replaced_after_writing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.lw"
    write_model_file(path, CARD, {"weights": b"12345678", "names": b"a"})
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    for altered in (parts | {"weights": b"12345679"}, parts | {"more": b""}):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in altered.items():
                archive.writestr(name, data)
        with pytest.raises(InputError, match="was altered after it was written"):
            read_model_file(path)


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.lw")), ids=lambda path: path.stem)
def test_a_packaged_file_carries_the_checksum_of_every_part(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        names = {*archive.namelist()} - {"card.json"}
        assert json.loads(archive.read("card.json"))["parts_sha256"].keys() == names
    read_model_file(path)


def test_a_file_of_an_earlier_release_without_checksums_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.lw"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("card.json", json.dumps({**CARD, "format": 1}))
        archive.writestr("weights", b"12")
    assert read_model_file(path).part("weights") == b"12"


@pytest.mark.parametrize("kind", ["fast", "encoder"])
def test_parts_of_another_kind_of_file_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.lw"
    names = ("tables.npz", "network.npz", "calibration.json", "words.txt", "llms.txt", "encoder.json", "model.onnx")
    write_model_file(path, {**CARD, "kind": kind}, dict.fromkeys((*names, "tokenizer.json"), b"{}"))
    with pytest.raises(InputError, match=r"m\.lw: a part is invalid; get the file again") as refused:
        load_predictor(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("part", "name", "altered"),
    [
        ("tables.npz", "words", np.float32(1)),
        ("tables.npz", "levels", np.zeros((1, 4))),
        ("network.npz", "a", np.zeros((3, 3))),
        ("network.npz", "c_bias", np.full(4, np.nan)),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused_in_one_line(
    tmp_path: Path, part: str, name: str, altered: NDArray[Any]
) -> None:
    path, file = tmp_path / "m.lw", read_model_file(model_path("fast"))
    arrays = {**unpack_arrays(file.part(part)), name: altered}
    write_model_file(path, file.card, {**file.parts, part: pack_arrays(arrays)})
    with pytest.raises(InputError, match=r"m\.lw: .*; get the file again") as refused:
        load_predictor(path)
    assert "\n" not in str(refused.value)


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_file_is_refused_or_its_parts_are_intact(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.lw"
        write_model_file(path, CARD, {"weights": bytes(range(256)) * 4})
        whole = path.read_bytes()
        place = data.draw(st.integers(0, len(whole) - 1))
        damaged = data.draw(
            st.sampled_from([whole[:place], whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :]])
        )
        path.write_bytes(damaged)
        try:
            read = read_model_file(path)
        except InputError:
            return
        assert read.part("weights") == bytes(range(256)) * 4  # the damage is in unused bytes
