"""The fast tier's parts: reading, tables, file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.fast import FastPredictor, load_fast
from lengthwise.predictors.fast.network import Network
from lengthwise.predictors.fast.tables import PAIRS, Packed, Tables, terms
from lengthwise.predictors.fast.text import CLASSES, MOST_WORDS, RESERVED, Reader, excerpt, split
from lengthwise.predictors.file import read_model_file, write_model_file
from lengthwise.predictors.identity import FEATURES as NAME_FEATURES

if TYPE_CHECKING:
    from pathlib import Path

WORDS = [b"hello", b"world", b"list"]
CARD = {"kind": "fast", "name": "tiny", "data": "none", "licences": "none", "limits": "all"}


def tiny() -> FastPredictor:
    """A predictor of random weights."""
    rng = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return rng.normal(0, 0.1, shape).astype(np.float32)

    reader = Reader.of(WORDS)
    rows = reader.size + PAIRS
    tables = Tables(Packed.of(some(reader.size, 4)), Packed.of(some(rows, 5)), some(rows) ** 2, some(rows), 0.1)
    width = tables.width
    network = Network(some(width), np.ones(width, np.float32), some(2, width, 8), some(2, 8), some(2, 8, 6),
                      some(2, 6), some(2, 3, 6), some(2, 3, 3), some(2, NAME_FEATURES, 3), some(2, 6, 4),
                      some(2, 8, 4), some(2, 4))  # fmt: skip
    return FastPredictor(reader, tables, network, ("a/one-7B", "b/two-1B"), np.array([5.0, 6.0, 5.5]), np.ones(3))


def test_words_are_lower_case_runs_and_some_signs_are_words() -> None:
    assert split(b"Hello, World-wide?\nlist[2]") == [b"hello", b"world", b"wide", b"\x011", b"\x010", b"list", b"2"]


def test_a_text_cannot_forge_a_sign() -> None:
    assert split(excerpt("\x011 hello")) == [b"1", b"hello"]


def test_known_words_numbers_and_strangers_have_rows_of_their_own() -> None:
    page = Reader.of(WORDS).read("hello 12345 zyxwv")
    assert page.words[0] == RESERVED
    assert len(set(page.words.tolist())) == 3
    assert page.words[1:].max() < RESERVED
    assert page.strangeness == pytest.approx(1 / 3)


def test_only_so_many_words_are_looked_up() -> None:
    assert len(Reader.of(WORDS).read("a " * 100_000).words) == MOST_WORDS


def test_every_byte_is_counted_once() -> None:
    features = Reader.of(WORDS).read("".join(map(chr, range(2, 128)))).features
    assert np.expm1(features[:CLASSES]).sum() == pytest.approx(126, rel=1e-4)


def test_terms_are_distinct_and_pairs_know_their_order() -> None:
    one, other = (set(terms(np.array(order, np.int32), 100)[0].tolist()) for order in ([1, 2], [2, 1]))
    assert one & other == {1, 2}
    assert len(one) == len(other) == 3


def test_packing_errs_by_half_a_step_at_most() -> None:
    matrix = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    packed = Packed.of(matrix)
    assert np.all(np.abs(packed.take(np.arange(50, dtype=np.int32)) * packed.scales - matrix) <= packed.scales * 0.501)


def test_a_predictor_comes_back_from_its_file(tmp_path: Path) -> None:
    path, made = tmp_path / "tiny.lw", tiny()
    write_model_file(path, CARD, made.parts())
    read = load_fast(read_model_file(path), path)
    prompts, llms = ["hello world", "a list?"], ["a/one-7B", "b/two-1B"]
    np.testing.assert_allclose(read.predict(prompts, llms).mu, made.predict(prompts, llms).mu, atol=0.02)
    assert read.card["name"] == "tiny"


def test_a_broken_part_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.lw"
    write_model_file(path, CARD, tiny().parts() | {"tables.npz": b"nonsense"})
    with pytest.raises(InputError, match=r"broken\.lw.*a part is not what it should be"):
        load_fast(read_model_file(path), path)


def test_a_file_without_its_network_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.lw"
    write_model_file(path, CARD, {name: part for name, part in tiny().parts().items() if name != "network.npz"})
    with pytest.raises(InputError, match=r"half\.lw: part 'network\.npz' is missing"):
        load_fast(read_model_file(path), path)
