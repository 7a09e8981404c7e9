"""`Study` as tables, as one HTML page and for programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from experiments.disaggregation.plot import figures
from experiments.disaggregation.study import COMPARED, FIRST, Arrangement, Study, What
from experiments.disaggregation.task import POLICY, ROUTER
from lengthwise.reports.interactive import interactive_page
from lengthwise.reports.simulation import NAMES, multiple, seconds
from lengthwise.reports.tables import Table
from lengthwise.simulator import KvLink
from lengthwise.simulator.paired import Ratio

__all__ = ["html_report", "plain", "said", "tables"]

_CHOSEN_BY: Final[What] = ("e2e_s", "mean")
_TITLES: Final = {(measure, statistic): f"{NAMES[measure]} {statistic}" for measure, statistic in COMPARED}


def tables(found: Study) -> list[Table]:
    """When it pays, every arrangement of every case, and what refreshed predictions are worth."""
    return [_one_split(found), _each_its_own(found), *(_case(found, case) for case in found.sources), _refreshed(found)]


def html_report(found: Study) -> str:
    """Figures, then the tables."""
    return interactive_page("Prefill and decode apart", figures(found), tables(found))


def said(ratio: Ratio) -> str:
    """Whether a split pays, by its interval over seeds."""
    if math.isnan(ratio.ratio):
        return "unknown"
    return "pays" if ratio.high < 1 else "costs" if ratio.low > 1 else "even"


def plain(found: Study) -> dict[str, Any]:
    """Ready for `to_json`."""
    return {
        "effort": found.effort,
        "fleet": found.effort.fleet,
        "slots": found.slots,
        "policy": POLICY,
        "router": ROUTER,
        "link": KvLink(found.gb_per_s),
        "sources": found.sources,
        "split": [_facts(one) for one in found.split],
        "first_prediction": FIRST,
        "refreshed": [_facts(one) for one in found.refreshed],
    }


def _facts(one: Arrangement) -> dict[str, Any]:
    return {
        "case": one.case,
        "load": one.load,
        "prefill": one.prefill,
        "refresh": one.refresh,
        "capacity_per_s": one.mean("capacity_per_s"),
        **{f"{measure.removesuffix('_s')}_{name}_s": one.mean(measure, name) for measure, name in COMPARED},
        "over": {f"{measure.removesuffix('_s')}_{name}": one.ratios[measure, name] for measure, name in COMPARED},
        **{name: one.mean(name) for name in ("transfer_s", "memory_s", "sent_tokens", "preemptions", "refused")},
        "by_seed": one.runs,
    }


def _one_split(found: Study) -> Table:
    """One split for all figures: the one with the least mean E2E."""

    def best(case: str, load: float) -> list[Arrangement]:
        return [found.best(case, load, _CHOSEN_BY)] * len(COMPARED)

    how = (
        "Of the splits, prefill:decode, the one with the least mean E2E, and its multiples of the mixed fleet's; "
        "it pays where the whole 95 % interval is below 1, costs where it is above, else it is even."
    )
    return _verdicts(found, "When it pays to keep prefill and decode apart", best, how)


def _each_its_own(found: Study) -> Table:
    """What a split could do for each figure, if nothing else mattered."""

    def best(case: str, load: float) -> list[Arrangement]:
        return [found.best(case, load, what) for what in COMPARED]

    how = "Each figure at the split that is best for it: what one gains there is paid for in the other figures."
    return _verdicts(found, "The best split for each figure by itself", best, how)


def _verdicts(found: Study, title: str, best: Callable[[str, float], list[Arrangement]], how: str) -> Table:
    rows: list[list[str]] = []
    begins: set[int] = set()
    for case in found.sources:
        begins.add(len(rows))
        for load in found.effort.loads:
            cells = [
                f"{_apart(found, one)} {said(one.ratios[what])} {one.ratios[what].ratio:.2f}"
                for one, what in zip(best(case, load), COMPARED, strict=True)
            ]
            rows.append([f"{case} {load:.1f}", *cells])
    how += " The best of several looks a little better than it is."
    columns = ("workload, load", *_TITLES.values())
    return Table(title, columns, rows, [how, *_notes(found)], frozenset(begins - {0}))


def _case(found: Study, case: str) -> Table:
    rows: list[list[str]] = []
    begins: set[int] = set()
    for load in found.effort.loads:
        begins.add(len(rows))
        for one in found.of(case, load):
            times = [
                one.mean("ttft_s", "mean"),
                one.mean("e2e_s", "mean"),
                one.mean("transfer_s"),
                one.mean("memory_s"),
            ]
            ratios = [multiple(one.ratios[what]) for what in COMPARED]
            rows.append([f"{load:.1f} {_apart(found, one)}", *map(seconds, times), *ratios])
    capacity = found.of(case, found.effort.loads[0])[0]
    steady = "" if all(run["steady"] for run in capacity.runs) else ", a lower bound"
    how = (
        "Transfer: from the first token to all KV there. Memory: from there to being admitted. The mixed fleet can do "
        f"{capacity.mean('capacity_per_s'):.3g} requests/s (FCFS, round robin, under backlog{steady})."
    )
    columns = ("load", "TTFT", "E2E", "transfer", "memory", *_TITLES.values())
    title = f"{found.sources[case]} on {found.effort.fleet}: seconds, and multiples of the mixed fleet"
    return Table(title, columns, rows, [how, *_notes(found)], frozenset(begins - {0}))


def _refreshed(found: Study) -> Table:
    rows = [
        [
            f"{one.case} {one.load:.1f} {_apart(found, one)}",
            one.refresh or f"{FIRST}, kept",
            *(multiple(one.ratios[what]) for what in COMPARED),
        ]
        for one in found.refreshed
    ]
    notes = [f"Over the same split with {FIRST} all the way; the decode pool's router goes by what is predicted then."]
    columns = ("workload, load, split", "predicted after prefill", *_TITLES.values())
    return Table("A prediction refreshed at the end of prefill", columns, rows, [*notes, *_notes(found)])


def _notes(found: Study) -> list[str]:
    effort = found.effort
    under = (
        f"{POLICY} inside engines, router {ROUTER} for each pool, KV over {found.gb_per_s:g} GB/s and "
        f"{seconds(KvLink().latency_s)}; load is of the mixed fleet's capacity; n {effort.requests:,}, "
        f"slots {found.slots:,}, {effort.seeds} seeds from 0, paired, 95 % intervals, run to drain."
    )
    return [under]


def _apart(found: Study, one: Arrangement) -> str:
    return f"{one.prefill}:{found.effort.engines - one.prefill}" if one.prefill else "mixed"
