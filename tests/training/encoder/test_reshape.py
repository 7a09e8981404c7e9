from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from tests.training.encoder import tiny
from tests.training.encoder.test_backbones import feed
from tests.training.encoder.tiny import torch

from lengthwise.training.encoder.backbones import BertBackbone, pool_tokens  # isort: skip
from lengthwise.training.encoder.package import to_onnx  # isort: skip
from lengthwise.training.encoder.run import prepare, train  # isort: skip
from lengthwise.predictors.encoder.predictor import _session  # isort: skip

from pathlib import Path


def bare(**changes: Any) -> Any:
    """Settings as they are where there is no pydantic."""
    return SimpleNamespace(**{"layers": None, "funnel": None, "activation": None, **changes})


def funnelled(after: int, stride: int) -> Any:
    torch.manual_seed(0)
    encoder = BertBackbone(tiny.model("minilm")).eval()
    encoder.reshape(bare(funnel=SimpleNamespace(after=after, stride=stride)))
    return encoder


def test_the_first_token_stays_and_groups_are_means() -> None:
    x = torch.arange(6.0).view(1, 6, 1)
    assert pool_tokens(x, None, 2).flatten().tolist() == [0.0, 1.5, 3.5, 5.0]
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    assert pool_tokens(x, mask, 2)[0, :3].flatten().tolist() == [0.0, 1.5, 3.0]


@settings(max_examples=25)
@given(tokens=st.integers(2, 17), padding=st.integers(1, 9), after=st.integers(0, 2), stride=st.integers(2, 5))
def test_padding_changes_nothing_after_a_funnel(tokens: int, padding: int, after: int, stride: int) -> None:
    encoder = funnelled(after, stride)
    ids = torch.randint(5, 18, (1, tokens))
    mask = torch.cat([torch.ones(1, tokens), torch.zeros(1, padding)], 1)
    with torch.no_grad():
        alone = encoder(ids, None)
        padded = encoder(torch.cat([ids, torch.zeros(1, padding, dtype=torch.long)], 1), mask)
    here = encoder.output_mask(mask).bool()
    assert here.shape == padded.shape[:2]
    assert alone.shape[1] == 1 + -(-(tokens - 1) // stride)
    torch.testing.assert_close(padded[here][None], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("change", [{}, {"activation": "relu"}, {"funnel": {"after": 1, "stride": 4}}])
def test_a_reshaped_encoder_learns_and_is_served_as_it_was_trained_at_every_length(
    change: dict[str, Any], tiny_folder: Path, tmp_path: Path
) -> None:
    prepared = prepare(tiny.config(tiny_folder, "minilm", **change))
    network = train(prepared, tmp_path, resume=False, progress=lambda *_: None)
    session = _session(to_onnx(network, int8=False))
    for tokens in range(2, 17):
        given = feed(prepared.pack.features, tokens=tokens)
        with torch.no_grad():
            trained = network(*(torch.as_tensor(value) for value in given.values())).numpy()
        np.testing.assert_allclose(session.run(None, given)[0], trained, atol=1e-4, err_msg=f"{tokens} tokens")


def test_an_activation_and_a_funnel_change_what_is_said() -> None:
    torch.manual_seed(0)
    ids, plain = torch.randint(5, 18, (1, 9)), BertBackbone(tiny.model("minilm")).eval()
    with torch.no_grad():
        before = plain(ids, None)
        plain.reshape(bare(activation="relu"))
        assert not torch.allclose(plain(ids, None), before)
        assert funnelled(1, 4)(ids, None).shape[1] == 3


def test_attention_is_one_operator_where_it_is_served(tiny_folder: Path) -> None:
    import onnx

    model = onnx.load_from_string(to_onnx(prepare(tiny.config(tiny_folder)).network(), int8=True))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("MultiHeadAttention") == 2
    assert "Softmax" not in kinds


def test_a_funnel_after_the_last_layer_and_one_in_another_encoder_are_refused(tiny_folder: Path) -> None:
    with pytest.raises(InputError, match=r"field 'funnel\.after': no layer is left"):
        funnelled(3, 2)
    with pytest.raises(InputError, match="field 'funnel': only a BERT"):
        prepare(tiny.config(tiny_folder, "distilbert", funnel={"after": 1})).network()
