"""Encoders of a few thousand random weights, a tokenizer of a few words, and training data."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lengthwise.training.encoder.config import TrainingConfig, parse_config  # noqa: E402
from lengthwise.workloads import LengthSamples  # noqa: E402

WORDS = ("write", "a", "short", "long", "story", "list", "code", "sort", "why", "explain", "one", "word", "##s", ".")
LLMS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B", "owner/Mystery")
ARCHITECTURES = ("bert", "distilbert", "deberta-v2", "minilm")


def write_backbone(folder: Path, kind: str) -> str:
    """Write a random encoder with `save_pretrained` and return its folder."""
    torch.manual_seed(0)
    model(kind).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def model(kind: str) -> Any:
    words = {"vocab_size": len(WORDS) + 5, "pad_token_id": 0}
    if kind == "distilbert":
        config = transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **words)
        return transformers.DistilBertModel(config)
    shape = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    layers = 3 if kind == "minilm" else 2
    if kind == "deberta-v2":
        relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 64}
        config = transformers.DebertaV2Config(num_hidden_layers=layers, **shape, **words, **relative)
        return transformers.DebertaV2Model(config)
    return transformers.BertModel(transformers.BertConfig(num_hidden_layers=layers, **shape, **words))


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    vocabulary = {word: number for number, word in enumerate((*special, *WORDS))}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.add_special_tokens(list(special))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, mask_token="[MASK]", **names)  # noqa: S106


@cache
def samples() -> LengthSamples:
    """Return prompts whose words determine the lengths; answers of the last LLM are capped at 300."""
    rng = np.random.default_rng(0)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("corpus", "split", "prompt_id", "llm", "input_tokens", "prompt")
    }
    lengths, capped = [], []
    for number in range(60):
        words = rng.choice(WORDS[:12], int(rng.integers(2, 20)))
        middle = 3.5 + 1.5 * ("long" in words) + 0.8 * ("story" in words) - 0.5 * ("one" in words)
        for llm, shift in zip(LLMS, (0.0, 0.3, 0.8), strict=True):
            drawn = np.exp(middle + shift + 0.2 * rng.standard_normal(4)).astype(int) + 1
            limit = 300 if llm == LLMS[2] else 100_000
            rows["corpus"].append(("Alpaca", "Mbpp", "Dolly")[number % 3])
            rows["split"].append("test" if number % 5 == 0 else "train")
            rows["prompt_id"].append(f"p{number}")
            rows["llm"].append(llm)
            rows["input_tokens"].append(len(words))
            rows["prompt"].append(" ".join(words))
            lengths.append(np.minimum(drawn, limit).tolist())
            capped.append((drawn >= limit).tolist())
    return LengthSamples.from_table({**rows, "lengths": lengths, "capped": capped}, origin="tiny")


def write_samples(path: Path) -> str:
    samples().write(path)
    return str(path)


def config(folder: Path, kind: str = "bert", **changes: Any) -> TrainingConfig:
    """Return settings for a tiny training; the encoder and the data are written if missing."""
    backbone, data = folder / kind, folder / "samples.parquet"
    if not backbone.is_dir():
        write_backbone(backbone, kind)
    if not data.is_file():
        write_samples(data)
    tree = {
        "name": "tiny",
        "backbone": str(backbone),
        "max_tokens": 16,
        "identity": {"width": 4},
        "head": {"hidden": 8},
        "optimiser": {"epochs": 1, "batch": 8, "lr": 1e-3, "head_lr": 1e-2},
        "data": {"source": str(data), "corpora": ["Mbpp", "Dolly"], "smollm2": False, "held_out": 0.3},
    }
    for name, value in changes.items():
        tree[name] = {**tree.get(name, {}), **value} if isinstance(value, dict) else value  # type: ignore[dict-item]
    return parse_config(tree)
