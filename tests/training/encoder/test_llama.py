"""A Llama as an encoder, and the text it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

from lengthwise.errors import InputError  # noqa: E402
from lengthwise.training.data import make_pack  # noqa: E402
from lengthwise.training.encoder.backbones import (  # noqa: E402
    ChatText,
    load_backbone,
    wrap,
)
from lengthwise.training.encoder.network import Pooling  # noqa: E402
from lengthwise.training.encoder.pack import UNLABELLED  # noqa: E402
from tests.training.encoder.tiny import config, samples  # noqa: E402


@pytest.fixture(scope="module")
def both() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=24, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )  # fmt: skip
    theirs = transformers.LlamaModel(config).eval()
    return theirs, wrap(theirs).eval()


IDS = np.array([[3, 7, 1, 9, 22, 5, 14]])


def test_the_numbers_are_those_of_transformers_and_dropout_is_set_in_both_branches(both: Any) -> None:
    model, encoder = both
    ids = torch.tensor(IDS)
    with torch.no_grad():
        assert torch.equal(encoder(ids), model(input_ids=ids).last_hidden_state)
        encoder.set_dropout(0.5)
        assert not torch.allclose(encoder.train()(ids), encoder.eval()(ids))
    encoder.set_dropout(0.0)


def test_padding_after_the_text_is_not_seen(both: Any) -> None:
    _, ours = both
    padded = torch.tensor(np.pad(IDS, ((0, 0), (0, 4))))
    mask = torch.arange(padded.shape[1])[None] < IDS.shape[1]
    pool = Pooling("last_all", ours.width)
    with torch.no_grad():
        alone, beside = pool(ours(torch.tensor(IDS)), None), pool(ours(padded), mask)
    assert alone.shape == (1, pool.width) == (1, 48)
    assert torch.allclose(alone, beside, atol=1e-5)


def test_without_a_causal_mask_the_first_token_sees_the_last_and_no_padding(both: Any) -> None:
    _, ours = both
    ours.causal = False
    changed = IDS.copy()
    changed[0, -1] = 30
    padded = torch.tensor(np.pad(IDS, ((0, 0), (0, 4))))
    mask = torch.arange(padded.shape[1])[None] < IDS.shape[1]
    with torch.no_grad():
        whole, other, beside = ours(torch.tensor(IDS)), ours(torch.tensor(changed)), ours(padded, mask)
    ours.causal = True
    assert not torch.allclose(whole[0, 0], other[0, 0])
    assert torch.allclose(whole, beside[:, : IDS.shape[1]], atol=1e-5)


def tokenizer(*more: str) -> Tokenizer:
    words = ["<unk>", "user", "assistant", "a", "b", "c", *more]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(list(more))
    return made


def test_text_is_one_turn_and_keeps_both_ends() -> None:
    text = ChatText(tokenizer("<|im_start|>", "<|im_end|>"), 8)
    start, end = 6, 7
    assert text.encode("a b") == ([start, 1, 3, 4, end, start, 2], 2)
    ids, size = text.encode("a " * 9 + "c")
    assert (len(ids), size) == (8, 10)
    assert ids[2] == 3
    assert ids[-4] == 5  # the last word stands before the closing markers


def test_a_tokenizer_without_the_markers_is_refused() -> None:
    with pytest.raises(InputError, match="ChatML"):
        ChatText(tokenizer(), 8)


def test_a_pack_loses_an_llm_and_gains_prompts(tmp_path: Path) -> None:
    settings = config(tmp_path)
    text = load_backbone(settings.backbone, settings.max_tokens).text
    whole = make_pack(samples(), settings.data, text)
    less = whole.without("Qwen")
    assert len(whole.llms) == 3
    assert all("Qwen" not in llm for llm in less.llms)
    assert less.lengths.shape[1] == len(less.llms) == len(less.features) - 1 == 2
    more = whole.extended(np.array([2, 3, 3, 2, 3]), np.array([0, 2, 5]), np.array([2, 3], np.int32))
    ids, count = more.padded()
    assert count[-2:].tolist() == [2, 3]
    assert ids[-1, :3].tolist() == [3, 2, 3]
    assert (more.part[-2:] == UNLABELLED).all()
    assert not more.lengths[-2:].any()
