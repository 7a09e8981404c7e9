"""The packaged encoder predicts the same on every CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lengthwise.predictors import encoder
from lengthwise.predictors.encoder import EncoderPredictor
from lengthwise.predictors.model_file import read_model_file
from lengthwise.predictors.resolve import model_path

PROMPTS = (
    "Write a Python function that sorts a list of numbers.",
    "Tell me a long story about a dragon and a knight who became friends.",
)
LLMS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct-1M")
MU = (5.1558, 6.6188, 4.9354, 6.6186)
SIGMA = (0.8954, 0.2200, 0.8142, 0.3407)


def loaded() -> EncoderPredictor:
    path = model_path("default")
    return EncoderPredictor.load(read_model_file(path), path)


def test_the_packaged_encoder_predicts_the_same_on_every_cpu() -> None:
    predicted = loaded().predict([*PROMPTS, *PROMPTS], [LLMS[0]] * 2 + [LLMS[1]] * 2)
    # Kernels that saturate at 16 bits move the first mu by 0.10.
    assert predicted.mu == pytest.approx(MU, abs=0.01)
    assert predicted.sigma == pytest.approx(SIGMA, abs=0.01)


@pytest.mark.parametrize(
    ("flags", "exact"), [("sse4_1 avx2", "1"), ("avx2 avx512f avx512_vnni", None), ("avx2 avx_vnni", None)]
)
def test_exact_kernels_are_asked_for_where_the_fast_ones_saturate(
    flags: str, exact: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor : 0\nflags : fpu {flags}\n")
    monkeypatch.setattr(encoder, "CPU_INFO", info)
    assert precision(loaded()) == exact


def test_exact_kernels_are_asked_for_on_an_unknown_cpu_and_predict_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loaded().predict(PROMPTS, LLMS)
    monkeypatch.setattr(encoder, "CPU_INFO", tmp_path / "none")
    exact = loaded()
    assert precision(exact) == "1"
    assert np.allclose(exact.predict(PROMPTS, LLMS).mu, before.mu, atol=0.01)


def precision(predictor: EncoderPredictor) -> str | None:
    """The entry of the session's options, None where there is none."""
    try:
        found: str = predictor.session.get_session_options().get_session_config_entry("session.x64quantprecision")
    except RuntimeError:
        return None
    return found
