"""Published figures follow from the kept rows: what a study prints is what its page says."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from experiments.__main__ import load
from experiments.study import Output, Run
from lengthwise.simulator.tasks import ResultCache

DOCS = Path(__file__).parents[2] / "docs" / "studies"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Output]:
    """The output of each study that reads kept rows, by its name."""
    found = {}
    for name in ("alpaca20", "one_prompt", "simulator_error", "trail_engine"):
        study = load(name)
        found[name] = study.output(study.measure(Run(ResultCache(tmp_path_factory.mktemp(name))), study.grid))
    return found


@cache
def page(name: str) -> str:
    """The text of a page, on one line."""
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def short(text: str) -> str:
    """A number as pages write it: .205 for 0.205."""
    return re.sub(r"\b0\.", ".", text)


def test_the_scores_of_alpacas_classes(shown: dict[str, Output]) -> None:
    for score, paper, *ours in shown["alpaca20"].tables[1].rows[:6]:
        row = " | ".join([score, short(f"{float(paper):.2f}"), *map(short, ours[::2])])
        assert f"| {row} |" in page("evaluation.md")


def test_the_families_of_one_prompts_answers(shown: dict[str, Output]) -> None:
    gain = {row[0]: f"{abs(float(row[1])):.1f}" for row in shown["one_prompt"].tables[1].rows}
    higher = (
        f"is {gain['log-t, nu=3.5']} higher, with nu free (1.8) {gain['log-t, nu free']} and that of GEV {gain['GEV']}"
    )
    assert f"{higher}; gamma is {gain['gamma']} and Weibull {gain['Weibull']} lower" in page("lengths-fit.md")


def test_the_error_of_the_simulator(shown: dict[str, Output]) -> None:
    for _, policy, _, mean, simulated, error, _, _, _, p99, simulated_p99, p99_error in (
        shown["simulator_error"].tables[0].rows
    ):
        name = ", ".join(f"`{part}`" for part in policy.split(", "))
        cells = [name, f"{mean} s", f"{simulated} s", error, f"{p99} s", f"{simulated_p99} s", p99_error]
        assert f"| {' | '.join(cells)} |".replace("%", " %") in page("evidence.md")


def test_the_gain_of_a_probe_in_vllm(shown: dict[str, Output]) -> None:
    for folder, arm, shape in (
        ("trail-engine-h200", "srpt:c=0.8, default + probe", "8 slots, by time E2E {}, TTFT {};"),
        ("h200-32-trail", "srpt:c=0.8, default", "32 slots, E2E {}, TTFT {} "),
        ("h200-256-trail", "srpt:c=0.8, default", "memory full, E2E {}, TTFT {}."),
    ):
        table = next(each for each in shown["trail_engine"].tables if each.title == f"{folder}: burst episodes")
        e2e, _, ttft = next(row[2:5] for row in table.rows if row[0] == arm)
        assert shape.format(e2e, ttft).replace("x [", " [") in page("papers.md")
