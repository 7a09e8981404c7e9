from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.training.probe.extras import torch, transformers

from lengthwise.training.probe.hidden_states import AnswerSettings, _penalised, answer_all  # isort: skip

PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15, 16]]
END = 1


@pytest.fixture(scope="module")
def llm() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.5,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_states_do_not_depend_on_the_batch(llm: Any) -> None:
    settings = AnswerSettings(layers=(1, 2), temperature=0.0, max_tokens=12, every=4, batch=3)
    together = answer_all(llm, PROMPTS, [END], settings)
    assert set(together.length) == {0, 1, 2}
    for number, ids in enumerate(PROMPTS):
        answer: list[int] = []
        for generated in range(together.length[number]):
            with torch.inference_mode():
                out = llm(torch.tensor([ids + answer]), output_hidden_states=True)
            rows = [r for r, p in enumerate(together.prompt) if p == number and together.generated[r] == generated]
            assert len(rows) == (generated % 4 == 0)
            for row in rows:
                for layer in (1, 2):
                    true = out.hidden_states[layer][0, -1].numpy()
                    assert np.allclose(together.states[layer][row], true, atol=0.02, rtol=0.01)
                share = torch.softmax(out.logits[0, -1], dim=-1)
                assert together.entropy[row] == pytest.approx(float(-(share * share.log()).sum()), abs=1e-3)
            answer.append(int(out.logits[0, -1].argmax()))
        assert together.capped[number] == (answer[-1] != END)


def test_columns_count_down_to_the_end_and_have_at_most_the_given_positions(llm: Any) -> None:
    settings = AnswerSettings(layers=(2,), max_tokens=40, every=2, batch=2, seed=3)
    collected = answer_all(llm, PROMPTS, [END], settings)
    columns = collected.columns([False, True, False], 3, 0)
    assert max(np.bincount(columns["pid"])) <= 3
    for number, age, rest in zip(columns["pid"], columns["pos"], columns["rem"], strict=True):
        assert age + rest == collected.length[number]
    assert columns["test"].tolist() == [number == 1 for number in columns["pid"]]
    assert columns["L2"].shape == (len(columns["pid"]), 32)


def test_penalties_are_those_of_vllm() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0]])
    counts = torch.tensor([[0.0, 0.0, 3.0, 0.0]])
    in_prompt = torch.tensor([[True, True, False, False]])
    found = _penalised(logits, counts, in_prompt, AnswerSettings(repetition_penalty=2.0, frequency_penalty=0.1))
    assert torch.allclose(found, torch.tensor([[1.0, -4.0, 0.5 - 0.3, 1.0]]))
