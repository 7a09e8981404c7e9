from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors import LogTPredictions, PredictionInput
from lengthwise.predictors.model_file import ModelFile, read_model_file
from tests.training.encoder import tiny

from lengthwise.training.encoder.package import write_predictor  # isort: skip
from lengthwise.training.encoder.run import prepare, train  # isort: skip
from lengthwise.predictors.encoder import EncoderPredictor  # isort: skip

from pathlib import Path

TEXTS = (
    "",
    "write a short story",
    "\x00\udcff\x07",
    "日本語で書いて",
    "word " * 50_000,
    "x" * 300_000,
    "\n\t ",
    "🙂" * 99,
)


def predictor_file(folder: Path, out: Path, **changes: Any) -> Path:
    prepared = prepare(tiny.config(folder, **changes))
    network = train(prepared, out / "training", resume=False, progress=lambda *_: None)
    write_predictor(out / "tiny.lw", prepared, network)
    return out / "tiny.lw"


@pytest.fixture(scope="module")
def path(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return predictor_file(tiny_folder, tmp_path_factory.mktemp("model"), optimiser={"epochs": 3})


@pytest.fixture(scope="module")
def predictor(path: Path) -> EncoderPredictor:
    return EncoderPredictor.load(read_model_file(path))


def test_any_text_has_a_prediction(predictor: EncoderPredictor) -> None:
    predictions = predictor.predict([PredictionInput(text, tiny.LLMS[0]) for text in TEXTS])
    assert isinstance(predictions, LogTPredictions)
    assert len(predictions) == len(TEXTS)
    assert np.isfinite(predictions.mu).all()
    assert (predictions.sigma > 0).all()
    assert (predictions.sample_mean >= 1).all()
    assert (predictions.sample_std >= 0).all()


def test_prompts_are_described_as_they_are_predicted(predictor: EncoderPredictor) -> None:
    inputs = [PredictionInput(text, "x") for text in ("write a poem", "write", "write a poem")]
    predictions, (first, other, again) = predictor.describe(inputs)
    assert np.array_equal(predictions.mu, predictor.predict(inputs).mu)
    assert np.mean(first.features**2) == pytest.approx(1.0, rel=1e-4)
    assert first is again
    assert len(other.terms) < len(first.terms)


def test_no_inputs_give_no_predictions(predictor: EncoderPredictor) -> None:
    assert len(predictor.predict([])) == 0


def test_a_prediction_does_not_depend_on_the_batch(predictor: EncoderPredictor) -> None:
    inputs = [PredictionInput(text, llm, max_tokens=500) for text in TEXTS[:4] for llm in (*tiny.LLMS, "unknown")]
    together = predictor.predict(inputs)
    alone = [predictor.predict([each]) for each in inputs]
    np.testing.assert_allclose(together.quantile(0.9), [float(one.quantile(0.9)[0]) for one in alone], rtol=1e-5)
    assert together[0].cap == 500


def test_an_unknown_llm_is_logged_once_and_a_short_name_resolves(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    predictor = EncoderPredictor.load(read_model_file(path))
    inputs = [PredictionInput("write", "owner/unknown-7B")] * 3 + [PredictionInput("write", "llama-3.1-8B")]
    predictor.predict(inputs)
    predictor.predict(inputs)
    assert [record.args for record in caplog.records] == [("owner/unknown-7B",)]
    assert predictor.row("llama-3.1-8B") == predictor.row(tiny.LLMS[0])


def test_the_head_and_the_tail_of_a_long_prompt_are_read(predictor: EncoderPredictor) -> None:
    ids, size = predictor.text.encode("long " + "a " * 100 + "story")
    name = predictor.text._tokenizer.id_to_token
    assert len(ids) == 16
    assert size == 102
    assert [name(ids[1]), name(ids[-2])] == ["long", "story"]


def test_intervals_have_nominal_coverage_on_held_out_samples(path: Path) -> None:
    figures = read_model_file(path).card["figures"]["held_out"]
    assert figures["cover0.5"] == pytest.approx(0.5, abs=0.1)
    assert figures["cover0.9"] == pytest.approx(0.9, abs=0.1)


def test_the_card_names_licences_and_figures(path: Path) -> None:
    card = read_model_file(path).card
    assert card["kind"] == "encoder"
    assert card["licences"]["Mbpp"] == "CC-BY-4.0"
    assert set(card["figures"]) == {"held_out", "test", "other corpora, test"}


def test_llm_identities_may_have_no_features(tiny_folder: Path, tmp_path: Path) -> None:
    file = predictor_file(tiny_folder, tmp_path, identity={"width": 4, "features": False})
    assert len(EncoderPredictor.load(read_model_file(file)).predict([PredictionInput("write", "x")])) == 1


def test_serving_loads_no_torch(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from lengthwise.predictors import PredictionInput\n"
        "from lengthwise.predictors.model_file import read_model_file\n"
        "from lengthwise.predictors.encoder import EncoderPredictor\n"
        "EncoderPredictor.load(read_model_file(Path(sys.argv[1]))).predict([PredictionInput('a', 'b')])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_a_file_without_its_graph_is_an_error(path: Path) -> None:
    file = read_model_file(path)
    file.parts.pop("model.onnx")  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"part 'model\.onnx' is missing"):
        EncoderPredictor.load(file)


def test_a_file_with_a_head_of_an_earlier_version_is_refused(path: Path) -> None:
    file = read_model_file(path)
    settings = {**json.loads(file.part("encoder.json")), "head": "bins"}
    old = ModelFile(file.card, {**file.parts, "encoder.json": json.dumps(settings).encode()})
    with pytest.raises(InputError, match="has a head of kind 'bins'; train it again"):
        EncoderPredictor.load(old)
