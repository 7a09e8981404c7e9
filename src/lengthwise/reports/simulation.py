"""A grid of simulations as tables, JSON and one HTML page: latency, throughput, each policy as a multiple of FCFS."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from lengthwise.intervals import share_change_over_seeds
from lengthwise.reports.latency_figures import figures
from lengthwise.reports.page import Document, Origin
from lengthwise.reports.runs import NAMES, ReportedRun, judged, pooled, predictor_label
from lengthwise.reports.tables import Table, multiple, seconds, share
from lengthwise.reports.verdict import on_policies
from lengthwise.simulator.grid import (
    BASELINE,
    COMPARED,
    METRICS,
    STATISTICS,
    Cell,
    Grid,
    Metric,
    OfferedLoad,
    Statistic,
    figure_name,
)
from lengthwise.simulator.metrics import TRUTH, LatencyLimits, LatencyProfile, load_kept
from lengthwise.simulator.sweep import SweepResult
from lengthwise.simulator.tasks import SeedResults

_WAITING: Final = 0.01
_OF_SESSIONS: Final = ("mean", "p50", "p99")
KEPT_AT: Final = (0.9, 0.95, 0.99)
"""Attained shares for which the load that keeps them is shown."""
_AGAINST: Final[tuple[tuple[Metric, Statistic], ...]] = (
    ("ttft_s", "mean"),
    ("e2e_s", "mean"),
    ("e2e_s", "p99"),
    ("per_token_s", "mean"),
    ("per_token_s", "p99"),
)


def tables(grid: Grid) -> list[Table]:
    """Latency, throughput, then every policy as a multiple of FCFS."""
    return [
        _latency(grid, "Time to first token and per further token", ("ttft_s", "tpot_s")),
        _latency(grid, "Completion time and latency per token", ("e2e_s", "per_token_s")),
        _served(grid),
        *_by_class(grid),
        *_sessions(grid),
        *_kept(grid),
        _against(grid),
    ]


def _latency(grid: Grid, title: str, metrics: Sequence[Metric]) -> Table:
    columns = [(metric, statistic) for metric in metrics for statistic in STATISTICS]
    return _table(
        grid,
        title,
        [f"{NAMES[metric]} {statistic}" for metric, statistic in columns],
        lambda cell: [seconds(cell.latency(metric, statistic)) for metric, statistic in columns],
    )


def _served(grid: Grid) -> Table:
    resent = any(outcome.resubmissions.any() for cell in grid.cells for outcome in cell.outcomes)

    def row(cell: Cell) -> list[str]:
        return [
            f"{cell.mean(lambda s: s.requests_per_s):,.2f}",
            f"{cell.mean(lambda s: s.output_tokens_per_s):,.0f}",
            f"{cell.goodput(grid.slo):,.2f}",
            share(cell.within(grid.slo)),
            f"{cell.mean(lambda s: s.preemptions):,.4g}",
            f"{cell.mean(lambda s: s.refused):,.4g}",
            *([f"{cell.mean(lambda s: s.resubmissions):,.4g}"] if resent else []),
            share(cell.kv_mean),
            share(cell.kv_peak),
        ]

    counts = ("preempted", "refused", "resent") if resent else ("preempted", "refused")
    columns = ("requests/s", "tokens/s", "goodput/s", "in SLO", *counts, "KV mean", "KV peak")
    return _table(grid, "Throughput, goodput and memory", columns, row, [_limits_note(grid)])


def _by_class(grid: Grid) -> list[Table]:
    """Return attained share and goodput of each class; nothing for a workload without classes."""
    names = grid.cells[0].classes
    if not names:
        return []

    def row(cell: Cell) -> list[str]:
        found = [cell.attained_by(name, grid.slo) for name in names]
        return [text for attained, rate in found for text in (share(attained), f"{rate:,.2f}")]

    columns = [text for name in names for text in (f"{name} in SLO", f"{name} goodput/s")]
    return [_table(grid, "Within limits, by class", columns, row, [_limits_note(grid)])]


def _sessions(grid: Grid) -> list[Table]:
    """Return the times of sessions; nothing for a workload without sessions of several requests."""
    summaries = [outcome.summary for outcome in grid.cells[0].outcomes]
    if not all(0 < each.sessions < each.requests for each in summaries):
        return []

    def row(cell: Cell) -> list[str]:
        times = [f"{cell.mean(lambda s: s.sessions):,.4g}"]
        times += [seconds(cell.mean(lambda s, name=name: getattr(s.session_s, name))) for name in _OF_SESSIONS]  # type: ignore[misc]
        return times + [multiple(grid.session_ratio(cell, statistic), 2) for statistic in ("mean", "p99")]

    columns = ("sessions", *_OF_SESSIONS, "mean over FCFS", "p99 over FCFS")
    notes = ["From the first arrival of a session to its last answer, think times included; all of its turns served."]
    return [_table(grid, "Time of a session", columns, row, notes)]


def _limits_note(grid: Grid) -> str:
    own = "; a request's own limits replace these" if grid.cells[0].outcomes[0].limits else ""
    return f"SLO: {grid.slo}{own}; goodput counts requests within all limits."


def kept_loads(grid: Grid) -> list[tuple[Cell, list[float]]]:
    """Return the load that each policy keeps at each of `KEPT_AT`, with its first cell; nothing for one load."""
    series: dict[tuple[str, str | None], list[Cell]] = {}
    for cell in grid.cells:
        series.setdefault((cell.label, cell.predictor), []).append(cell)
    found = []
    for cells in series.values():
        loads = [cell.offered.load for cell in cells]
        if len(set(loads)) > 1 and all(map(math.isfinite, loads)):
            shares = [cell.within(grid.slo) for cell in cells]
            found.append((cells[0], [load_kept(loads, shares, level) for level in KEPT_AT]))
    return found


def _kept(grid: Grid) -> list[Table]:
    """Return the table of the loads that are kept."""
    found, highest = kept_loads(grid), max(at.load for at in grid.offered_loads)
    if not found:
        return []

    def text(load: float) -> str:
        return "–" if math.isnan(load) else f"{load:.2f}" if load < highest else f"≥ {load:.2f}"

    rows = [[cell.label, predictor_label(cell.predictor), *map(text, loads)] for cell, loads in found]
    columns = ["policy", "predictor", *(f"{level:.0%}" for level in KEPT_AT)]
    notes = ["The highest load up to which this share of requests is within the limits, linear between the loads."]
    return [Table("Load kept", columns, rows, [*notes, _limits_note(grid)], keys=2)]


def _against(grid: Grid) -> Table:
    gains = TRUTH in grid.predictions and len(grid.predictions) > 1

    def row(cell: Cell) -> list[str]:
        ratios = [multiple(grid.ratio(cell, *what), 2) for what in _AGAINST]
        if not gains:
            return ratios
        ours = cell.predictor not in (None, TRUTH)
        captured = [grid.gain_captured(cell, metric) if ours else math.nan for metric in ("e2e_s", "per_token_s")]
        return [*ratios, *(share(gain) for gain in captured)]

    columns = [f"{NAMES[metric]} {statistic}" for metric, statistic in _AGAINST]
    if gains:
        columns += ["gain captured, E2E", "gain captured, per token"]
    base = "FCFS" if len(grid.routers) == 1 else f"FCFS behind {grid.routers[0]}"
    return _table(grid, f"Over {base}, below 1 is better", columns, row, _notes(grid, gains=gains))


def _notes(grid: Grid, *, gains: bool) -> list[str]:
    how = (
        f"over {len(grid.seeds)} seeds, paired"
        if len(grid.seeds) > 1
        else "of a paired bootstrap over blocks of consecutive requests; --seeds gives better ones"
    )
    notes = [f"Brackets: 95 % interval {how}."]
    if not any(cell.policy == BASELINE for cell in grid.cells):
        notes = ["No ratios: fcfs is not among the policies."]
    if gains:
        notes.append(
            "Gain captured: (FCFS - this) / (FCFS - the same policy with true lengths), on mean latency; "
            "– where true lengths gain less than 1 %."
        )
    loads = ", ".join(f"{at.load:.2f} ({at.offered_per_s:.3g} requests/s)" for at in grid.offered_loads)
    seeds = f"seed {grid.seeds[0]}" if len(grid.seeds) == 1 else f"{len(grid.seeds)} seeds from {grid.seeds[0]}"
    notes.append(
        f"{grid.workload.name} on {grid.fleet}{'' if grid.pools is None else f', pools {grid.pools}'}. "
        f"Load {loads}; {grid.capacity_per_s:.3g} requests/s possible under backlog (FCFS, round robin); "
        f"n {len(grid.workload):,}, slots {grid.fleet.slots:,}, {seeds}, run to drain."
    )
    if grid.pools is not None:
        link, after = (
            grid.pools.link,
            "" if grid.refresh is None else f"; predictions refreshed there by {grid.refresh}",
        )
        start = "" if grid.pools.switching is None else " at first"
        notes.append(
            f"Prefill on {grid.pools.prefill} engines, decode on {grid.pools.decode}{start}; KV goes over "
            f"{link.gb_per_s:g} GB/s and {seconds(link.latency_s)} of latency{after}. "
            "Capacity is that of engines that do both."
        )
    if not all(capacity.steady for capacity in grid.capacities):
        notes.append(
            "Capacity is a lower bound: fewer than two requests per slot make no backlog; "
            "give more --requests or a smaller --max-num-seqs."
        )
    idle = [offered for offered in grid.offered_loads if _is_idle(grid, offered)]
    if idle:
        notes.append(
            f"Hardly any request waits at load {', '.join(f'{offered.load:.2f}' for offered in idle)}, so the "
            "order cannot matter: "
            "raise the load or --requests, or lower --max-num-seqs."
        )
    taus = ((name, grid.tau(name)) for name in grid.predictions)
    names = ", ".join(name if math.isnan(tau) else f"{name} (tau {tau:.3f})" for name, tau in taus)
    if TRUTH in grid.predictions:
        notes.append(f"TRUE LENGTHS: {TRUTH} is an upper bound; it uses the true output lengths, which no server has.")
    return [*notes, f"Predictions: {names}."]


def _is_idle(grid: Grid, offered: OfferedLoad) -> bool:
    """Whether requests wait less than 1 % of their time, whatever the policy."""
    cells = [cell for cell in grid.cells if cell.offered == offered]
    return all(cell.mean(lambda s: s.queueing_s.mean) < _WAITING * cell.latency("e2e_s", "mean") for cell in cells)


def _table(
    grid: Grid,
    title: str,
    columns: Sequence[str],
    row: Callable[[Cell], list[str]],
    notes: Sequence[str] = (),
) -> Table:
    """Return one row per cell; the title has what all cells share."""
    several_loads, many_predictors = len(grid.offered_loads) > 1, len(grid.predictions) > 1
    rows, begins = [], set()
    for i, cell in enumerate(grid.cells):
        if i and cell.offered != grid.cells[i - 1].offered:
            begins.add(i)
        load = [f"{cell.offered.load:.2f}"] if several_loads else []
        predictor = [predictor_label(cell.predictor)] if many_predictors else []
        rows.append([cell.label, *predictor, *load, *row(cell)])
    same = [] if several_loads else [f"load {grid.offered_loads[0].load:.2f}"]
    same += [] if many_predictors else [f"predictions {predictor_label(next(iter(grid.predictions)))}"]
    head = ["policy", *(["predictor"] if many_predictors else []), *(["load"] if several_loads else [])]
    full = f"{title}: {', '.join(same)}" if same else title
    return Table(full, [*head, *columns], rows, notes, frozenset(begins), keys=len(head))


def facts(grid: Grid) -> dict[str, Any]:
    """Return the data of tables and figures, and of each seed, for `to_json`."""
    return {
        "workload": grid.workload.name,
        "content_hash": grid.workload.content_hash,
        "requests": len(grid.workload),
        "fleet": str(grid.fleet),
        "routers": grid.routers,
        "pools": grid.pools,
        "refresh": grid.refresh,
        "seeds": grid.seeds,
        "slo": grid.slo,
        "capacity": {
            "requests_per_s": grid.capacity_per_s,
            "slots": grid.fleet.slots,
            "steady": all(capacity.steady for capacity in grid.capacities),
        },
        "predictors": {name: {"tau": grid.tau(name), "true_lengths": name == TRUTH} for name in grid.predictions},
        **({"note": "TRUE LENGTHS"} if TRUTH in grid.predictions else {}),
        "load_kept": [
            {
                "policy": cell.policy,
                "router": cell.router,
                "predictor": cell.predictor,
                **{f"{level:g}": load for level, load in zip(KEPT_AT, loads, strict=True)},
            }
            for cell, loads in kept_loads(grid)
        ],
        "runs": [_run(grid, cell, run) for cell, run in zip(grid.cells, runs_of(grid), strict=True)],
    }


def _run(grid: Grid, cell: Cell, run: ReportedRun) -> dict[str, Any]:
    return {
        **run.to_dict(),
        "offered_per_s": cell.offered.offered_per_s,
        "gain_captured": {
            "e2e": grid.gain_captured(cell, "e2e_s"),
            "per_token": grid.gain_captured(cell, "per_token_s"),
        },
        "requests_per_s": cell.mean(lambda s: s.requests_per_s),
        "output_tokens_per_s": cell.mean(lambda s: s.output_tokens_per_s),
        "goodput_per_s": cell.goodput(grid.slo),
        "within_slo": cell.within(grid.slo),
        "by_class": {
            name: dict(zip(("within_slo", "goodput_per_s"), cell.attained_by(name, grid.slo), strict=True))
            for name in cell.classes
        },
        "preemptions": cell.mean(lambda s: s.preemptions),
        "resubmissions": cell.mean(lambda s: s.resubmissions),
        "refused": cell.mean(lambda s: s.refused),
        "kv_mean": cell.kv_mean,
        "kv_peak": cell.kv_peak,
        "by_seed": [_without_profile(outcome.summary.to_dict()) for outcome in cell.outcomes],
    }


def _without_profile(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "profile"}


_OFFERED: Final = ("workload", "fleet", "load", "rate")
_COMPARED_BY: Final = ("router", "policy", "predictor")
_FIGURES: Final[tuple[tuple[Metric, Statistic], ...]] = (
    ("ttft_s", "mean"),
    ("ttft_s", "p99"),
    ("e2e_s", "mean"),
    ("e2e_s", "p99"),
    ("per_token_s", "mean"),
)


def sweep_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A table for each workload and fleet."""
    cells = _sweep_cells(rows)
    columns = ("load", "router", "policy", "predictor", *(f"{NAMES[name]} {stat}" for name, stat in _FIGURES))
    tables = []
    for place in dict.fromkeys(key[:2] for key in cells):
        body, breaks, offered = [], set(), None
        for key, cell in cells.items():
            if key[:2] != place:
                continue
            if offered is not None and key[2:4] != offered:
                breaks.add(len(body))
            if key[2:4] != offered:
                offered, base = key[2:4], cell
            body.append(
                [
                    *_names(key),
                    *(seconds(cell.mean(*what)) for what in _FIGURES),
                    multiple(cell.over(base, "e2e_s", "mean"), 2),
                ]
            )
        seeds = len(next(iter(cells.values())).seeds)
        notes = [f"Means over {seeds} seeds; the last column is over the first of its load."]
        # A router, policy or predictor that is the same everywhere is in a note, not in a column.
        same = [each for each in (1, 2, 3) if len({row[each] for row in body}) == 1]
        notes += [f"{columns[each]}: {body[0][each]}" for each in same]
        head, *rest = (
            [cell for each, cell in enumerate(row) if each not in same]
            for row in ((*columns, "E2E mean over first"), *body)
        )
        title = f"{place[0]} on {place[1]}"
        tables.append(Table(title, head, rest, notes, frozenset(breaks), keys=4 - len(same)))
    return tables


def _sweep_cells(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], SeedResults]:
    """Return the rows of each cell, one per seed."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in (*_OFFERED, *_COMPARED_BY)), []).append(row)
    return {name: SeedResults(seeds=tuple(seeds)) for name, seeds in cells.items()}


def _names(key: tuple[Any, ...]) -> list[str]:
    load, rate, router, policy, predictor = key[2:]
    offered = f"{load:.2f}" if load is not None else "own" if rate is None else f"{rate:g}/s"
    return [offered, router, policy, predictor_label(predictor) or "–"]


def runs_of(grid: Grid) -> list[ReportedRun]:
    """Return the cells as a report shows them."""
    return [
        ReportedRun(
            cell.policy,
            cell.predictor,
            cell.router,
            offered=f"load {cell.offered.load:.2f}" if math.isfinite(cell.offered.load) else "all at once",
            load=cell.offered.load if math.isfinite(cell.offered.load) else math.nan,
            latency={metric: {name: cell.latency(metric, name) for name in STATISTICS} for metric in METRICS},
            over_fcfs={figure_name(*what): grid.ratio(cell, *what) for what in COMPARED},
            profile=pooled([outcome.summary.profile for outcome in cell.outcomes]),
            within=grid.within(cell),
            slo=str(grid.slo),
        )
        for cell in grid.cells
    ]


def grid_document(grid: Grid, origin: Origin | None = None) -> Document:
    """Return the document of a grid."""
    runs = runs_of(grid)
    title, known = f"{grid.workload.name} on {grid.fleet}", {"origin": origin, **facts(grid)}
    return Document(title, tables(grid), known, on_policies(judged(runs)), lambda: figures(runs), origin)


def sweep_runs(rows: Sequence[Mapping[str, Any]]) -> list[ReportedRun]:
    """Return each cell of a sweep, its seeds together, beside the FCFS of its offered load."""
    cells = _sweep_cells(rows)
    found = []
    for key, cell in cells.items():
        workload, fleet, load, rate, router, policy, predictor = key
        base = next((other for name, other in cells.items() if name[:4] == key[:4] and name[5] == BASELINE), None)
        latency: dict[str, dict[str, float]] = {
            name: {each: cell.mean(name, each) for each in STATISTICS} for name in METRICS
        }
        ratios = {} if base is None else {figure_name(*what): cell.over(base, *what) for what in COMPARED}
        offered = f"load {load:.2f}" if load is not None else "its own arrivals" if rate is None else f"{rate:g}/s"
        number = math.nan if load is None and rate is None else float(load or rate)
        profile = pooled([LatencyProfile.read(row["profile"]) for row in cell.seeds])
        known = base is not None and all("within_slo" in row for each in (cell, base) for row in each.seeds)
        met = [each.values("within_slo") for each in (cell, base or cell)] if known else []
        within = share_change_over_seeds(*met) if met else None
        place, slo = f"{workload} on {fleet}", str(LatencyLimits())
        found.append(
            ReportedRun(policy, predictor, router, place, offered, number, latency, ratios, profile, within, slo)
        )
    return found


def sweep_document(swept: SweepResult, origin: Origin | None = None) -> Document:
    """Return the document of a sweep."""
    runs = sweep_runs(swept.rows)
    title = ", ".join(dict.fromkeys(run.place for run in runs))
    known = {"origin": origin, **asdict(swept)}
    return Document(title, sweep_tables(swept.rows), known, on_policies(judged(runs)), lambda: figures(runs), origin)
