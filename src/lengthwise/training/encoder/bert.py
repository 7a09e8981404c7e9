"""BERT's encoder in plain PyTorch, so that training on a bare machine and the export need no transformers.

Queries, keys and values are one matrix: fewer, larger products, and the same numbers as the three of the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_ACTIVATIONS: dict[str, Any] = {"gelu": functional.gelu, "relu": functional.relu}


@dataclass(frozen=True, slots=True)
class BertShape:
    """The sizes of a BERT, by the names of its published configuration."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> BertShape:
        """Take the sizes out of a published configuration."""
        return cls(**{name: config[name] for name in cls.__slots__ if name in config})


class Attention(nn.Module):  # type: ignore[misc]  # torch is not seen by the type checker
    """What each token takes from the others. A module of its own, so that the export can put one operator there."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, qkv: Any, mask: Any, drop: float) -> Any:  # noqa: ANN401  (tensors are Any without torch's types)
        """Return (batch, tokens, width) of queries, keys and values beside each other."""
        batch, tokens, width = qkv.shape
        parts = qkv.view(batch, tokens, 3, self.heads, width // 3 // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop)
        return seen.transpose(1, 2).reshape(batch, tokens, width // 3)


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and the two-layer network, each added to its input and normalised after."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.attention = Attention(shape.num_attention_heads)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_attention = nn.LayerNorm(width, shape.layer_norm_eps)
        self.up = nn.Linear(width, shape.intermediate_size)
        self.down = nn.Linear(shape.intermediate_size, width)
        self.norm_output = nn.LayerNorm(width, shape.layer_norm_eps)
        self.dropout = 0.1
        self.activation = "gelu"

    def forward(self, x: Any, mask: Any) -> Any:  # noqa: ANN401
        """Return what the layer makes of x (batch, tokens, width); mask is False where attention may not look."""
        drop = self.dropout if self.training else 0.0
        seen = self.out(self.attention(self.qkv(x), mask, drop))
        x = self.norm_attention(x + functional.dropout(seen, drop, self.training))
        inner = self.down(_ACTIVATIONS[self.activation](self.up(x)))
        return self.norm_output(x + functional.dropout(inner, drop, self.training))


class Bert(nn.Module):  # type: ignore[misc]
    """The encoder: token ids and mask to one vector per token."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.hidden_size
        self.words = nn.Embedding(shape.vocab_size, width)
        self.positions = nn.Embedding(shape.max_position_embeddings, width)
        self.types = nn.Parameter(torch.zeros(width))  # a prompt is always the first of two segments
        self.norm = nn.LayerNorm(width, shape.layer_norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.dropout = 0.1
        self.funnel: tuple[int, int] | None = None
        for parameter in (self.words.weight, self.positions.weight):
            nn.init.normal_(parameter, std=0.02)

    @property
    def width(self) -> int:
        """The width of a token's vector."""
        return self.shape.hidden_size

    def forward(self, ids: Any, mask: Any) -> Any:  # noqa: ANN401
        """Return (batch, tokens, width); mask is 1 for tokens and 0 for padding, None where there is no padding.

        With a funnel there are fewer vectors than tokens, and `mask_after` says which of them are padding.
        """
        place = self.positions.weight[: ids.shape[1]]
        x = self.norm(self.words(ids) + place + self.types)
        x = functional.dropout(x, self.dropout if self.training else 0.0, self.training)
        looks = None if mask is None else mask.bool()[:, None, None, :]
        for number, layer in enumerate(self.layers):
            if self.funnel is not None and number == self.funnel[0]:
                x = shortened(x, mask, self.funnel[1])
                mask = self.mask_after(mask)
                looks = None if mask is None else mask.bool()[:, None, None, :]
            x = layer(x, looks)
        return x

    def mask_after(self, mask: Any) -> Any:  # noqa: ANN401
        """Return the mask of what `forward` returns: a group counts where one of its tokens does."""
        if mask is None or self.funnel is None:
            return mask
        groups = functional.max_pool1d(mask[:, 1:].float(), self.funnel[1], ceil_mode=True)
        return torch.cat([mask[:, :1], groups.to(mask.dtype)], dim=1)

    def set_dropout(self, share: float) -> None:
        """Set the share dropped everywhere."""
        self.dropout = share
        for layer in self.layers:
            layer.dropout = share

    def keep_layers(self, numbers: Sequence[int]) -> None:
        """Keep some of the layers, counted from 0, and forget the rest."""
        self.layers = nn.ModuleList(self.layers[number] for number in numbers)

    def set_activation(self, name: str) -> None:
        """Use "gelu" or "relu" in every layer; weights trained with another must learn it."""
        for layer in self.layers:
            layer.activation = name

    def groups(self) -> list[list[Any]]:
        """Parameters from the bottom up, for learning rates that fall with depth."""
        bottom = [*self.words.parameters(), *self.positions.parameters(), self.types, *self.norm.parameters()]
        return [bottom, *(list(layer.parameters()) for layer in self.layers)]


def shortened(x: Any, mask: Any, stride: int) -> Any:  # noqa: ANN401
    """Put the mean of every `stride` tokens in their place; the first token, which stands for the prompt, stays."""
    first, rest = x[:, :1], x[:, 1:].transpose(1, 2)
    if mask is None:
        rest = functional.avg_pool1d(rest, stride, ceil_mode=True)
    else:
        here = mask[:, None, 1:].to(x.dtype)
        share = functional.avg_pool1d(here, stride, ceil_mode=True)
        rest = functional.avg_pool1d(rest * here, stride, ceil_mode=True) / share.clamp(min=1.0 / stride)
    return torch.cat([first, rest.transpose(1, 2)], dim=1)


def from_transformers(state: Mapping[str, Any], shape: BertShape) -> Bert:
    """Build the encoder from the weights of transformers' BertModel."""
    state = {name.removeprefix("bert."): value.float() for name, value in state.items()}
    own = {
        "words.weight": state["embeddings.word_embeddings.weight"],
        "positions.weight": state["embeddings.position_embeddings.weight"],
        "types": state["embeddings.token_type_embeddings.weight"][0],
    }
    for kind in ("weight", "bias"):
        own[f"norm.{kind}"] = state[f"embeddings.LayerNorm.{kind}"]
        for number in range(shape.num_hidden_layers):
            theirs, ours = f"encoder.layer.{number}.", f"layers.{number}."
            qkv = [state[f"{theirs}attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            own[f"{ours}qkv.{kind}"] = torch.cat(qkv)
            for name, part in _PARTS.items():
                own[f"{ours}{name}.{kind}"] = state[f"{theirs}{part}.{kind}"]
    encoder = Bert(shape)
    encoder.load_state_dict(own)
    return encoder


_PARTS = {
    "out": "attention.output.dense",
    "norm_attention": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm_output": "output.LayerNorm",
}
