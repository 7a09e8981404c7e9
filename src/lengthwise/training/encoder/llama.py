"""A Llama as an encoder, in plain PyTorch: a language model that has read far more than its fine-tuning shows it.

It teaches, it is not served: a student of a tenth of its cost learns what it says (docs/guides/training.md). Each token sees
those before it, as in pretraining, so what a prompt asks for is known at its last token (pooling "last_all").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes of a Llama, by the names of its published configuration."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LlamaShape:
        """Take the sizes out of a published configuration."""
        flat = {**config, **(config.get("rope_parameters") or {})}
        return cls(**{name: flat[name] for name in cls.__slots__ if name in flat})


class Attention(nn.Module):  # type: ignore[misc]  # torch is not seen by the type checker
    """Causal attention with rotated queries and keys, fewer keys than queries."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.heads, self.shared = shape.num_attention_heads, shape.num_key_value_heads
        self.size = shape.hidden_size // self.heads
        self.q_proj = nn.Linear(shape.hidden_size, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, self.shared * self.size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, self.shared * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, shape.hidden_size, bias=False)

    def forward(self, x: Any, turn: tuple[Any, Any], past: list[Any] | None) -> Any:  # noqa: ANN401  (tensors)
        """Return what each token sees; `past` holds keys and values of earlier calls and takes this call's."""
        batch, tokens, _ = x.shape
        q, k, v = (
            part(x).view(batch, tokens, -1, self.size).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotated(q, turn), rotated(k, turn)
        if past is not None:
            if past:
                k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
            past[:] = [k, v]
        k, v = (each.repeat_interleave(self.heads // self.shared, dim=1) for each in (k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=tokens > 1)
        return self.o_proj(seen.transpose(1, 2).reshape(batch, tokens, -1))


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and the gated network, each normalised before and added to its input."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.input_layernorm = nn.RMSNorm(width, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(width, shape.rms_norm_eps)
        self.gate_proj = nn.Linear(width, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(width, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, width, bias=False)
        self.dropout = 0.0

    def forward(self, x: Any, turn: tuple[Any, Any], past: list[Any] | None = None) -> Any:  # noqa: ANN401
        """Return what the layer makes of x (batch, tokens, width)."""
        drop = self.dropout if self.training else 0.0
        x = x + functional.dropout(self.self_attn(self.input_layernorm(x), turn, past), drop, self.training)
        inner = self.post_attention_layernorm(x)
        inner = self.down_proj(functional.silu(self.gate_proj(inner)) * self.up_proj(inner))
        return x + functional.dropout(inner, drop, self.training)


class Llama(nn.Module):  # type: ignore[misc]
    """Token ids to one vector per token. Padding stands after the text, where causal attention never looks."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.dropout = 0.0

    @property
    def width(self) -> int:
        """The width of a token's vector."""
        return self.shape.hidden_size

    def forward(self, ids: Any, mask: Any = None, past: list[list[Any]] | None = None) -> Any:  # noqa: ANN401
        """Return (batch, tokens, width); with `past` (a list per layer) the ids follow those of earlier calls."""
        x = self.embed_tokens(ids)
        before = past[0][0].shape[2] if past and past[0] else 0
        turn = self._turn(before, ids.shape[1], x.device)
        for number, layer in enumerate(self.layers):
            x = layer(x, turn, None if past is None else past[number])
        return self.norm(x)

    def _turn(self, before: int, tokens: int, device: Any) -> tuple[Any, Any]:  # noqa: ANN401
        size = self.shape.hidden_size // self.shape.num_attention_heads
        speed = self.shape.rope_theta ** (-torch.arange(0, size, 2, device=device).float() / size)
        angle = torch.arange(before, before + tokens, device=device).float()[:, None] * speed
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos(), angle.sin()

    def set_dropout(self, share: float) -> None:
        """Set the share dropped everywhere."""
        for layer in self.layers:
            layer.dropout = share

    def keep_layers(self, numbers: Sequence[int]) -> None:
        """Keep some of the layers, counted from 0, and forget the rest."""
        self.layers = nn.ModuleList(self.layers[number] for number in numbers)

    def groups(self) -> list[list[Any]]:
        """Parameters from the bottom up, for learning rates that fall with depth."""
        return [
            list(self.embed_tokens.parameters()),
            *(list(layer.parameters()) for layer in self.layers),
            list(self.norm.parameters()),
        ]


def rotated(x: Any, turn: tuple[Any, Any]) -> Any:  # noqa: ANN401
    """Turn pairs of numbers (first half, second half) by an angle that grows with the place."""
    cos, sin = turn
    first, second = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def llama_from_transformers(state: Mapping[str, Any], shape: LlamaShape) -> Llama:
    """Build the encoder from the weights of transformers' LlamaModel (or LlamaForCausalLM, without its last layer)."""
    named = {name.removeprefix("model.").replace(".mlp.", "."): value.float() for name, value in state.items()}
    named.pop("lm_head.weight", None)
    encoder = Llama(shape)
    encoder.load_state_dict(named)
    return encoder
