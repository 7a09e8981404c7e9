"""Pairs of prompts and LLMs: levels of LLMs, and scores within an LLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lengthwise.training.pairs import PairTable, coverage_90, score_pairs
from lengthwise.workloads import LengthSamples


def samples(rows: list[tuple[str, str, str, list[int]]], split: str = "train", **more: Any) -> LengthSamples:
    columns = {
        "corpus": [corpus for corpus, *_ in rows],
        "split": [split] * len(rows),
        "prompt_id": [text for _, text, *_ in rows],
        "llm": [llm for _, _, llm, _ in rows],
        "input_tokens": [1] * len(rows),
        "lengths": [lengths for *_, lengths in rows],
        "prompt": [text for _, text, *_ in rows],
    }
    return LengthSamples.from_table(columns | more, origin="made up")


def test_a_prompt_of_an_earlier_source_is_left_out_of_a_later_one() -> None:
    first = samples([("Apps", "Sort it.", "a", [10, 20]), ("ShareGPT", "Hi", "a", [5, 15_000])])
    second = samples([("chat", "sort  IT.", "b", [7]), ("chat", "Bye", "b", [9])])
    table = PairTable.of(first, second)
    assert table.texts == ("Sort it.", "Hi", "Bye")
    assert table.groups == ("castillo-code", "castillo-chat", "chat")
    assert table.lengths[1, :2].tolist() == [5, 0]  # the degenerate sample is left out
    part = table.take(table.in_groups(["chat"]))
    assert (part.texts, [part.llms[n] for n in part.llm]) == (("Bye",), ["b"])


def test_levels_are_estimated_on_shared_prompts_and_shrunk_for_few_lengths() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for number in range(300):
        usual = float(np.exp(rng.normal(5.0, 1.0)))
        rows.append(("chat", f"p{number}", "short", [round(usual)]))
        if number < 150:
            rows.append(("chat", f"p{number}", "long", [round(3.0 * usual)]))
        if number < 2:
            rows.append(("chat", f"p{number}", "rare", [round(3.0 * usual)]))
    table = PairTable.of(samples(rows))
    levels = dict(zip((*table.llms, "unknown"), table.levels(), strict=True))
    assert levels["long"] - levels["short"] == pytest.approx(np.log(3.0), abs=0.25)
    assert 0.0 < levels["rare"] - levels["short"] < 0.8


def test_a_group_is_scored_over_llms_with_enough_prompts() -> None:
    rows = [("chat", f"p{n}", "a", [10 * (n + 1)]) for n in range(40)]
    rows += [("chat", f"p{n}", "b", [1000 - n]) for n in range(5)]
    table = PairTable.of(samples(rows))
    mu = table.log_mean()
    found = score_pairs(table, mu, np.full(len(mu), 0.3), 3.5)
    assert (found.llms, found.coverage_90) == (1, 1.0)
    assert found.tau == pytest.approx(1.0)
    assert score_pairs(table, mu + 3.0, np.full(len(mu), 0.3), 3.5).coverage_90 == 0.0


def test_capped_samples_are_ignored_in_the_coverage() -> None:
    capped = [[False]] * 39 + [[True]]
    table = PairTable.of(samples([("chat", f"p{n}", "a", [100]) for n in range(40)], capped=capped))
    mu = np.full(40, np.log(100.0))
    mu[39] = 9.0
    assert score_pairs(table, mu, np.full(40, 0.1), 3.5).coverage_90 == 1.0


def test_the_coverage_alone_is_that_among_all_scores() -> None:
    rng = np.random.default_rng(4)
    rows = [
        ("chat", f"p{n}", llm, rng.integers(1, 2000, 3).tolist())
        for llm in ("a", "b", "c")
        for n in range(20 if llm == "c" else 60)
    ]
    cut = [(rng.random(3) < 0.2).tolist() for _ in rows]
    table = PairTable.of(samples(rows, capped=cut))
    mu, sigma = table.log_mean(), rng.uniform(0.1, 2.0, len(table.prompt))
    assert 0.0 < coverage_90(table, mu, sigma, 3.5) == score_pairs(table, mu, sigma, 3.5).coverage_90 < 1.0
