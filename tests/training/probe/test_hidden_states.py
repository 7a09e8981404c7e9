from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
import pytest

from lengthwise.client.collect import Prompt
from lengthwise.errors import InputError
from lengthwise.training.probe.states import PARTS, read_states, unfinished
from tests.training.probe.extras import torch, transformers

from lengthwise.training.probe import hidden_states  # isort: skip
from lengthwise.training.probe.hidden_states import (  # isort: skip
    AnswerSettings,
    CollectionSummary,
    _penalised,
    answer,
    collect_states,
)

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
    together = answer(llm, PROMPTS, range(3), [END], settings)
    assert set(together.length) == {0, 1, 2}
    for number, ids in enumerate(PROMPTS):
        given: list[int] = []
        for generated in range(together.length[number]):
            with torch.inference_mode():
                out = llm(torch.tensor([ids + given]), output_hidden_states=True)
            rows = [r for r, p in enumerate(together.prompt) if p == number and together.generated[r] == generated]
            assert len(rows) == (generated % 4 == 0)
            for row in rows:
                for layer in (1, 2):
                    true = out.hidden_states[layer][0, -1].numpy()
                    assert np.allclose(together.states[layer][row], true, atol=0.02, rtol=0.01)
                share = torch.softmax(out.logits[0, -1], dim=-1)
                assert together.entropy[row] == pytest.approx(float(-(share * share.log()).sum()), abs=1e-3)
            given.append(int(out.logits[0, -1].argmax()))
        assert together.capped[number] == (given[-1] != END)


def test_columns_count_down_to_the_end_and_have_at_most_the_given_positions(llm: Any) -> None:
    settings = AnswerSettings(layers=(2,), max_tokens=40, every=2, batch=2, seed=3)
    collected = answer(llm, PROMPTS, range(3), [END], settings)
    columns = collected.columns([False, True, False], 3, 0)
    assert max(np.bincount(columns["pid"])) <= 3
    for number, age, rest in zip(columns["pid"], columns["pos"], columns["rem"], strict=True):
        assert age + rest == collected.length[number]
    assert columns["test"].tolist() == [number == 1 for number in columns["pid"]]
    assert columns["L2"].shape == (len(columns["pid"]), 32)


def prompt(number: int) -> Prompt:
    return Prompt("Mbpp", str(number), f"text {number} " * (number % 3 + 1), "train")


COLLECTED: Final = [prompt(number) for number in range(7)]
SETTINGS: Final = AnswerSettings(layers=(2,), max_tokens=30, every=4, positions=3, batch=2)


@pytest.fixture
def tiny_llm(llm: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tokenizer is a stand-in: a token for each letter."""
    tokenizer = SimpleNamespace(
        chat_template=None, eos_token_id=END, decode="".join,
        encode=lambda text, **_: [*text] if _ else [2 + ord(letter) % 48 for letter in text],
    )  # fmt: skip
    monkeypatch.setattr(hidden_states, "load_llm", lambda _: (llm, tokenizer))
    return llm


def collect(out: Path, settings: AnswerSettings = SETTINGS, stop: float = 2.0) -> CollectionSummary:
    def report(_: str, done: float) -> None:
        if done >= stop:
            raise KeyboardInterrupt

    return collect_states(COLLECTED, out, "tiny", settings, 0.3, report)


def test_a_collection_that_was_stopped_resumes_and_ends_as_if_it_had_not_been(tiny_llm: Any, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    summary = collect(whole)
    with pytest.raises(KeyboardInterrupt):
        collect(stopped, stop=0.5)
    assert unfinished(stopped)
    begun = {path: path.stat().st_mtime_ns for path in (stopped / PARTS).glob("*.npz")}
    assert len(begun) == 2
    with pytest.raises(KeyboardInterrupt):
        collect(stopped, stop=1.0)
    assert all(path.stat().st_mtime_ns == written for path, written in begun.items()), "they are not answered again"
    assert collect(stopped) == summary
    assert not unfinished(stopped)
    assert sorted(path.name for path in stopped.iterdir()) == ["prompts.parquet", "states.npz"]
    assert pq.read_table(stopped / "prompts.parquet") == pq.read_table(whole / "prompts.parquet")
    with np.load(stopped / "states.npz") as one, np.load(whole / "states.npz") as other:
        assert one.files == other.files
        assert all((one[name] == other[name]).all() for name in one.files)


def test_the_table_has_the_length_of_each_answer(tiny_llm: Any, tmp_path: Path) -> None:
    summary = collect(tmp_path / "states")
    table = pq.read_table(tmp_path / "states" / "prompts.parquet").to_pydict()
    assert table["prompt_id"] == [each.prompt_id for each in COLLECTED]
    assert np.mean(table["length"]) == summary.mean
    assert all(length == 30 for length, capped in zip(table["length"], table["capped"], strict=True) if capped)
    assert max(table["length"]) == 30
    assert min(table["length"]) < 30
    assert len(read_states(tmp_path / "states", "fast", "tiny")) == summary.rows


def test_a_collection_is_not_resumed_with_other_settings(tiny_llm: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, stop=0.5)
    with pytest.raises(InputError, match=r"other settings \(temperature, seed\); give those of the first call"):
        collect(tmp_path, replace(SETTINGS, temperature=0.0, seed=1))


def test_penalties_are_those_of_vllm() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0]])
    counts = torch.tensor([[0.0, 0.0, 3.0, 0.0]])
    in_prompt = torch.tensor([[True, True, False, False]])
    found = _penalised(logits, counts, in_prompt, AnswerSettings(repetition_penalty=2.0, frequency_penalty=0.1))
    assert torch.allclose(found, torch.tensor([[1.0, -4.0, 0.5 - 0.3, 1.0]]))
