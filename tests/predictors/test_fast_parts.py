"""The fast tier's parts: reading, tables, network, file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.calibration import Adjustment, Calibration
from lengthwise.predictors.fast import FastPredictor, load_fast
from lengthwise.predictors.fast.predictor import CLIP, FastNetwork
from lengthwise.predictors.fast.text import (
    CLASSES,
    EDGE,
    FEATURES,
    MOST_WORDS,
    PAIRS,
    RESERVED,
    Reader,
    Tables,
    excerpt,
    split,
    terms,
)
from lengthwise.predictors.llm_names import FEATURES as NAME_FEATURES
from lengthwise.predictors.model_file import read_model_file, write_model_file

WORDS = [b"hello", b"world", b"list"]
CARD = {"kind": "fast", "name": "tiny", "data": "none", "licences": "none", "limits": "all"}


def some(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.normal(0, 0.1, shape).astype(np.float32)


def random_network(width: int, seed: int = 0) -> FastNetwork:
    rng = np.random.default_rng(seed)
    shapes = ((width, 8), (8,), (8, 6), (6,), (3, 6), (3, 3), (NAME_FEATURES, 3), (6, 4), (8, 4), (4,))
    return FastNetwork(
        np.ones(width, np.float32), np.full(width, 9.0, np.float32), *(some(rng, *each) for each in shapes)
    )


def tiny(calibration: Calibration | None = None) -> FastPredictor:
    """A predictor of random weights."""
    rng, reader = np.random.default_rng(0), Reader.of(WORDS)
    tables = Tables.of(some(rng, reader.size, 9), some(rng, PAIRS, 5), some(rng, reader.size + PAIRS) ** 2)
    levels = np.array([5.0, 6.0, 5.5])
    network, llms = random_network(tables.width), ("a/one-7B", "b/two-1B")
    return FastPredictor(reader, tables, network, llms, levels, calibration or Calibration())


def test_words_are_lower_case_runs_and_some_signs_are_words() -> None:
    assert split(b"Hello, World-wide?\nlist[2]") == [b"hello", b"world", b"wide", b"\x011", b"\x010", b"list", b"2"]


def test_a_text_cannot_forge_a_sign() -> None:
    assert split(excerpt("\x011 hello")) == [b"1", b"hello"]


def test_known_words_numbers_and_strangers_have_rows_of_their_own_between_the_edges() -> None:
    page = Reader.of(WORDS).read("hello 12345 zyxwv")
    assert page.words[0] == page.words[-1] == EDGE
    assert page.words[1] == RESERVED
    assert len(set(page.words.tolist())) == 4
    assert 0 < page.words[2:4].min() <= page.words[2:4].max() < RESERVED
    assert page.strangeness == pytest.approx(1 / 3)


@pytest.mark.parametrize("nothing", ["", " \t ", "\n?\n", "..."])
def test_a_page_without_a_word_is_as_strange_as_can_be(nothing: str) -> None:
    assert Reader.of(WORDS).read(nothing).strangeness == 1.0


def test_only_so_many_words_are_looked_up() -> None:
    assert len(Reader.of(WORDS).read("a " * 100_000).words) == MOST_WORDS + 2


def test_every_byte_is_counted_once() -> None:
    features = Reader.of(WORDS).read("".join(map(chr, range(2, 128)))).features
    assert len(features) == FEATURES
    assert np.expm1(features[:CLASSES]).sum() == pytest.approx(126, rel=1e-4)
    shares = features[FEATURES // 2 : FEATURES // 2 + CLASSES]
    assert shares.sum() == pytest.approx(126 / 127, rel=1e-4)


def test_terms_are_distinct_and_pairs_know_their_order() -> None:
    one, other = (terms(np.array(order, np.int32), 100).tolist() for order in ([1, 2, 1, 2], [2, 1, 2, 1]))
    assert set(one[:2]) == set(other[:2]) == {1, 2}
    assert len(one) == len(set(one)) == 4
    assert set(one) == set(other)  # both hold both orders
    assert terms(np.array([1, 2], np.int32), 100)[-1] != terms(np.array([2, 1], np.int32), 100)[-1]
    assert 100 <= min(one[2:]) <= max(one[2:]) < 100 + PAIRS


def test_rounding_tables_keeps_the_proportions_of_a_column_over_words_and_pairs() -> None:
    rng = np.random.default_rng(0)
    words, pairs = rng.normal(size=(50, 3)), rng.normal(size=(20, 2)) * 3.0
    tables = Tables.of(words, pairs, np.ones(70, np.float32))
    for column in range(2):
        step = max(np.abs(words[:, column]).max(), np.abs(pairs[:, column]).max()) / 127.0
        np.testing.assert_allclose(tables.words[:, column] * step, words[:, column], atol=step * 0.501)
        np.testing.assert_allclose(tables.pairs[:, column] * step, pairs[:, column], atol=step * 0.501)


def test_a_description_is_the_features_and_the_weighted_sum_of_the_rows_of_distinct_terms() -> None:
    predictor = tiny()
    tables, page = predictor.tables, predictor.reader.read("hello world hello world, hello")
    size, narrow = len(tables.words), tables.pairs.shape[1]
    rows = np.zeros((size + PAIRS, tables.words.shape[1]))
    rows[:size], rows[size:, :narrow] = tables.words, tables.pairs
    found = terms(page.words, size)
    weight = tables.rarity[found] / np.linalg.norm(tables.rarity[found])
    described = tables.describe(page)
    np.testing.assert_array_equal(described[:FEATURES], page.features)
    np.testing.assert_allclose(described[FEATURES:], weight @ rows[found], rtol=1e-3, atol=1e-3)


def test_no_description_drives_the_network_beyond_the_clip() -> None:
    network = tiny().network
    far = np.full(len(network.centre), 1e9, np.float32)
    assert np.abs(network.standardise(far)).max() == np.abs(network.standardise(-far)).max() == CLIP


def test_a_mean_of_networks_says_the_mean_of_what_they_say() -> None:
    networks = [random_network(5, seed) for seed in range(3)]
    x, features = some(np.random.default_rng(9), 5), some(np.random.default_rng(8), NAME_FEATURES)

    def says(network: FastNetwork) -> NDArray[np.float32]:
        hidden, direct = network.prompt(network.standardise(x))
        return network.outputs(hidden + network.who(1, features), direct)

    np.testing.assert_allclose(
        says(FastNetwork.mean(networks)), np.mean([says(one) for one in networks], axis=0), rtol=1e-4
    )
    np.testing.assert_allclose(says(FastNetwork.mean(networks[:1])), says(networks[0]), rtol=1e-6)


def test_outputs_are_what_predictions_are_made_of() -> None:
    predictor, prompts = tiny(), ["hello world", "a list?"]
    raw = predictor.outputs(prompts)
    assert raw.shape == (2, 3, 4)
    for row, llm in enumerate((*predictor.llms, "")):
        predictions = predictor.predict(prompts, [llm] * 2)
        np.testing.assert_allclose(predictions.mu, raw[:, row, 0], rtol=1e-4)
        np.testing.assert_allclose(np.log(predictions.sample_mean), raw[:, row, 2], rtol=1e-4)
        np.testing.assert_allclose(np.log(predictions.sample_std), raw[:, row, 3], rtol=1e-4)
    assert predictor.outputs([]).shape == (0, 3, 4)


def test_calibration_shifts_medians_and_widens_spreads_of_its_llm_and_of_strangers() -> None:
    adjusted = Calibration(Adjustment(0.5, 3.0), {"a/one-7B": Adjustment(-0.25, 2.0)}, 5.0)
    llms = ["a/one-7B", "b/two-1B", "nobody"]
    plain, found = (tiny(one).predict(["hello"] * 3, llms) for one in (None, adjusted))
    np.testing.assert_allclose(found.mu - plain.mu, [-0.25, 0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(found.sigma / plain.sigma, [2.0, 3.0, 3.0], rtol=1e-6)
    np.testing.assert_array_equal(found.sample_mean, plain.sample_mean)
    assert found.columns.nu == 5.0


def test_a_predictor_comes_back_from_its_file(tmp_path: Path) -> None:
    path, made = tmp_path / "tiny.lw", tiny(Calibration(Adjustment(0.1, 1.2), {"b/two-1B": Adjustment(-0.1, 1.5, 9)}))
    write_model_file(path, CARD, made.parts())
    read = load_fast(read_model_file(path), path)
    prompts, llms = ["hello world", "a list?", "hello"], ["a/one-7B", "b/two-1B", "nobody"]
    one, other = read.predict(prompts, llms), made.predict(prompts, llms)
    np.testing.assert_allclose(one.mu, other.mu, atol=0.02)
    np.testing.assert_allclose(one.sigma, other.sigma, rtol=0.02)
    assert read.card["name"] == "tiny"


@pytest.mark.parametrize(
    ("part", "holds"),
    [
        ("tables.npz", b"nonsense"),
        ("network.npz", b""),
        ("network.npz", b"PK\x03\x04 and no more"),
        ("calibration.json", b"{"),
        ("calibration.json", json.dumps({"others": {}}).encode()),
    ],
)
def test_a_broken_part_is_named_with_its_file(tmp_path: Path, part: str, holds: bytes) -> None:
    path = tmp_path / "broken.lw"
    write_model_file(path, CARD, tiny().parts() | {part: holds})
    with pytest.raises(InputError, match=r"broken\.lw.*a part is not what it should be"):
        load_fast(read_model_file(path), path)


def test_a_file_of_another_way_of_reading_is_refused(tmp_path: Path) -> None:
    other = tiny()
    network = FastNetwork.of({name: value[:-1] if name in ("centre", "spread", "a") else value
                          for name, value in other.network.arrays().items()})  # fmt: skip
    path = tmp_path / "older.lw"
    parts = FastPredictor(other.reader, other.tables, network, other.llms, other.levels, Calibration()).parts()
    write_model_file(path, CARD, parts)
    with pytest.raises(InputError, match="describes prompts in another way"):
        load_fast(read_model_file(path), path)


def test_a_file_without_its_network_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.lw"
    write_model_file(path, CARD, {name: part for name, part in tiny().parts().items() if name != "network.npz"})
    with pytest.raises(InputError, match=r"half\.lw: part 'network\.npz' is missing"):
        load_fast(read_model_file(path), path)
