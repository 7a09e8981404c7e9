from __future__ import annotations

import numpy as np
import pytest

from lengthwise.bench.evidence.own import learning_prompts, own_traffic
from lengthwise.bench.evidence.traffic import Sizes, official_test, played_traffic
from lengthwise.errors import InputError
from lengthwise.workloads import load_castillo


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture(autouse=True)
def packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)


def test_the_same_repeat_has_the_same_traffic_and_another_another() -> None:
    first, again, other = (played_traffic(official_test(), Sizes(n=50), repeat, words) for repeat in (0, 0, 1))
    assert first.prompts == again.prompts != other.prompts
    assert (first.lengths == again.lengths).all()
    assert (first.arrivals == again.arrivals).all()
    assert (first.arrivals != other.arrivals).any()


def test_the_rate_changes_arrivals_and_nothing_else() -> None:
    traffic = played_traffic(official_test(), Sizes(n=20), 0, words)
    slow, fast, batch = (traffic.workload(rate) for rate in (1.0, 4.0, None))
    assert slow.arrival_s == pytest.approx(4 * fast.arrival_s)
    assert (batch.arrival_s == 0).all()
    assert (slow.output_tokens == fast.output_tokens).all()


def test_lengths_are_scaled_clean_samples_within_the_cap() -> None:
    samples = official_test()
    traffic = played_traffic(samples, Sizes(n=200, scale=0.15, cap=100), 0, words)
    assert 1 <= traffic.lengths.min() <= traffic.lengths.max() <= 100
    texts = samples.table["prompt"].to_pylist()
    rows = samples.lengths_matrix()
    for prompt, length in zip(traffic.prompts[:30], traffic.lengths[:30], strict=True):
        own = np.clip(np.rint(rows[texts.index(prompt)] * 0.15), 1, 100)
        assert length in own


def test_long_prompts_are_left_out_and_counted() -> None:
    samples = official_test()
    longest = 60
    traffic = played_traffic(samples, Sizes(n=100, longest_prompt=longest), 0, words)
    assert max(words(prompt) for prompt in traffic.prompts) <= longest
    over = sum(words(text) > longest for text in samples.table["prompt"].to_pylist())
    assert {each.rule: each.rows for each in traffic.left_out}["prompts over 60 tokens"] == over
    with pytest.raises(InputError, match="no prompt of at most"):
        played_traffic(samples, Sizes(longest_prompt=1), 0, lambda _: 5)


def test_only_official_test_prompts_are_sent_and_none_of_them_is_learned_from() -> None:
    samples = official_test()
    assert set(samples.splits) == {"test"}
    assert "Alpaca" not in samples.corpora
    learned = learning_prompts(Sizes(own_lengths=200), words)
    assert len(learned) == 100
    assert {prompt.split for prompt in learned} <= {"train", "validate"}
    everything = set(load_castillo(split="test").table["prompt"].to_pylist())
    assert not everything & {prompt.text for prompt in learned}


def test_own_answers_have_a_seed_each_and_no_length_yet() -> None:
    traffic = own_traffic(official_test(), Sizes(own_n=30, cap=64), 0, None)
    seeds = [body["seed"] for body in traffic.sampling]
    assert len(set(seeds)) == 30
    assert traffic.free
    assert set(traffic.lengths.tolist()) == {64}
    assert traffic.sampling[0].keys() >= {"temperature", "top_p", "frequency_penalty"}
