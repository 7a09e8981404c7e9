"""From a trained network to what is served: an ONNX graph with int8 weights, in one model file."""

from __future__ import annotations

import copy
import io
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from lengthwise.errors import InputError
from lengthwise.training.encoder.bert import Attention, Bert
from lengthwise.training.encoder.network import LengthNetwork

INPUTS: Final = ("ids", "log_size", "row", "llm", "features")
OUTPUT: Final = "said"
_OPSET: Final = 17
_SMALL: Final = 1024  # numbers: fewer are not worth a Cast
_BATCHED: Final = {
    "ids": {0: "prompts", 1: "tokens"},
    "log_size": {0: "prompts"},
    "row": {0: "pairs"},
    "llm": {0: "pairs"},
    "features": {0: "pairs"},
    OUTPUT: {0: "pairs"},
}


class RowEmbedding(nn.Module):  # type: ignore[misc]  # torch is not seen by the type checker
    """An embedding as int8 with one scale per row: a quarter of the size, and rare words keep their precision."""

    def __init__(self, weight: Any) -> None:  # noqa: ANN401  (tensors are Any without torch's types)
        super().__init__()
        scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127.0
        self.register_buffer("scale", scale)
        self.register_buffer("rows", torch.round(weight / scale).to(torch.int8))

    def forward(self, ids: Any) -> Any:  # noqa: ANN401
        """Return the vectors of these rows."""
        return self.rows[ids].float() * self.scale[ids]


class FusedAttention(nn.Module):  # type: ignore[misc]
    """Attention as ONNX Runtime's own operator.

    Of a prompt's time it saves 7 % at 512 tokens (x86) and next to nothing at 256 and fewer.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, qkv: Any, mask: Any, drop: float) -> Any:  # noqa: ANN401
        """Return what `bert.Attention` returns; there is no padding and no dropout in what is served."""
        return _Fused.apply(*qkv.chunk(3, dim=-1), self.heads)


class _Fused(torch.autograd.Function):  # type: ignore[misc]
    """How the exporter is told of an operator that torch has not."""

    @staticmethod
    def forward(_: Any, q: Any, k: Any, v: Any, heads: int) -> Any:  # noqa: ANN401
        return Attention(heads)(torch.cat([q, k, v], dim=-1), None, 0.0)

    @staticmethod
    def symbolic(graph: Any, q: Any, k: Any, v: Any, heads: int) -> Any:  # noqa: ANN401
        seen = graph.op("com.microsoft::MultiHeadAttention", q, k, v, num_heads_i=heads)
        seen.setType(q.type())
        return seen


def to_onnx(network: LengthNetwork, *, int8: bool) -> bytes:
    """Export the pairs' forward pass. With int8, weights of the encoder become 8-bit integers per channel."""
    network = copy.deepcopy(network).cpu().eval()
    if int8 and isinstance(network.backbone, Bert):
        network.backbone.words = RowEmbedding(network.backbone.words.weight.detach())
    if isinstance(network.backbone, Bert):
        for layer in network.backbone.layers:
            layer.attention = FusedAttention(layer.attention.heads)
    stream = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # The exporter that needs no further package warns that it is the older one, and of traced sizes.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            _example(network),
            stream,
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes=_BATCHED,
            opset_version=_OPSET,
            dynamo=False,
        )
    return _quantised(stream.getvalue()) if int8 else stream.getvalue()


def _example(network: LengthNetwork) -> tuple[Any, ...]:
    ids = torch.full((2, 6), 2, dtype=torch.int64)
    row = torch.tensor([0, 1, 1])
    return ids, torch.zeros(2), row, row * 0, network.features[row * 0]


def _quantised(model: bytes) -> bytes:
    """Weights of the encoder's products, per channel.

    The head stays as it is: it is small, and its scales would be taken over all LLMs of a call, so that a prediction
    would depend on who else asks.
    """
    try:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]
    except ImportError as error:
        raise InputError("int8 needs the package onnx", hint="pip install 'lengthwise[train]'") from error
    nodes = [node for node in onnx.load_from_string(model).graph.node if node.name.startswith("/head")]
    # The quantiser turns a Gemm into a MatMul of this name, and would take it for the encoder's.
    head = [name for node in nodes for name in (node.name, f"{node.name}_MatMul")]
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        before.write_bytes(model)
        quantize_dynamic(
            before, after, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8,
            nodes_to_exclude=head, extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip
        return _half_as_large(onnx.load(after))


def _half_as_large(model: Any) -> bytes:  # noqa: ANN401  (a message of onnx)
    """Keep what is still float as 16-bit numbers; they are widened once, when the graph is loaded."""
    import onnx
    from onnx import numpy_helper

    graph = model.graph
    for tensor in list(graph.initializer):
        if tensor.data_type != onnx.TensorProto.FLOAT or math.prod(tensor.dims) < _SMALL:
            continue
        narrow = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), f"{tensor.name}_half")
        cast = onnx.helper.make_node("Cast", [narrow.name], [tensor.name], to=onnx.TensorProto.FLOAT)
        graph.initializer.remove(tensor)
        graph.initializer.append(narrow)
        graph.node.insert(0, cast)
    return bytes(model.SerializeToString())
