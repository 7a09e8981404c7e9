from __future__ import annotations

import pytest

from experiments.disaggregation import (
    CASES,
    STUDY,
    DisaggregationGrid,
    DisaggregationResult,
    What,
    draw,
    measure,
    tables,
    trace_name,
    verdict,
)
from experiments.study import Run
from lengthwise.intervals import Ratio
from lengthwise.simulator.tasks import ResultCache
from tests.experiments.samples import check_output

SMALL = DisaggregationGrid(seeds=2, requests=60, engines=3, loads=(0.9,), prefills=(1, 2), cases=("react", "castillo"))
E2E: What = ("e2e_s", "mean")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> DisaggregationResult:
    return measure(Run(ResultCache(tmp_path_factory.mktemp("cache"))), SMALL)


def test_every_split_is_compared_with_the_mixed_fleet_on_the_same_seeds(found: DisaggregationResult) -> None:
    assert [(one.case, one.load, one.prefill) for one in found.split] == [
        (case, 0.9, prefill) for case in ("react", "castillo") for prefill in (0, 1, 2)
    ]
    mixed, one, _ = found.of("castillo", 0.9)
    assert len(mixed.seeds) == 2
    assert mixed.ratios[E2E].ratio == 1.0
    expected = [
        ours["e2e_s"]["mean"] / base["e2e_s"]["mean"] for ours, base in zip(one.seeds, mixed.seeds, strict=True)
    ]
    assert one.ratios[E2E].ratio == pytest.approx((expected[0] * expected[1]) ** 0.5)
    assert one.mean("transfer_s") > 0
    assert found.best("castillo", 0.9, E2E).ratios[E2E].ratio == min(
        each.ratios[E2E].ratio for each in found.of("castillo", 0.9)[1:]
    )


def test_refreshed_predictions_are_compared_with_the_same_split_without(found: DisaggregationResult) -> None:
    assert [(one.case, one.refresh) for one in found.refreshed] == [
        ("castillo", None),
        ("castillo", "probe"),
        ("castillo", "noisy:0.8"),
        ("castillo", "oracle"),
    ]
    assert {one.prefill for one in found.refreshed} == {found.best("castillo", 0.9, E2E).prefill}
    assert found.refreshed[0].ratios[E2E].ratio == 1.0


def test_tables_page_and_json_are_complete(found: DisaggregationResult) -> None:
    shown = tables(found)
    assert len(shown) == 4
    assert [row[0] for row in shown[0].rows] == ["react 0.9", "castillo 0.9"]
    assert all(len({cell.split()[0] for cell in row[1:]}) == 1 for row in shown[0].rows), "one split for all statistics"
    assert "2 seeds from 0, paired" in " ".join(shown[1].notes)
    assert len(shown[1].rows) == 3
    check_output(STUDY.output(found))


def test_a_split_gains_only_if_the_whole_interval_is_below_1() -> None:
    assert verdict(Ratio(0.9, 0.8, 0.99)) == "pays"
    assert verdict(Ratio(0.9, 0.8, 1.01)) == "even"
    assert verdict(Ratio(1.2, 1.1, 1.3)) == "costs"
    assert verdict(Ratio.none()) == "unknown"


def test_a_case_without_its_data_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    assert [trace_name(case) for case in CASES] == ["react", None, "azure_sample", "castillo", None]
    assert len(draw("azure", 30, 0)) == 30
