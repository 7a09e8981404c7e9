"""BERT and MPNet in plain PyTorch: encoders to fine-tune on a bare GPU machine, with weights that are small to carry.

One matrix makes queries, keys and values, and nothing waits for the GPU, so that a training step can be recorded as a
CUDA graph. MPNet's relative positions are not trained. Needs torch and NumPy only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

BERT: Final = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": ("attention.output.dense",),
    "norm": ("attention.output.LayerNorm",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "last": ("output.LayerNorm",),
}
MPNET: Final = {
    **BERT,
    "qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    "out": ("attention.attn.o",),
    "norm": ("attention.LayerNorm",),
}
"""Our name of a layer's part: those in transformers, which are joined."""
_BUCKETS: Final = 32
_EXACT: Final = 8
_FARTHEST: Final = 128
_LEVELS: Final = 127


@dataclass(frozen=True)
class Shape:
    """Sizes of an encoder."""

    kind: str
    """"bert" or "mpnet"."""
    words: int
    width: int
    inner: int
    layers: int
    heads: int
    positions: int
    epsilon: float

    @property
    def first_position(self) -> int:
        """MPNet counts positions from 2."""
        return 2 if self.kind == "mpnet" else 0


class Layer(nn.Module):  # type: ignore[misc]  # the type checker does not see torch
    """Attention, then two matrices, each added to its input and normalised."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.share = 0.0
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width, shape.epsilon)
        self.up = nn.Linear(shape.width, shape.inner)
        self.down = nn.Linear(shape.inner, shape.width)
        self.last = nn.LayerNorm(shape.width, shape.epsilon)

    def forward(self, x: Any, mask: Any) -> Any:
        """Return the same shape (batch, tokens, width)."""
        share = self.share if self.training else 0.0
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=share)
        seen = self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        x = self.norm(x + functional.dropout(seen, share, self.training))
        inner = self.down(functional.gelu(self.up(x)))
        return self.last(x + functional.dropout(inner, share, self.training))


class PlainEncoder(nn.Module):  # type: ignore[misc]
    """What `lengthwise.training.encoder.network.Backbone` is, without transformers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.share = 0.0
        self.words = nn.Embedding(shape.words, shape.width)
        self.positions = nn.Embedding(shape.positions, shape.width)
        self.norm = nn.LayerNorm(shape.width, shape.epsilon)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        if shape.kind == "mpnet":
            self.register_buffer("relative", torch.zeros(_BUCKETS, shape.heads))
            most = shape.positions - shape.first_position
            self.register_buffer("buckets", relative_buckets(most), persistent=False)

    @property
    def width(self) -> int:
        """Width of a token's vector."""
        return self.shape.width

    def forward(self, ids: Any, mask: Any) -> tuple[Any, Any]:
        """Return the last and the middle layer (batch, tokens, width); mask is 0 for padding, None without padding."""
        tokens = ids.shape[1]
        first = self.shape.first_position
        x = self.words(ids) + self.positions.weight[first : first + tokens]
        x = functional.dropout(self.norm(x), self.share, self.training)
        seen = None if mask is None else mask.bool()[:, None, None, :]
        if self.shape.kind == "mpnet":
            bias = self.relative[self.buckets[:tokens, :tokens]].permute(2, 0, 1).unsqueeze(0)
            bias = bias if seen is None else torch.where(seen, bias, -1e4)
            kind = "cuda" if x.is_cuda else "cpu"
            seen = bias.to(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype)
        middle = x
        for number, layer in enumerate(self.layers):
            x = layer(x, seen)
            if number + 1 == len(self.layers) // 2:
                middle = x
        return x, middle

    def set_dropout(self, share: float) -> None:
        """Set the dropout rate of every layer."""
        self.share = share
        for layer in self.layers:
            layer.share = share

    def groups(self) -> list[list[Any]]:
        """Return the parameters from the bottom up, for learning rates that fall with depth."""
        bottom = [*self.words.parameters(), *self.positions.parameters(), *self.norm.parameters()]
        return [bottom, *(list(layer.parameters()) for layer in self.layers)]

    def keep_layers(self, numbers: Sequence[int] | None) -> None:
        """Keep these layers, by default all. Call it after the weights of the whole encoder are loaded."""
        if numbers is not None:
            self.layers = nn.ModuleList(self.layers[number] for number in numbers)


def relative_buckets(tokens: int) -> Any:
    """Return MPNet's number of the distance from each token to each other (tokens, tokens)."""
    away = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
    far = away.abs()
    half = _BUCKETS // 2
    steps = torch.log(far.clamp(min=1) / _EXACT) / math.log(_FARTHEST / _EXACT) * (half - _EXACT)
    large = (_EXACT + steps.long()).clamp(max=half - 1)
    return torch.where(away < 0, half, 0) + torch.where(far < _EXACT, far, large)


def from_transformers(
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    words: Sequence[int] | None = None,
    layers: int | None = None,
) -> PlainEncoder:
    """Build from the configuration and the weights of `BertModel` or `MPNetModel`.

    With `words` only these rows of the vocabulary are kept, in this order; with `layers` only so many from the bottom.
    """
    kind = str(config["model_type"])
    kept = list(range(int(config["vocab_size"]) if words is None else 0)) or [int(word) for word in words or ()]
    shape = Shape(
        kind=kind,
        words=len(kept),
        width=int(config["hidden_size"]),
        inner=int(config["intermediate_size"]),
        layers=int(layers or config["num_hidden_layers"]),
        heads=int(config["num_attention_heads"]),
        positions=int(config["max_position_embeddings"]),
        epsilon=float(config["layer_norm_eps"]),
    )
    encoder = PlainEncoder(shape)
    encoder.load_state_dict(dict(_renamed(state, shape, kept)))
    return encoder


def _renamed(state: Mapping[str, Any], shape: Shape, words: Sequence[int]) -> Iterator[tuple[str, Any]]:
    yield "words.weight", state["embeddings.word_embeddings.weight"][list(words)]
    positions = state["embeddings.position_embeddings.weight"]
    if shape.kind == "bert":  # one text: every token is of the first kind
        positions = positions + state["embeddings.token_type_embeddings.weight"][0]
    yield "positions.weight", positions
    for part in ("weight", "bias"):
        yield f"norm.{part}", state[f"embeddings.LayerNorm.{part}"]
    names = MPNET if shape.kind == "mpnet" else BERT
    for number in range(shape.layers):
        for ours, theirs in names.items():
            for part in ("weight", "bias"):
                found = [state[f"encoder.layer.{number}.{each}.{part}"] for each in theirs]
                yield f"layers.{number}.{ours}.{part}", torch.cat(found)
    if shape.kind == "mpnet":
        yield "relative", state["encoder.relative_attention_bias.weight"]


def write_small(encoder: PlainEncoder, folder: Path, name: str, *, steps: float, files: int = 1) -> None:
    """Write the weights rounded to `steps` parts of each row's standard deviation, in several files."""
    state = encoder.state_dict()
    names = np.array_split(np.array(list(state)), files)
    (folder / f"{name}.json").write_text(json.dumps({"shape": asdict(encoder.shape), "files": files}))
    for number, part in enumerate(names):
        arrays: dict[str, Any] = {}
        for key in part.tolist():
            arrays.update(rounded(key, state[key].numpy().astype(np.float32), steps))
        np.savez_compressed(folder / f"{name}_{number}.npz", **arrays)


def rounded(key: str, values: NDArray[np.float32], steps: float) -> dict[str, NDArray[Any]]:
    """Return a matrix as small integers and a step for each row; a vector as float16."""
    if values.ndim < 2 or len(values) <= _BUCKETS:
        return {key: values.astype(np.float16)}
    step = np.maximum(values.std(axis=1) / steps, np.abs(values).max(axis=1) / _LEVELS).astype(np.float16)
    step = np.maximum(step, np.float16(1e-6)).astype(np.float32)[:, None]
    return {key: np.rint(values / step).astype(np.int8), f"{key}/step": step[:, 0].astype(np.float16)}


def read_small(folder: Path, name: str) -> PlainEncoder:
    """Read what `write_small` wrote."""
    about = json.loads((folder / f"{name}.json").read_text())
    encoder = PlainEncoder(Shape(**about["shape"]))
    state = {}
    for number in range(about["files"]):
        with np.load(folder / f"{name}_{number}.npz") as archive:
            for key in archive.files:
                if not key.endswith("/step"):
                    values = archive[key].astype(np.float32)
                    step = archive[f"{key}/step"] if f"{key}/step" in archive.files else None
                    values = values if step is None else values * step.astype(np.float32)[:, None]
                    state[key] = torch.as_tensor(values)
    encoder.load_state_dict(state)
    return encoder
