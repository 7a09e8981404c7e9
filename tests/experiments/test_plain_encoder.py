"""Encoders in plain PyTorch against those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from experiments.plain_encoder import from_transformers, read_small, rounded, write_small  # noqa: E402

SIZES = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 3}


def pair(kind: str) -> tuple[Any, Any]:
    """Return a random model of transformers, and ours with its weights."""
    torch.manual_seed(0)
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(max_position_embeddings=300, **SIZES))
    else:
        model = transformers.MPNetModel(transformers.MPNetConfig(max_position_embeddings=302, **SIZES))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval(), from_transformers(model.config.to_dict(), model.state_dict()).eval()


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_the_vectors_are_those_of_transformers_with_padding_and_over_far_distances(kind: str) -> None:
    model, ours = pair(kind)
    ids = torch.randint(5, 30, (2, 280))
    mask = torch.ones_like(ids)
    ids[1, 200:], mask[1, 200:] = 1, 0  # MPNet counts positions without its padding word
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        last, middle = ours(ids, mask)
        alone, _ = ours(ids[:1], None)
    here = mask.bool()
    torch.testing.assert_close(last[here], found.last_hidden_state[here], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(middle[here], found.hidden_states[1][here], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(alone, last[:1], atol=1e-4, rtol=1e-4)


def test_a_smaller_vocabulary_and_fewer_layers_keep_their_vectors() -> None:
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    words = [3, 7, 8, 20]
    small = from_transformers(model.config.to_dict(), model.state_dict(), words=words, layers=2).eval()
    with torch.no_grad():
        states = model(input_ids=torch.tensor([words]), output_hidden_states=True).hidden_states
        last, _ = small(torch.arange(4)[None], None)
    torch.testing.assert_close(last, states[2], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_rounded_weights_are_within_half_a_step_of_those_written(kind: str, tmp_path: Path) -> None:
    _, ours = pair(kind)
    write_small(ours, tmp_path, "small", steps=8.0, files=3)
    read = read_small(tmp_path, "small").state_dict()
    for key, true in ours.state_dict().items():
        values = true.numpy()
        parts = rounded(key, values, 8.0)
        step = parts[f"{key}/step"].astype(np.float32)[:, None] if f"{key}/step" in parts else 1e-3 * np.abs(values)
        assert (np.abs(read[key].numpy() - values) <= 0.51 * step + 1e-6).all(), key


def test_dropout_changes_the_vectors_in_training_only() -> None:
    _, ours = pair("bert")
    ours.set_dropout(0.5)
    ids = torch.randint(5, 30, (1, 9))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids, None)[0], ours(ids, None)[0])
        ours.train()
        assert not torch.allclose(ours(ids, None)[0], ours(ids, None)[0])


def test_groups_have_every_parameter_once() -> None:
    for kind in ("bert", "mpnet"):
        _, ours = pair(kind)
        grouped = [id(each) for group in ours.groups() for each in group]
        assert sorted(grouped) == sorted(id(each) for each in ours.parameters())
        ours.keep_layers([0, 2])
        assert len(ours.groups()) == 3
