"""Table 1 and figures 1 to 4."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.castillo_profile import PAPER_TABLE_1, STUDY, profile_castillo, tables, trimmed
from experiments.study import Run
from lengthwise.simulator.tasks import ResultCache
from tests.experiments.samples import check_output
from tests.workloads.made_samples import made_up

LLMS = ("meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-3B-Instruct", "mistralai/Mixtral-8x7B")


def test_prompts_are_counted_once_though_many_llms_answer_them() -> None:
    profile = profile_castillo(made_up(prompts=40, llms=LLMS))
    assert sum(corpus.prompts for corpus in profile.prompt_tokens.values()) == 40
    assert profile.without_llama == 0


def test_prompts_that_no_llama_answered_are_left_out_and_counted() -> None:
    profile = profile_castillo(made_up(prompts=40, llms=("mistralai/Mixtral-8x7B",)))
    assert profile.prompt_tokens == {}
    assert profile.without_llama == 40
    assert "Left out: 40 prompts" in tables(profile)[0].notes[1]


def test_means_are_over_clean_samples_and_the_rest_is_a_share() -> None:
    samples = made_up(prompts=20, llms=LLMS)
    profile = profile_castillo(samples)
    llama = next(row for row in profile.by_llm if row.llm == LLMS[0])
    mine = samples.where(llm=LLMS[0])
    assert llama.mean == pytest.approx(np.nanmean(mine.clean_mean()))
    assert llama.degenerate == pytest.approx(1 - mine.clean_mask().mean())
    assert sum(row.rows for row in profile.by_llm) == sum(row.rows for row in profile.by_corpus) == 60


def test_a_missing_corpus_still_has_the_papers_row() -> None:
    table = tables(profile_castillo(made_up(prompts=20, llms=LLMS)))[0]
    named = [row[0] for row in table.rows if row[0]]
    assert set(named) >= set(PAPER_TABLE_1)
    apps = next(row for row in table.rows if row[0] == "Apps")
    assert apps[1:4] == ("paper", "2,000", "545")


def test_trimming_takes_the_top_percent() -> None:
    assert trimmed(np.arange(1000, dtype=np.float64)).max() == pytest.approx(989, abs=1)


def test_the_study_shows_table_1_and_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    output = STUDY.output(STUDY.measure(Run(ResultCache(tmp_path / "cache")), STUDY.grid))
    check_output(output)
    assert ("", "paper", "974", "153.5") in [tuple(row[:4]) for row in output.tables[0].rows]
