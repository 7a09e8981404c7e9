"""The benchmark of chains of thought, on answers with known properties."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.chains import (
    CONSTANT,
    LONG,
    MIN_PROMPTS,
    SHORT,
    STUDY,
    Chains,
    ChainsGrid,
    Read,
    measure,
    read_chains,
    score,
    tables,
    task_of,
    taus_of_others,
)
from experiments.study import Run
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.simulator.tasks import ResultCache

ZERO_EVAL = "WildEval/ZeroEval"


def chains(llm: str, level: float, *, within: float = 0.3, count: int = 160, seed: int = 0) -> Chains:
    """Answers whose prompts name their effect, the same for every LLM."""
    topic = np.arange(count) % 4
    noise = within * np.random.default_rng(seed).standard_normal(count)
    words = ("addition", "geometry", "probability", "integrals")
    prompts = tuple(f"Exercise {number} on {words[kind]}" for number, kind in enumerate(topic))
    tokens = np.ceil(np.exp(level + 0.6 * topic + noise)).astype(np.int64)
    return Chains("made", llm, prompts, tokens, np.zeros(count, bool))


def rows(llm: str, level: float, question: str, *, kind: str = "math", hidden: bool = False) -> list[dict[str, object]]:
    made = chains(llm, level, count=MIN_PROMPTS + 10)
    return [
        {
            "prompt": f"## Question: {question} {prompt}\n## Instruction \\", "model": llm, "kind": kind,
            "output_tokens": int(tokens), "finish": "stop", "source": ZERO_EVAL, "maybe_hidden_reasoning": hidden,
        }
        for prompt, tokens in zip(made.prompts, made.tokens, strict=True)
    ]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data with three LLMs, one of which hides its reasoning."""
    made = []
    for llm, level in (("a", 5.0), ("b", 6.0)):
        made += rows(llm, level, "It costs $5.") + rows(llm, level + 1.0, r"Let $x$ be \frac{1}{2}.")
    made += rows("o1", 3.0, "It costs $5.", hidden=True) + rows("a", 9.0, "It costs $5.")
    (tmp_path / "diverse").mkdir()
    pq.write_table(pa.Table.from_pylist(made), tmp_path / "diverse" / "lengths.parquet")
    monkeypatch.setenv("LENGTHWISE_DATA", str(tmp_path))
    return tmp_path


def test_mathematics_with_latex_is_told_from_prices() -> None:
    assert task_of(ZERO_EVAL, "math", "## Question: He pays $3.50, and $ 4 more.\n## Instruction `\\n`") == SHORT
    assert task_of(ZERO_EVAL, "math", "## Question: Solve $x^2 = 4$.\n## Instruction") == LONG
    assert task_of(ZERO_EVAL, "code-reasoning", "$x$") == "program output"
    assert task_of("another source", "math", "2 + 2") is None


def test_chains_are_one_answer_per_prompt_of_llms_that_show_their_reasoning(home: Path) -> None:
    found = read_chains(home)
    assert {task: sorted(by_llm) for task, by_llm in found.items()} == {SHORT: ["a", "b"], LONG: ["a", "b"]}
    assert len(found[SHORT]["a"].prompts) == MIN_PROMPTS + 10
    assert found[SHORT]["a"].tokens.max() < np.exp(8.5)  # the second answers are longer


def test_a_score_counts_answers_far_above_the_median() -> None:
    made = LogTPredictions.of([5.0] * 4, [0.1] * 4, [10_000] * 4)
    found = score(made, np.array([148, 148, 300, 1_000]))
    assert (found.covered, found.above, found.far) == (0.5, 0.5, 0.25)
    assert found.ratio == found.off > 1
    assert score(made, np.array([100] * 4)).off == pytest.approx(1.484, abs=0.01)


def test_learning_finds_the_level_and_the_order_and_the_constant_the_level_only() -> None:
    each = chains("a", 7.0)
    order = np.random.default_rng(0).permutation(len(each.prompts))
    found = Read.by("fast", each).learned(order[:110], order[110:], (30, 110))
    assert list(found) == ["0", "30", CONSTANT, "110"]
    assert found["0"].off > 2.0
    assert found["110"].off < 1.3
    assert found["110"].tau > found["0"].tau
    assert found["110"].covered > 0.8
    assert np.isnan(found[CONSTANT].tau)
    assert found[CONSTANT].off < 1.5


def test_other_llms_order_prompts_whatever_their_levels() -> None:
    found = taus_of_others({"a": chains("a", 5.0), "b": chains("b", 8.0, seed=1)})
    assert found["a"] == pytest.approx(found["b"])
    assert found["a"] > 0.5
    found = taus_of_others({"a": chains("a", 5.0), "b": chains("b", 8.0, seed=1), "c": chains("c", 6.0, within=3.0)})
    assert found["a"] > found["c"]
    alone = taus_of_others({"a": chains("a", 5.0)})
    assert np.isnan(alone["a"])


def test_the_study_scores_tasks_and_long_chains_after_short_ones(home: Path, tmp_path: Path) -> None:
    grid = ChainsGrid(orders=1, policies=("tie",), simulated=1)
    found = measure(Run(ResultCache(tmp_path / "cache")), grid)
    assert [(each.task, each.llms) for each in found.tasks] == [(SHORT, 2), (LONG, 2)]
    general = found.general.after
    assert set(general) == {"0", "short", "short, 30", "short, 100"}
    assert general["short"]["ratio"].mean > 1.8  # long chains are e times as long
    assert general["short, 100"]["off"].mean < general["short"]["off"].mean
    assert {each.policy for each in found.gains} == {"tie, alone", "tie, learned", "sjf, true"}
    assert [len(table.rows) for table in tables(found)] == [12, 6]
    assert "On 2 tasks" in STUDY.output(found).verdict


def test_the_page_shows_the_kept_rows() -> None:
    page = Path("docs/studies/reasoning.md").read_text()
    scores, gains = json.loads(Path("experiments/results/chains-castillo.json").read_text())["tables"]
    packaged, _ = json.loads(Path("experiments/results/chains.json").read_text())["tables"]
    tasks = {row[0]: None for row in scores["rows"][:-4]}
    by_place = {(row[0], row[4]): row for row in scores["rows"]}
    for number, places in ((3, ["0"]), (5, ["0"]), (5, ["30"]), (5, ["100"])):
        assert f"| {' | '.join(by_place[task, place][number] for task in tasks for place in places)} |" in page
    for number in (6, 8, 9, 10):
        three = [[by_place[task, place][number].split(" [")[0] for place in ("0", "100", CONSTANT)] for task in tasks]
        assert f"| {' | '.join('; '.join(each) for each in three)} |" in page
    assert f"| {' | '.join(row[5] for row in packaged['rows'][:-4] if row[4] == '0')} |" in page
    for name in ("0", "short", "short, 30", "short, 100"):
        _, _, _, _, _, _, covered, ratio, *_ = by_place[f"{SHORT} to {LONG}", name]
        assert ratio.split(" [")[0] in page
        assert covered.split("%")[0] + " %" in page
    means = {(group, policy): rest for group, _, policy, *rest in gains["rows"]}
    for policy, name in (("sjf", "alone"), ("tie", "learned"), ("bounded(tie)", "learned"), ("sjf", "true")):
        cells = [*means["all", f"{policy}, {name}"], *means["overthink most", f"{policy}, {name}"]]
        assert f"| {name} | `{policy}` | {' | '.join(cells)} |" in page
