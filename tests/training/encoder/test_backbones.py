from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.stated_length import STATED
from tests.training.encoder import tiny
from tests.training.encoder.tiny import torch

from lengthwise.training.encoder.network import load_backbone  # isort: skip
from lengthwise.training.encoder.package import to_onnx, with_embedding  # isort: skip
from lengthwise.training.encoder.run import prepare, train  # isort: skip
from lengthwise.predictors.encoder import EMBEDDING, _session  # isort: skip

from pathlib import Path


def feed(features: np.ndarray[Any, Any], batch: int = 2, tokens: int = 7) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        "ids": rng.integers(5, 15, (batch, tokens)),
        "log_size": np.zeros(batch, np.float32),
        "stated": rng.random((batch, STATED), np.float32),
        "row": np.arange(batch).repeat(2),
        "llm": np.tile([0, 3], batch),
        "features": features[np.tile([0, 3], batch)],
    }


@pytest.mark.parametrize("kind", tiny.ARCHITECTURES)
def test_every_encoder_trains_and_its_onnx_graph_gives_the_same_outputs(
    kind: str, tiny_folder: Path, tmp_path: Path
) -> None:
    prepared = prepare(tiny.config(tiny_folder, kind))
    rows: list[dict[str, Any]] = []
    network = train(prepared, tmp_path, resume=False, progress=lambda _, row: rows.append(row))
    assert np.isfinite(rows[0]["train_loss"])

    session = _session(to_onnx(network, int8=False))
    for tokens in (2, 7, 16):
        given = feed(prepared.pack.features, tokens=tokens)
        with torch.no_grad():
            trained = network(*(torch.as_tensor(value) for value in given.values())).numpy()
        np.testing.assert_allclose(session.run(None, given)[0], trained, atol=1e-4, err_msg=f"{tokens} tokens")


def test_int8_stays_near_the_float_graph(tiny_folder: Path) -> None:
    prepared = prepare(tiny.config(tiny_folder))
    torch.manual_seed(0)
    network = prepared.network().eval()
    given = feed(prepared.pack.features)
    exact, small = (_session(to_onnx(network, int8=int8)).run(None, given)[0] for int8 in (False, True))
    np.testing.assert_allclose(small, exact, atol=0.05)


def test_attention_is_one_operator_in_the_onnx_graph(tiny_folder: Path) -> None:
    import onnx

    model = onnx.load_from_string(to_onnx(prepare(tiny.config(tiny_folder)).network(), int8=True))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("MultiHeadAttention") == 2
    assert "Softmax" not in kinds


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "all"])
def test_the_graph_returns_the_pooled_vector_of_each_prompt(pooling: str, tiny_folder: Path) -> None:
    prepared = prepare(tiny.config(tiny_folder, pooling=pooling))
    network = prepared.network().eval()
    given = feed(prepared.pack.features)
    with torch.no_grad():
        hidden, _ = network.backbone(torch.as_tensor(given["ids"]), None)
    wanted = {"cls": hidden[:, 0], "max": hidden.amax(1)}.get(pooling, hidden.mean(1))
    model = to_onnx(network, int8=False)
    found = _session(model).run([EMBEDDING], given)[0]
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-4)
    assert with_embedding(model) == model


@pytest.mark.parametrize("middle", [False, True])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "all"])
def test_outputs_do_not_depend_on_padding(pooling: str, middle: bool, tiny_folder: Path) -> None:
    network = prepare(tiny.config(tiny_folder, pooling=pooling, middle=middle)).network().eval()
    ids, mask, rest = torch.randint(5, 15, (1, 6)), torch.ones(1, 6), (torch.zeros(1), torch.ones(1, STATED))
    more = torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], 1), torch.cat([mask, torch.zeros(1, 4)], 1)
    with torch.no_grad():
        torch.testing.assert_close(network.encode(ids, mask, *rest), network.encode(*more, *rest))


@pytest.mark.parametrize("kind", ["minilm", "distilbert"])
def test_fewer_layers_can_be_kept(kind: str, tiny_folder: Path) -> None:
    whole = prepare(tiny.config(tiny_folder, kind)).network().backbone
    part = prepare(tiny.config(tiny_folder, kind, layers=[0])).network().backbone
    assert len(part.groups()) == 2 < len(whole.groups())


def test_an_unknown_backbone_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"field 'backbone': cannot be loaded; give a hub name, a folder"):
        load_backbone(str(tmp_path / "nothing"), 16)
