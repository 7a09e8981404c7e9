from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lengthwise.bench.evidence.analysis import analyse
from lengthwise.bench.evidence.figures import html_report, still_figure
from lengthwise.bench.evidence.lines import Evidence
from lengthwise.bench.evidence.page import BY_HAND, kept_by_hand, markdown
from lengthwise.bench.evidence.plan import ORACLE, Cell, capacity_cell
from lengthwise.bench.evidence.store import Store
from lengthwise.bench.evidence.targets import targets
from lengthwise.bench.evidence.view import tables
from lengthwise.reports.tables import to_json
from tests.bench.evidence.cells import SETTINGS, headline, lengths_of, put


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "out")
    made.begin(SETTINGS)
    return made


@pytest.fixture
def evidence(store: Store) -> Evidence:
    headline(store)
    return analyse(store.settings, store.results())


def test_a_line_is_its_own_figures_and_the_ratio_to_stock_on_the_same_requests(store: Store) -> None:
    headline(store)
    line = analyse(SETTINGS, store.results()).line("a", 1.1, "sjf", "default")
    assert line is not None
    ours = [store.read(Cell("a", "sjf", "default", 1.1, r)).e2e_s for r in range(3)]
    base = [store.read(Cell("a", "fcfs", "none", 1.1, r)).e2e_s for r in range(3)]
    assert line.e2e_s.mean == pytest.approx(np.concatenate(ours).mean())
    assert line.mean.ratio == pytest.approx(np.concatenate(ours).mean() / np.concatenate(base).mean())
    assert [run.repeat for run in line.by_repeat] == [0, 1, 2]
    for run, own, theirs in zip(line.by_repeat, ours, base, strict=True):
        assert run.mean == pytest.approx(own.mean() / theirs.mean())
        assert run.p99 == pytest.approx(np.quantile(own, 0.99) / np.quantile(theirs, 0.99))
    assert line.mean.low <= line.mean.ratio <= line.mean.high < 1
    assert line.p99.ratio == pytest.approx(
        np.quantile(np.concatenate(ours), 0.99) / np.quantile(np.concatenate(base), 0.99)
    )
    assert (line.repeats, line.n) == (3, 120)


def test_the_share_of_the_true_length_gain_is_designs(store: Store) -> None:
    headline(store)
    evidence = analyse(SETTINGS, store.results())
    fcfs, ours, best = (
        evidence.line("a", 1.1, policy, name)
        for policy, name in (("fcfs", "none"), ("lengthwise", "default"), ("lengthwise", ORACLE))
    )
    assert fcfs is not None
    assert ours is not None
    assert best is not None
    expected = (fcfs.e2e_s.mean - ours.e2e_s.mean) / (fcfs.e2e_s.mean - best.e2e_s.mean)
    assert ours.gain_mean.ratio == pytest.approx(expected)
    assert 0 < expected < 1
    assert math.isnan(best.gain_mean.ratio)
    assert best.tau != best.tau
    assert 0 < ours.tau < 1


def test_only_the_same_repeat_is_a_pair(store: Store) -> None:
    put(store, Cell("a", "fcfs", "none", 1.1, 0))
    put(store, Cell("a", "tie", "fast", 1.1, 1))
    line = analyse(SETTINGS, store.results()).line("a", 1.1, "tie", "fast")
    assert line is not None
    assert math.isnan(line.mean.ratio)
    assert line.e2e_s.mean > 0


def test_throughput_is_that_of_the_makespans(store: Store) -> None:
    put(store, Cell("a", "fcfs", "none", 1.1))
    put(store, Cell("a", "sjf", ORACLE, 1.1), faster=2.0)
    line = analyse(SETTINGS, store.results()).line("a", 1.1, "sjf", ORACLE)
    assert line is not None
    assert line.throughput == pytest.approx(2.0, rel=1e-3)


def test_a_batch_drained_shortest_first_has_its_half_sooner_and_its_end_at_the_same_time(store: Store) -> None:
    put(store, capacity_cell("a"))
    put(store, Cell("a", "sjf", ORACLE, None))
    fcfs, sjf = analyse(SETTINGS, store.results()).drains
    lengths = lengths_of(0)
    assert sjf.half_s == pytest.approx(np.sort(lengths)[:20].sum())
    assert fcfs.all_s == sjf.all_s == pytest.approx(lengths.sum())
    assert sjf.half < sjf.three_quarters < sjf.all == pytest.approx(1.0)


def test_in_setting_b_answers_of_another_length_are_counted(store: Store) -> None:
    true = lengths_of(0)
    changed = true.copy()
    changed[:4] += 1
    put(store, Cell("b", "fcfs", "none", 1.1), lengths=true)
    put(store, Cell("b", "sjf", "fast", 1.1), lengths=changed)
    found = analyse(SETTINGS, store.results())
    line = found.line("b", 1.1, "sjf", "fast")
    assert line is not None
    assert line.lengths_changed == pytest.approx(0.1)
    assert line.tokens == pytest.approx(true.mean() + 0.1)
    assert "10.0 % to 10.0 % of them had another length" in markdown(found, None)


def test_batches_of_both_settings_have_a_table_each(store: Store) -> None:
    for setting in "ab":
        put(store, capacity_cell(setting))
        put(store, Cell(setting, "sjf", ORACLE, None))
    drained = [table for table in tables(analyse(SETTINGS, store.results())) if "a batch drained" in table.title]
    assert [(table.title[:3], len(table.rows)) for table in drained] == [("(a)", 2), ("(b)", 2)]


def test_targets_are_judged_by_what_was_measured(evidence: Evidence, store: Store) -> None:
    judged = {each.what: each for each in targets(evidence)}
    mean = judged["`lengthwise` on `default`, load 1.1: mean E2E"]
    line = evidence.line("a", 1.1, "lengthwise", "default")
    assert line is not None
    assert mean.met == (1 / line.mean.ratio >= 1.15)
    assert judged["`sjf` on true lengths, load 1.1: mean E2E"].met is None
    put(store, Cell("a", "sjf", ORACLE, 1.1), faster=0.01)
    later = {each.what: each for each in targets(analyse(SETTINGS, store.results()))}
    assert later["`sjf` on true lengths, load 1.1: mean E2E"].met is False


def test_the_page_says_what_was_measured_and_keeps_what_was_written_by_hand(evidence: Evidence) -> None:
    line = evidence.line("a", 1.1, "lengthwise", "default")
    assert line is not None
    page = markdown(evidence, "figures/evidence.png")
    assert f"{1 / line.mean.ratio:.2f}x" in page
    assert "one of thin air, 2 cores" in page
    assert "left out: 3 prompts over 1,024 tokens" in page
    assert "![" in page
    again = markdown(evidence, None, kept_by_hand(page + "## The simulator\n\nforetold it.\n"))
    assert again.endswith(f"{BY_HAND}\n## The simulator\n\nforetold it.\n")


def test_an_order_that_wins_nothing_is_named_where_it_does_not_pay(store: Store) -> None:
    headline(store)
    put(store, Cell("a", "tie", "fast", 1.1), faster=0.5)
    page = markdown(analyse(SETTINGS, store.results()), None)
    part = page.partition("## Where it does not pay")[2].partition("##")[0]
    assert "load 1.1, tie, `fast`" in part


def test_without_the_headline_the_page_claims_nothing(store: Store) -> None:
    put(store, capacity_cell("a"))
    page = markdown(analyse(SETTINGS, store.results()), None)
    assert "not measured yet" in page
    assert "Yes" not in page


def test_curves_of_other_traffic_have_a_panel_of_their_own(store: Store, tmp_path: Path) -> None:
    headline(store)
    put(store, Cell("a", "fcfs", "none", 1.1, 3))
    put(store, Cell("a", "tie", "default", 1.1, 3))
    html = html_report(analyse(SETTINGS, store.results()), store.results())
    assert "(a) load 1.1, repeat 0, 1, 2" in html
    assert "(a) load 1.1, repeat 3" in html
    assert still_figure(analyse(SETTINGS, store.results()), store.results(), tmp_path / "still.png")


def test_tables_json_and_plots_hold_every_order(evidence: Evidence, store: Store, tmp_path: Path) -> None:
    names = {row[0] for table in tables(evidence) for row in table.rows}
    assert {"fcfs (stock vLLM)", "sjf, `default`", "lengthwise, true lengths"} <= names
    each = next(table for table in tables(evidence) if table.title == "(a) load 1.1, repeat by repeat")
    assert [row[1] for row in each.rows if row[0] == "sjf, `default`"] == ["0", "1", "2"]
    assert json.loads(to_json(evidence))["capacity"]["a"] > 0
    html = html_report(evidence, store.results())
    assert "lengthwise, default" in html
    assert "Repeat by repeat" in html
    assert still_figure(evidence, store.results(), tmp_path / "still.png")
    assert (tmp_path / "still.png").stat().st_size > 10_000
