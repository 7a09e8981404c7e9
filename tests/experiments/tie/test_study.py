from __future__ import annotations

import json
from functools import cache

import numpy as np
import plotly.graph_objects as go
import pytest

from experiments.tie import paper
from experiments.tie.facts import plain
from experiments.tie.plot import figures
from experiments.tie.runs import find, offline_rows, top, within_prompts
from experiments.tie.said import Compared, compare, concentration, offline_figures, order, weaker
from experiments.tie.study import ABLATED, HIGH, LOGNORMAL, LOW, POLICIES, WEAKER, Effort, TieStudy, study
from experiments.tie.traffic import AS_IN_PAPER
from experiments.tie.view import html_report, tables
from lengthwise.errors import InputError
from lengthwise.reports.tables import to_json
from lengthwise.simulator.paired import Ratio
from lengthwise.workloads import LengthSamples, load_castillo
from tests.experiments.samples import made_up

PREDICTOR = "noisy:0.5"


def packaged() -> LengthSamples:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LENGTHWISE_DATA", raising=False)
        return load_castillo()


@cache
def small() -> TieStudy:
    return study(packaged(), predictor=PREDICTOR, effort=Effort(2, 200, (0.9, LOW, HIGH), 400))


@pytest.mark.parametrize("grid", ["online", "made_up", "offline"])
def test_within_a_seed_every_policy_meets_the_same_arrivals_and_lengths(grid: str) -> None:
    found = getattr(small(), grid)
    for level in found.levels:
        cells = [cell for cell in found.cells if cell.level == level]
        assert len(cells) > len(POLICIES)
        for seed in range(2):
            first = cells[0].outcomes[seed]
            for cell in cells:
                np.testing.assert_array_equal(cell.outcomes[seed].arrival, first.arrival)
                np.testing.assert_array_equal(cell.outcomes[seed].output_tokens, first.output_tokens)
                assert not np.isnan(cell.outcomes[seed].finish).any()
        assert not np.array_equal(cells[0].outcomes[0].output_tokens, cells[0].outcomes[1].output_tokens)


def test_the_ablation_is_run_at_every_load_and_weaker_predictions_at_the_highest() -> None:
    found = small().online
    for level in found.levels:
        there = {(cell.policy, cell.predictor) for cell in found.cells if cell.level == level}
        assert {(policy, PREDICTOR) for policy in ABLATED.values()} | {("tie", LOGNORMAL)} <= there
        assert (("sjf", WEAKER[0]) in there) == (level == top(found))


def test_ssjf_and_ltr_are_one_order_where_they_share_predictions_and_memory_is_plenty() -> None:
    found = small()
    for one, other in zip(
        find(found.online, "sjf", PREDICTOR).outcomes, find(found.online, "ltr", PREDICTOR).outcomes, strict=True
    ):
        np.testing.assert_array_equal(one.finish, other.finish)


def test_true_lengths_leave_no_tail_to_price_so_offline_tie_is_sjf() -> None:
    # Online, aging makes them differ; here all have waited alike.
    found = offline_figures(small())
    assert found["tie", "oracle"] == found["sjf", "oracle"]
    assert found["sjf", "oracle"][0][0] < found["fcfs", None][0][0]


def test_offline_counts_agree_with_what_was_finished() -> None:
    found = small()
    assert (found.samples, found.window_s) == (200, 12.0)  # half of the pool, and as much less than 3 minutes
    outcome = find(found.offline, "fcfs", "").outcomes[0]
    assert outcome.arrival.max() == 0
    times, counts = offline_figures(found)["fcfs", None]
    assert (outcome.finish <= times[0]).sum() >= found.samples
    assert (outcome.finish < times[0]).sum() < found.samples
    assert counts[0] == (outcome.finish <= 12.0).sum()


def test_the_band_of_the_heatmap_is_narrowest_with_true_lengths_and_absent_under_fcfs() -> None:
    found = small().offline
    assert concentration(find(found, "sjf", "oracle")) > 0.99
    assert concentration(find(found, "sjf", "oracle")) > concentration(find(found, "sjf", PREDICTOR)) > 0.2
    assert abs(concentration(find(found, "fcfs", ""))) < 0.2


def test_alpaca_is_served_offline_where_it_is_at_hand() -> None:
    assert offline_rows(packaged())[1] == "all test prompts"  # the packaged sample has none
    renamed = made_up().table.to_pydict()
    renamed["corpus"] = ["Alpaca" if corpus == "Mbpp" else corpus for corpus in renamed["corpus"]]
    rows, corpus = offline_rows(LengthSamples.from_table(renamed, origin="made up"))
    assert (corpus, set(rows.corpora)) == ("Alpaca", {"Alpaca"})


def test_spread_within_prompts_leaves_out_runaways() -> None:
    samples = made_up(llms=("meta-llama/Llama-3.1-8B-Instruct",))
    rows = samples.lengths_matrix()
    clean = [np.minimum(row[keep], paper.MAX_TOKENS) for row, keep in zip(rows, samples.clean_mask(), strict=True)]
    expected = np.mean([row.std(ddof=1) / row.mean() for row in clean if len(row) > 1])
    assert within_prompts(samples, "llama-3.1-8b") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("theirs", "ours", "verdict"),
    [
        (0.5, Ratio(0.9, 0.8, 1.1), "no difference here"),
        (0.5, Ratio(1.5, 1.4, 1.6), "the other way round"),
        (0.5, Ratio(0.5, 0.4, 0.6), "the same"),
        (0.5, Ratio(0.2, 0.1, 0.3), "same direction, more"),
        (2.0, Ratio(1.2, 1.1, 1.3), "same direction, less"),
        (2.0, Ratio.none(), "–"),
    ],
)
def test_a_verdict_goes_by_the_interval(theirs: float, ours: Ratio, verdict: str) -> None:
    assert Compared("", theirs, ours, Ratio.none()).verdicts == (verdict, "–")


def test_every_claim_has_our_figure() -> None:
    rows = compare(small())
    assert len({row.claim for row in rows}) == len(rows)
    assert all(np.isfinite(row.castillo.ratio) for row in rows)
    tie_over_fcfs = next(row for row in rows if row.claim == "tie over fcfs")
    ours = find(small().made_up, "tie", AS_IN_PAPER).figures("per_token_s", "mean")
    base = find(small().made_up, "fcfs", "").figures("per_token_s", "mean")
    assert tie_over_fcfs.made_up.ratio == pytest.approx(np.exp(np.mean(np.log(np.array(ours) / base))))


def test_order_names_everybody_once_and_ties_those_that_cannot_be_told_apart() -> None:
    said = order(small().online, PREDICTOR, POLICIES)
    assert sorted(said.replace(" < ", " ").replace(" = ", " ").split()) == sorted(POLICIES)
    assert "sjf = ltr" in said


def test_weaker_predictions_are_as_good_as_they_are_called() -> None:
    found = weaker(small())
    assert [each.predictor for each in found] == list(WEAKER)  # the study's own is one of them
    assert [each.tau for each in found] == pytest.approx(
        [float(name.removeprefix("noisy:")) for name in WEAKER], abs=0.02
    )
    assert found[-1].ratio.ratio < found[0].ratio.ratio


def test_tables_are_whole_and_the_page_draws_every_figure() -> None:
    found = small()
    for table in tables(found):
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    drawn = figures(found)
    for figure in drawn:
        data, layout = json.loads(to_json(figure.data)), json.loads(to_json(figure.layout))
        go.Figure({"data": data, "layout": layout})  # raises on a name or a value that Plotly does not know
    page = html_report(found)
    assert page.count("Plotly.newPlot(") >= len(drawn)
    assert "What explains the differences" in page


def test_programs_get_the_same() -> None:
    told = json.loads(to_json(plain(small())))
    assert told["origin"] == "packaged sample"
    assert len(told["compared"]) == len(compare(small()))
    assert told["offline"]["samples"] == 200
    assert {run["policy"] for run in told["online"]["runs"]} >= set(POLICIES)


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(InputError, match="1 seeds"):
        Effort(seeds=1)
