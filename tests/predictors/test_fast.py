"""The fast predictor takes any prompt and any LLM, and is wider for unfamiliar ones."""

from __future__ import annotations

import functools
import json
import logging
import math
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.llm_names import FEATURES as NAME_FEATURES
from lengthwise.predictors import LengthPredictor, PredictionInput
from lengthwise.predictors.calibration import Adjustment, Calibration
from lengthwise.predictors.fast import (
    CLASSES,
    CLIP,
    COUNTED,
    EDGE,
    FEATURES,
    MAX_SIGMA,
    PAIRS,
    RESERVED,
    FastNetwork,
    FastPredictor,
    Reader,
    WordTables,
    load_fast,
    terms,
)
from lengthwise.predictors.learner import Learner
from lengthwise.predictors.model_file import read_model_file, write_model_file
from lengthwise.predictors.novelty import Novelty
from lengthwise.predictors.prediction import NOVEL
from lengthwise.predictors.prompt_words import MAX_WORDS, as_bytes, excerpt, split
from lengthwise.predictors.resolve import load_predictor

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
PLAIN = "Write a Python function that returns the sum of all even numbers in a list. Explain how it works."


@pytest.fixture(scope="module")
def fast() -> FastPredictor:
    return cast("FastPredictor", load_predictor("fast"))


def median(fast: FastPredictor, prompt: str, llm: str = LLAMA) -> float:
    return float(fast.predict([prompt], [llm]).quantile(0.5)[0])


def sigma(fast: FastPredictor, prompt: str, llm: str = LLAMA) -> float:
    return float(fast.predict([prompt], [llm]).sigma[0])


def test_fast_implements_the_predictor_contract(fast: FastPredictor) -> None:
    assert isinstance(fast, LengthPredictor)
    predictions = fast.predict([PredictionInput(PLAIN, LLAMA, max_tokens=50)])
    assert predictions[0].cap == 50
    assert predictions.sample_mean[0] > 0
    assert predictions.sample_std[0] > 0
    assert len(fast.predict([])) == 0


def test_a_programming_contest_task_is_predicted_longer_than_a_factual_question(fast: FastPredictor) -> None:
    contest = (
        "QUESTION: Alice has an array of N integers and Q queries. For each query print the sum of the elements "
        "from L to R modulo 1000000007.\n\n-----Input-----\nThe first line contains N and Q.\n\n"
        "-----Output-----\nFor each query print one line.\n\n-----Sample Input-----\n3 1\n1 2 3\n1 3\n\n"
        "-----Sample Output-----\n6\n"
    )
    assert median(fast, contest) > 1.5 * median(fast, "Who is Ada Lovelace?")


def test_predictions_do_not_depend_on_the_batch(fast: FastPredictor) -> None:
    prompts = [PLAIN, "Who was Ada Lovelace?", "", "def f(x):\n    return x"]
    llms = [LLAMA, "gemma-3-4b", "mixtral-8x7b", "owner/unknown"]
    together = fast.predict(prompts, llms)
    alone = [fast.predict([prompt], [llm]) for prompt, llm in zip(prompts, llms, strict=True)]
    np.testing.assert_allclose(together.mu, [one.mu[0] for one in alone], rtol=1e-4)
    np.testing.assert_allclose(together.sigma, [one.sigma[0] for one in alone], rtol=1e-4)


def test_a_short_name_resolves_to_its_llm(fast: FastPredictor) -> None:
    assert median(fast, PLAIN, "llama-3.1-8B") == median(fast, PLAIN, LLAMA)
    assert median(fast, PLAIN, "llama-3.2-1B") != median(fast, PLAIN, LLAMA)


def test_an_unknown_llm_is_logged_once_and_predicted_more_widely(
    fast: FastPredictor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            unknown = sigma(fast, PLAIN, "acme/unknown-9B")
    assert [record.getMessage() for record in caplog.records if "acme/unknown-9B" in record.getMessage()] == [
        "LLM 'acme/unknown-9B' is not known to this predictor; the predictions of an unknown LLM are used"
    ]
    assert unknown > sigma(fast, PLAIN)


@pytest.mark.parametrize(
    "odd",
    [
        "",
        " \n\t ",
        "请详细介绍一下南京大学的历史和现状，并列出主要学科。",
        "Расскажите подробно об истории Московского университета.",
        "".join(map(chr, random.Random(0).choices(range(256), k=3_000))),
        "lorem ipsum dolor " * 25_000,
        "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FA5), k=100_000))),
    ],
    ids=["empty", "blank", "Chinese", "Russian", "noise", "100k tokens", "100k Chinese"],
)
def test_prompts_unlike_the_training_data_are_predicted_more_widely(fast: FastPredictor, odd: str) -> None:
    assert sigma(fast, odd) > 1.5 * sigma(fast, PLAIN)


@settings(max_examples=60)
@given(st.text(alphabet=st.characters(), max_size=400), st.text(max_size=40))
def test_any_string_is_a_valid_prompt_and_llm(prompt: str, llm: str) -> None:
    predictor = cast("FastPredictor", _shared())
    prediction = predictor.predict([prompt], [llm])[0]
    assert 1.0 <= prediction.quantile(0.5) <= prediction.cap


def test_a_lone_surrogate_is_a_valid_prompt(fast: FastPredictor) -> None:
    assert median(fast, "\ud800 what is this?") >= 1.0


def test_time_is_bounded_for_a_prompt_of_any_length(fast: FastPredictor) -> None:
    started = time.process_time()
    median(fast, "word " * 2_000_000)
    assert time.process_time() - started < 0.5


def test_the_middle_of_a_long_prompt_is_not_read(fast: FastPredictor) -> None:
    first, last = "Summarise this. " * 300, "Answer in one sentence. " * 60
    one, other = (f"{first}{middle * 500}{last}" for middle in ("alpha ", "omega "))
    assert median(fast, one) == median(fast, other)


def test_the_card_states_licences_data_and_accuracy(fast: FastPredictor) -> None:
    assert fast.card["licences"]["CASTILLO (lengths)"] == "CC-BY-4.0"
    assert "Apache-2.0" in fast.card["licences"]["MiniLM (encoder)"]
    assert len(fast.card["teacher"]["outputs_sha256"]) == 64
    assert "No Alpaca" in fast.card["data"]
    held, test = fast.card["figures"]["held_out"], fast.card["figures"]["test"]
    assert test["tau"] > 0.5
    assert 0.45 <= held["coverage_50"] <= 0.6
    assert 0.88 <= held["coverage_90"] <= 0.95


def test_a_prediction_loads_neither_torch_nor_a_tokenizer() -> None:
    program = (
        "import sys; from lengthwise.predictors.resolve import load_predictor;"
        "load_predictor('fast').predict(['hello'], ['llama-3.2-3B']);"
        "assert not {'torch', 'transformers', 'tokenizers', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


_kept: list[object] = []


def _shared() -> object:
    """Return one shared predictor: Hypothesis refuses function-scoped fixtures."""
    if not _kept:
        _kept.append(load_predictor("fast"))
    return _kept[0]


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
    """Return a predictor with random weights."""
    rng, reader = np.random.default_rng(0), Reader.of(WORDS)
    tables = WordTables.of(some(rng, reader.size, 9), some(rng, PAIRS, 5), some(rng, reader.size + PAIRS) ** 2)
    levels = np.array([5.0, 6.0, 5.5])
    network, llms = random_network(tables.width), ("a/one-7B", "b/two-1B")
    return FastPredictor(reader, tables, network, llms, levels, calibration or Calibration())


def test_words_are_lower_cased_and_some_punctuation_is_a_word() -> None:
    assert split(b"Hello, World-wide?\nlist[2]") == [b"hello", b"world", b"wide", b"\x011", b"\x010", b"list", b"2"]


def test_control_bytes_in_a_text_are_not_read_as_punctuation() -> None:
    assert split(as_bytes(excerpt("\x011 hello"))) == [b"1", b"hello"]


def test_known_words_numbers_and_unknown_words_have_separate_rows_between_the_edges() -> None:
    page = Reader.of(WORDS).read("hello 12345 zyxwv")
    assert page.words[0] == page.words[-1] == EDGE
    assert page.words[1] == RESERVED
    assert len(set(page.words.tolist())) == 4
    assert 0 < page.words[2:4].min() <= page.words[2:4].max() < RESERVED
    assert page.unknown_share == pytest.approx(1 / 3)


@pytest.mark.parametrize("text", ["", " \t ", "\n?\n", "..."])
def test_a_text_without_words_has_an_unknown_share_of_one(text: str) -> None:
    assert Reader.of(WORDS).read(text).unknown_share == 1.0


def test_the_number_of_words_is_bounded() -> None:
    assert len(Reader.of(WORDS).read("a " * 100_000).words) == MAX_WORDS + 2


def test_every_byte_is_counted_once() -> None:
    features = Reader.of(WORDS).read("".join(map(chr, range(2, 128)))).features
    assert len(features) == FEATURES
    assert np.expm1(features[:CLASSES]).sum() == pytest.approx(126, rel=1e-4)
    shares = features[COUNTED // 2 : COUNTED // 2 + CLASSES]
    assert shares.sum() == pytest.approx(126 / 127, rel=1e-4)


def test_terms_are_distinct_and_pairs_are_ordered() -> None:
    one, other = (terms(np.array(order, np.int32), 100).tolist() for order in ([1, 2, 1, 2], [2, 1, 2, 1]))
    assert set(one[:2]) == set(other[:2]) == {1, 2}
    assert len(one) == len(set(one)) == 4
    assert set(one) == set(other)  # both hold both orders
    assert terms(np.array([1, 2], np.int32), 100)[-1] != terms(np.array([2, 1], np.int32), 100)[-1]
    assert 100 <= min(one[2:]) <= max(one[2:]) < 100 + PAIRS


def test_quantised_tables_have_one_scale_per_column_for_words_and_pairs() -> None:
    rng = np.random.default_rng(0)
    words, pairs = rng.normal(size=(50, 3)), rng.normal(size=(20, 2)) * 3.0
    tables = WordTables.of(words, pairs, np.ones(70, np.float32))
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


def test_standardised_inputs_are_clipped() -> None:
    network = tiny().network
    far = np.full(len(network.centre), 1e9, np.float32)
    assert np.abs(network.standardise(far)).max() == np.abs(network.standardise(-far)).max() == CLIP


def test_a_mean_of_networks_returns_the_mean_of_their_outputs() -> None:
    networks = [random_network(5, seed) for seed in range(3)]
    x, features = some(np.random.default_rng(9), 5), some(np.random.default_rng(8), NAME_FEATURES)

    def outputs(network: FastNetwork) -> NDArray[np.float32]:
        hidden, direct = network.prompt(network.standardise(x))
        return network.outputs(hidden + network.llm_bias(1, features), direct)

    each = np.array([outputs(one) for one in networks])
    found = outputs(FastNetwork.mean(networks))
    np.testing.assert_allclose(found[:4], each.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(found[4:], each[:, 0], rtol=1e-4)  # the median of each, for their disagreement
    np.testing.assert_allclose(outputs(FastNetwork.mean(networks[:1]))[:4], outputs(networks[0]), rtol=1e-6)


def test_the_spread_grows_with_the_disagreement_of_the_networks() -> None:
    one = tiny()
    network = FastNetwork.mean([random_network(one.tables.width, seed) for seed in range(3)])
    narrow, wide = (replace(one, network=network, widening=w).predict(["hello"], ["a/one-7B"]) for w in (0.0, 4.0))
    assert wide.mu[0] == narrow.mu[0]
    assert wide.sigma[0] > narrow.sigma[0]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Write at least 300 words on it", 420),
        ("a 1,200-word essay", 1680),
        ("in 3 short paragraphs", 330),
        ("10 characters or 500 Words", 700),
        ("words, 300 of them", 0),
        ("99999999999999999999 words", 0),
    ],
)
def test_a_length_that_the_prompt_asks_for_is_a_feature(text: str, tokens: int) -> None:
    reader = Reader.of([b"words", b"word", b"paragraphs", b"characters"])
    assert np.expm1(reader.read(text).features[COUNTED // 2 - 1]) == pytest.approx(tokens, abs=0.01)


@functools.cache
def unlike() -> Novelty:
    """Return a novelty for which every prompt of `tiny` is new."""
    return Novelty(np.eye(4, dtype=np.float32), low=-2.0, high=-1.0, spread=0.8)


def test_novelty_widens_the_interval_of_one_answer_and_leaves_everything_else() -> None:
    one, asked = tiny(), (["hello world"], ["a/one-7B"])
    narrow, found = (replace(one, novelty=each).predict(*asked) for each in (None, unlike()))
    assert (found.mu[0], found.sigma[0]) == (narrow.mu[0], narrow.sigma[0])
    assert found.marginal().mu[0] == narrow.mu[0]
    assert found.marginal().sigma[0] == pytest.approx(math.hypot(narrow.sigma[0], 0.8))
    assert found.novelty is not None
    assert found.novelty[0] == 1.0


def test_a_stated_length_leaves_less_to_the_kind_of_the_prompt() -> None:
    asked = (["hello in exactly 200 words", "hello in exactly two hundred"], ["a/one-7B"] * 2)
    level = replace(tiny(), novelty=unlike()).predict(*asked).level
    assert level is not None
    assert 0.0 < level[0] < 0.7 * level[1]


def test_novelty_never_widens_beyond_the_largest_sigma() -> None:
    found = replace(tiny(), novelty=replace(unlike(), spread=50.0)).predict(["hello"], ["a/one-7B"])
    assert found.marginal().sigma[0] == pytest.approx(MAX_SIGMA)


def test_answers_teach_a_learner_the_level_of_the_kind() -> None:
    learner, request = Learner(replace(tiny(), novelty=unlike())), PredictionInput("hello world", "a/one-7B")
    assert learner.predict([request]).level is not None
    learner.observe(request, 300)
    assert learner.predict([request]).level is None


def test_novelty_is_part_of_the_file_and_of_its_own_description(tmp_path: Path) -> None:
    path = tmp_path / "new.lw"
    write_model_file(path, CARD, replace(tiny(), novelty=unlike()).parts())
    read = load_fast(read_model_file(path), path)
    assert read.novelty is not None
    assert read.novelty.spread == 0.8
    other = replace(unlike(), centres=np.eye(3, dtype=np.float32))
    write_model_file(path, CARD, replace(tiny(), novelty=other).parts())
    with pytest.raises(InputError, match="novelty of another prompt description"):
        load_fast(read_model_file(path), path)


def test_the_packaged_file_is_wide_on_everyday_requests_and_says_that_it_was_not_trained_on_them(
    fast: FastPredictor,
) -> None:
    assert fast.novelty is not None
    asked = [PLAIN, "Suggest a slogan for a bakery that sells only rye bread."]
    found = fast.predict(asked, [LLAMA] * 2)
    assert found.novelty is not None
    assert found.novelty[1] >= NOVEL > found.novelty[0]
    assert found.marginal().sigma[1] > 1.2 * found.sigma[1]


@pytest.mark.parametrize("requested", [True, False], ids=["with the requested size", "without it"])
def test_a_file_of_an_earlier_release_without_stated_lengths_predicts_the_same(tmp_path: Path, requested: bool) -> None:
    absent = [*([] if requested else [COUNTED // 2 - 1, COUNTED - 1]), *range(COUNTED, FEATURES)]
    now = tiny()
    network = replace(now.network, a=now.network.a.copy())
    network.a[absent] = 0.0
    keep = np.delete(np.arange(now.tables.width), absent)
    small = replace(network, centre=network.centre[keep], spread=network.spread[keep], a=network.a[keep])
    write_model_file(tmp_path / "earlier.lw", CARD, replace(now, network=small).parts())
    loaded = load_fast(read_model_file(tmp_path / "earlier.lw"), "earlier.lw")
    text = "hello list of 200 words"
    expected = replace(now, network=network).predict([text], ["a/one-7B"])
    np.testing.assert_allclose(loaded.predict([text], ["a/one-7B"]).mu, expected.mu, rtol=1e-3)


def test_calibration_applies_to_its_llm_and_to_unknown_ones() -> None:
    adjusted = Calibration(Adjustment(0.5, 3.0), {"a/one-7B": Adjustment(-0.25, 2.0)}, 5.0)
    llms = ["a/one-7B", "b/two-1B", "unknown"]
    plain, found = (tiny(one).predict(["hello"] * 3, llms) for one in (None, adjusted))
    np.testing.assert_allclose(found.mu - plain.mu, [-0.25, 0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(found.sigma / plain.sigma, [2.0, 3.0, 3.0], rtol=1e-6)
    np.testing.assert_array_equal(found.sample_mean, plain.sample_mean)
    assert found.nu == 5.0


def test_a_predictor_is_written_and_read_back(tmp_path: Path) -> None:
    path, made = tmp_path / "tiny.lw", tiny(Calibration(Adjustment(0.1, 1.2), {"b/two-1B": Adjustment(-0.1, 1.5, 9)}))
    write_model_file(path, CARD, made.parts())
    read = load_fast(read_model_file(path), path)
    prompts, llms = ["hello world", "a list?", "hello"], ["a/one-7B", "b/two-1B", "unknown"]
    one, other = read.predict(prompts, llms), made.predict(prompts, llms)
    np.testing.assert_allclose(one.mu, other.mu, atol=0.02)
    np.testing.assert_allclose(one.sigma, other.sigma, rtol=0.02)
    assert read.card["name"] == "tiny"


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("tables.npz", b"nonsense"),
        ("network.npz", b""),
        ("network.npz", b"PK\x03\x04 and no more"),
        ("novelty.npz", b"nonsense"),
        ("calibration.json", b"{"),
        ("calibration.json", json.dumps({"others": {}}).encode()),
    ],
)
def test_a_broken_part_is_named_with_its_file(tmp_path: Path, part: str, content: bytes) -> None:
    path = tmp_path / "broken.lw"
    write_model_file(path, CARD, tiny().parts() | {part: content})
    with pytest.raises(InputError, match=r"broken\.lw.*a part is invalid"):
        load_fast(read_model_file(path), path)


def test_a_file_with_another_prompt_description_is_refused(tmp_path: Path) -> None:
    other = tiny()
    network = FastNetwork.of({name: value[:-1] if name in ("centre", "spread", "a") else value
                          for name, value in other.network.arrays().items()})  # fmt: skip
    path = tmp_path / "older.lw"
    parts = FastPredictor(other.reader, other.tables, network, other.llms, other.levels, Calibration()).parts()
    write_model_file(path, CARD, parts)
    with pytest.raises(InputError, match="trained with another prompt description"):
        load_fast(read_model_file(path), path)


def test_a_file_without_its_network_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.lw"
    write_model_file(path, CARD, {name: part for name, part in tiny().parts().items() if name != "network.npz"})
    with pytest.raises(InputError, match=r"half\.lw: part 'network\.npz' is missing"):
        load_fast(read_model_file(path), path)
