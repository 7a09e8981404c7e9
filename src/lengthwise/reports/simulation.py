"""A grid of simulations as tables, JSON and one HTML page: latency, throughput, each policy as a multiple of FCFS."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.reports.page import COLOURS, Figure, axes, axis, html_page, interval_bars, panel
from lengthwise.reports.tables import Table, share
from lengthwise.simulator.grid import (
    BASELINE,
    COMPARED,
    MEASURES,
    STATISTICS,
    Cell,
    Grid,
    Level,
    Measure,
    Statistic,
    latencies,
)
from lengthwise.simulator.metrics import TRUTH, Spread
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.paired import Ratio, over_seeds

Floats = NDArray[np.float64]

NAMES: Final[dict[Measure, str]] = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E", "per_token_s": "per token"}
_WAITING: Final = 0.01
_AGAINST: Final[tuple[tuple[Measure, Statistic], ...]] = (
    ("ttft_s", "mean"),
    ("e2e_s", "mean"),
    ("e2e_s", "p99"),
    ("per_token_s", "mean"),
    ("per_token_s", "p99"),
)


def predictor_label(predictor: str | None) -> str:
    """A predictor's name, with a warning where predictions are the true lengths."""
    return f"{TRUTH} (TRUE LENGTHS)" if predictor == TRUTH else predictor or ""


def tables(grid: Grid) -> list[Table]:
    """Latency, throughput, then every policy as a multiple of FCFS."""
    return [
        _latency(grid, "Time to first token and per further token", ("ttft_s", "tpot_s")),
        _latency(grid, "Completion time and latency per token", ("e2e_s", "per_token_s")),
        _served(grid),
        _against(grid),
    ]


def _latency(grid: Grid, title: str, measures: Sequence[Measure]) -> Table:
    columns = [(measure, statistic) for measure in measures for statistic in STATISTICS]
    return _table(
        grid,
        title,
        [f"{NAMES[measure]} {statistic}" for measure, statistic in columns],
        lambda cell: [seconds(cell.latency(measure, statistic)) for measure, statistic in columns],
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
    slo = f"SLO: TTFT at most {seconds(grid.slo.ttft_s)} and TPOT at most {seconds(grid.slo.tpot_s)}"
    return _table(
        grid, "Throughput, goodput and memory", columns, row, [f"{slo}; goodput counts requests within both."]
    )


def _against(grid: Grid) -> Table:
    gains = TRUTH in grid.predictions and len(grid.predictions) > 1

    def row(cell: Cell) -> list[str]:
        ratios = [multiple(grid.ratio(cell, *what)) for what in _AGAINST]
        if not gains:
            return ratios
        ours = cell.predictor not in (None, TRUTH)
        captured = [grid.gain_captured(cell, measure) if ours else math.nan for measure in ("e2e_s", "per_token_s")]
        return [*ratios, *(share(gain) for gain in captured)]

    columns = [f"{NAMES[measure]} {statistic}" for measure, statistic in _AGAINST]
    if gains:
        columns += ["gain captured, E2E", "per token"]
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
    levels = ", ".join(f"{level.load:.2f} ({level.offered_per_s:.3g} requests/s)" for level in grid.levels)
    seeds = f"seed {grid.seeds[0]}" if len(grid.seeds) == 1 else f"{len(grid.seeds)} seeds from {grid.seeds[0]}"
    notes.append(
        f"Load {levels}; {grid.capacity_per_s:.3g} requests/s possible under backlog (FCFS, round robin); "
        f"n {len(grid.workload):,}, slots {grid.fleet.slots:,}, {seeds}, run to drain."
    )
    if grid.pools is not None:
        link, after = (
            grid.pools.link,
            "" if grid.refresh is None else f"; predictions refreshed there by {grid.refresh}",
        )
        notes.append(
            f"Prefill on {grid.pools.prefill} engines, decode on {grid.pools.decode}; KV goes over "
            f"{link.gb_per_s:g} GB/s and {seconds(link.latency_s)} of latency{after}. "
            "Capacity is that of engines that do both."
        )
    if not all(capacity.steady for capacity in grid.capacities):
        notes.append(
            "Capacity is a lower bound: fewer than two requests per slot make no backlog; "
            "give more --requests or a smaller --max-num-seqs."
        )
    idle = [level for level in grid.levels if _is_idle(grid, level)]
    if idle:
        notes.append(
            f"Hardly any request waits at load {', '.join(f'{level.load:.2f}' for level in idle)}, so the "
            "order cannot matter: "
            "raise the load or --requests, or lower --max-num-seqs."
        )
    taus = ((name, grid.tau(name)) for name in grid.predictions)
    names = ", ".join(name if math.isnan(tau) else f"{name} (tau {tau:.3f})" for name, tau in taus)
    if TRUTH in grid.predictions:
        notes.append(f"TRUE LENGTHS: {TRUTH} is an upper bound; it uses the true output lengths, which no server has.")
    return [*notes, f"Predictions: {names}."]


def _is_idle(grid: Grid, level: Level) -> bool:
    """Whether requests wait less than 1 % of their time, whatever the policy."""
    cells = [cell for cell in grid.cells if cell.level == level]
    return all(cell.mean(lambda s: s.queueing_s.mean) < _WAITING * cell.latency("e2e_s", "mean") for cell in cells)


def _table(
    grid: Grid,
    title: str,
    columns: Sequence[str],
    row: Callable[[Cell], list[str]],
    notes: Sequence[str] = (),
) -> Table:
    """Return one row per cell; the title has what all cells share."""
    many_levels, many_predictors = len(grid.levels) > 1, len(grid.predictions) > 1
    rows, begins = [], set()
    for i, cell in enumerate(grid.cells):
        if i and cell.level != grid.cells[i - 1].level:
            begins.add(i)
        load = [f"{cell.level.load:.2f}"] if many_levels else []
        predictor = [predictor_label(cell.predictor)] if many_predictors else []
        rows.append([cell.label, *predictor, *load, *row(cell)])
    pools = "" if grid.pools is None else f", pools {grid.pools}"
    same = "" if many_levels else f", load {grid.levels[0].load:.2f}"
    same += "" if many_predictors else f", predictions {predictor_label(next(iter(grid.predictions)))}"
    head = ["policy", *(["predictor"] if many_predictors else []), *(["load"] if many_levels else [])]
    return Table(
        f"{title}: {grid.workload.name} on {grid.fleet}{pools}{same}", [*head, *columns], rows, notes, frozenset(begins)
    )


def multiple(ratio: Ratio) -> str:
    """Format a ratio with its interval."""
    if math.isnan(ratio.ratio):
        return "–"
    return "1" if ratio.low == ratio.high == 1 else f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def seconds(value: float) -> str:
    """Format a duration in ms or s."""
    if math.isnan(value):
        return "–"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:,.2f} s"


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
        "runs": [_run(grid, cell) for cell in grid.cells],
    }


def _run(grid: Grid, cell: Cell) -> dict[str, Any]:
    return {
        "load": cell.level.load,
        "offered_per_s": cell.level.offered_per_s,
        "predictor": cell.predictor,
        "policy": cell.policy,
        "router": cell.router,
        **{measure: {name: cell.latency(measure, name) for name in STATISTICS} for measure in MEASURES},
        "over_fcfs": {
            f"{measure.removesuffix('_s')}_{name}": grid.ratio(cell, measure, name) for measure, name in COMPARED
        },
        "gain_captured": {
            "e2e": grid.gain_captured(cell, "e2e_s"),
            "per_token": grid.gain_captured(cell, "per_token_s"),
        },
        "requests_per_s": cell.mean(lambda s: s.requests_per_s),
        "output_tokens_per_s": cell.mean(lambda s: s.output_tokens_per_s),
        "goodput_per_s": cell.goodput(grid.slo),
        "within_slo": cell.within(grid.slo),
        "preemptions": cell.mean(lambda s: s.preemptions),
        "resubmissions": cell.mean(lambda s: s.resubmissions),
        "refused": cell.mean(lambda s: s.refused),
        "kv_mean": cell.kv_mean,
        "kv_peak": cell.kv_peak,
        "by_seed": [outcome.summary.to_dict() for outcome in cell.outcomes],
    }


_LEVEL: Final = ("workload", "fleet", "load", "rate")
_COMPARED_BY: Final = ("router", "policy", "predictor")
_FIGURES: Final[tuple[tuple[Measure, Statistic], ...]] = (
    ("ttft_s", "mean"),
    ("ttft_s", "p99"),
    ("e2e_s", "mean"),
    ("e2e_s", "p99"),
    ("per_token_s", "mean"),
)


def sweep_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A table for each workload and fleet."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in (*_LEVEL, *_COMPARED_BY)), []).append(row)
    columns = ("load", "router", "policy", "predictor", *(f"{NAMES[name]} {stat}" for name, stat in _FIGURES))
    tables = []
    for place in dict.fromkeys(key[:2] for key in cells):
        body, breaks, level = [], set(), None
        for key, cell in cells.items():
            if key[:2] != place:
                continue
            if level is not None and key[2:4] != level:
                breaks.add(len(body))
            if key[2:4] != level:
                level, base = key[2:4], cell
            body.append(
                [*_names(key), *(seconds(_mean(cell, *what)) for what in _FIGURES), multiple(_over(cell, base))]
            )
        notes = [f"Means over {len(next(iter(cells.values())))} seeds; the last column is over the first of its load."]
        title = f"{place[0]} on {place[1]}"
        tables.append(Table(title, (*columns, "E2E mean over first"), body, notes, frozenset(breaks)))
    return tables


def _names(key: tuple[Any, ...]) -> list[str]:
    load, rate, router, policy, predictor = key[2:]
    level = f"{load:.2f}" if load is not None else "own" if rate is None else f"{rate:g}/s"
    return [level, router, policy, predictor_label(predictor) or "–"]


def _values(cell: Sequence[Mapping[str, Any]], measure: str, statistic: str) -> list[float]:
    values = [row[measure][statistic] for row in cell]
    return [math.nan if value is None else float(value) for value in values]


def _mean(cell: Sequence[Mapping[str, Any]], measure: str, statistic: str) -> float:
    values = _values(cell, measure, statistic)
    return sum(values) / len(values)


def _over(cell: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> Ratio:
    if cell is base:
        return Ratio(1.0, 1.0, 1.0)
    ours, theirs = (_values(each, "e2e_s", "mean") for each in (cell, base))
    if len(ours) > 1:
        return over_seeds(ours, theirs)
    return Ratio(ours[0] / theirs[0], math.nan, math.nan)


_SHOWN: Final[tuple[tuple[Measure, Statistic], ...]] = (("e2e_s", "mean"), ("e2e_s", "p99"), ("per_token_s", "mean"))
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")


def latency_against_load(grid: Grid) -> Figure:
    """Mean and p99 of E2E, and per-token latency, over load."""
    names = [f"{NAMES[measure]} {statistic} (s)" for measure, statistic in _SHOWN]
    layout = axes([(axis("load"), {"rangemode": "tozero"})] * len(_SHOWN), columns=len(_SHOWN), titles=names)
    data = []
    lines = dict.fromkeys((cell.label, cell.predictor) for cell in grid.cells)
    for compared, predictor in lines:
        cells = sorted(
            (cell for cell in grid.cells if (cell.label, cell.predictor) == (compared, predictor)),
            key=lambda cell: cell.level.load,
        )
        loads = [cell.level.load for cell in cells]
        for i, (measure, statistic) in enumerate(_SHOWN):
            values = [cell.latency(measure, statistic) for cell in cells]
            data.append({**_trace(grid, cells[0], i, "lines+markers"), "x": loads, "y": values})
    text = f"Averaged over seeds ({len(grid.seeds)}). Click a name to hide it, double-click to show it alone."
    return Figure("Latency against load", text, data, layout)


def mean_against_tail(grid: Grid) -> Figure:
    """Mean E2E against p99, a panel per level, with the intervals of the ratios to FCFS where FCFS was run."""
    levels = grid.levels
    compared = any(grid.baseline(level) for level in levels)
    unit = "over FCFS" if compared else "(s)"
    layout = axes(
        [(axis(f"E2E mean {unit}", **_range(grid, level, "mean")), _range(grid, level, "p99")) for level in levels],
        columns=min(3, len(levels)),
        titles=[f"load {level.load:.2f}: E2E p99 {unit}" for level in levels],
    )
    data = []
    for cell in grid.cells:
        trace = _trace(grid, cell, levels.index(cell.level), "markers")
        sides: tuple[tuple[str, Statistic], ...] = (("x", "mean"), ("y", "p99"))
        for side, statistic in sides:
            if compared:
                ratio = grid.ratio(cell, "e2e_s", statistic)
                trace |= {side: [ratio.ratio], f"error_{side}": interval_bars([ratio])}
            else:
                trace[side] = [cell.latency("e2e_s", statistic)]
        data.append(trace)
    text = (
        "Down and to the left is better: a policy that lowers the mean should not pay for it in the tail. "
        "An interval cut by its panel needs more seeds."
    )
    return Figure("Mean against p99", text, data, layout, height=120 + 360 * -(-len(levels) // 3))


def _range(grid: Grid, level: Level, statistic: Statistic) -> dict[str, Any]:
    """An axis range that holds every point; an interval far wider than the points is cut."""
    if grid.baseline(level) is None:
        return {}
    ratios = [grid.ratio(cell, "e2e_s", statistic) for cell in grid.cells if cell.level == level]
    known = [ratio for ratio in ratios if math.isfinite(ratio.ratio)]
    low, high = min(ratio.ratio for ratio in known), max(ratio.ratio for ratio in known)
    reach = max(high - low, 0.02 * high)
    ends = (max(low - reach, min(ratio.low for ratio in known)), min(high + reach, max(ratio.high for ratio in known)))
    return {"range": [ends[0] - 0.1 * reach, ends[1] + 0.1 * reach]}


def _trace(grid: Grid, cell: Cell, place: int, mode: str = "lines") -> dict[str, Any]:
    """A cell in one panel: a colour per policy and router, a dash per predictor; true lengths have open marks."""
    compared = list(dict.fromkeys(each.label for each in grid.cells))
    colour = COLOURS[compared.index(cell.label) % len(COLOURS)]
    many = cell.predictor is not None and len(grid.predictions) > 1
    name = f"{cell.label}, {predictor_label(cell.predictor)}" if many else cell.label
    dash = 0 if cell.predictor is None else list(grid.predictions).index(cell.predictor)
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "legendgroup": name,
        "line": {"color": colour, "dash": _DASHES[dash % len(_DASHES)]},
        "marker": {
            "color": colour,
            "size": 9,
            "symbol": "circle-open" if many and cell.predictor == TRUTH else "circle",
        },
        **panel(place),
        "showlegend": place == 0,
    }


_POINTS: Final = 300
_BINS: Final = 32
_GROUPS: Final = 10
_COLUMNS: Final = 3
_SHADES: Final = ((0.0, "#e3eef7"), (0.15, "#9cc4e4"), (0.4, "#4a90c4"), (1.0, "#08306b"))
"""Darker for more requests; most cells have few, so low shares get most of the shades."""
_MEASURES: Final[tuple[Measure, ...]] = ("ttft_s", "e2e_s", "per_token_s")


def cdfs(grid: Grid) -> Figure:
    """The cumulative distribution of each latency."""
    cells = _shown(grid)
    shares = np.linspace(0, 1, _POINTS)
    data: list[dict[str, Any]] = []
    panels = []
    for i, measure in enumerate(_MEASURES):
        lines = []
        for cell in cells:
            values = np.concatenate([latencies(outcome)[measure] for outcome in cell.outcomes])
            known = values[~np.isnan(values)]
            lines.append(np.quantile(known, shares) if len(known) else np.array([]))
            data.append({**_trace(grid, cell, i), "x": lines[-1], "y": shares})
        panels.append((_log_axis("seconds", np.concatenate(lines)), {"range": [0, 1], "tickformat": ".0%"}))
    layout = axes(panels, columns=len(_MEASURES), titles=[NAMES[measure] for measure in _MEASURES])
    return Figure("Distribution of latency", f"{_where(grid)} All seeds together.", data, layout)


def over_time(grid: Grid) -> Figure:
    """Requests that wait, requests that run, and KV memory, all engines together."""
    data: list[dict[str, Any]] = []
    for cell in _shown(grid):
        times, waiting, running, kv = _timeline(cell.outcomes[0])
        for i, values in enumerate((waiting, running, kv)):
            data.append({**_trace(grid, cell, i), "x": times, "y": values})
    count: tuple[dict[str, Any], dict[str, Any]] = (axis("seconds"), {"rangemode": "tozero"})
    use = (axis("seconds"), {"tickformat": ".2~%", "rangemode": "tozero"})
    layout = axes([count, count, use], columns=3, titles=["waiting", "running", "KV blocks in use"])
    return Figure("Queue and KV memory over time", f"{_where(grid)} Seed {grid.seeds[0]}.", data, layout)


def length_heatmap(grid: Grid) -> Figure:
    """Distribution of requests over output length and completion time, a panel per policy."""
    cells = _shown(grid)
    points = []
    for cell in cells:
        tokens = np.concatenate([outcome.output_tokens for outcome in cell.outcomes])
        e2e_s = np.concatenate([outcome.finish - outcome.arrival for outcome in cell.outcomes])
        points.append(np.log10([tokens, e2e_s]))
    x_edges, y_edges = (_edges(values) for values in np.concatenate(points, axis=1))
    data: list[dict[str, Any]] = []
    for i, (tokens, taken) in enumerate(points):
        known = np.isfinite(taken)
        counts = np.histogram2d(tokens[known], taken[known], bins=(x_edges, y_edges))[0]
        share = counts.T / max(1.0, counts.sum())
        data.append(
            {
                "type": "heatmap",
                "x": 10**x_edges,
                "y": 10**y_edges,
                "z": np.where(share > 0, share, np.nan),
                "coloraxis": "coloraxis",
                "hovertemplate": "%{x:.0f} tokens<br>%{y:.2f} s<br>%{z:.2%} of requests<extra></extra>",
                **panel(i),
            }
        )
    both = (_log_axis("output tokens", 10**x_edges), _log_axis("E2E (s)", 10**y_edges))
    layout = axes([both] * len(cells), columns=min(_COLUMNS, len(cells)), titles=[cell.label for cell in cells])
    layout["coloraxis"] = {"colorscale": _SHADES, "cmin": 0, "colorbar": {"tickformat": ".1%"}}
    text = f"{_where(grid)} The share of requests in each cell. Requests far above the lower edge waited."
    height = 120 + 330 * -(-len(cells) // _COLUMNS)
    return Figure("Completion time against output length", text, data, layout, height=height)


def waiting_by_length(grid: Grid) -> Figure:
    """Time in the queue by predicted length, in groups of about equal size."""
    first = next(iter(grid.predictions))
    expected = np.concatenate([predictions.expected_and_tail()[0] for predictions in grid.predictions[first]])
    edges = np.unique(np.quantile(expected, np.linspace(0, 1, _GROUPS + 1)))
    group = np.clip(np.searchsorted(edges, expected, side="right") - 1, 0, max(0, len(edges) - 2))
    groups = np.unique(group)
    middle = [float(np.median(expected[group == each])) for each in groups]
    data: list[dict[str, Any]] = []
    for cell in _shown(grid):
        waited = np.concatenate([outcome.started - outcome.arrival for outcome in cell.outcomes])
        spreads = [Spread.of(waited[group == each]) for each in groups]
        for i, y in enumerate(([each.mean for each in spreads], [each.p99 for each in spreads])):
            data.append({**_trace(grid, cell, i, "lines+markers"), "x": middle, "y": y})
    both = (axis("predicted tokens", type="log"), axis("seconds", rangemode="tozero"))
    layout = axes([both] * 2, columns=2, titles=["mean", "p99"])
    text = f"{_where(grid)} Requests in ten groups of equal size."
    return Figure("Waiting time by predicted length", text, data, layout)


def _shown(grid: Grid) -> list[Cell]:
    """The cells of the highest level: FCFS, and the others with the first predictor."""
    top = max(grid.levels, key=lambda level: level.load)
    first = next(iter(grid.predictions))
    return [cell for cell in grid.cells if cell.level == top and cell.predictor in (None, first)]


def _where(grid: Grid) -> str:
    load = _shown(grid)[0].level.load
    return (
        f"{f'At load {load:.2f}' if math.isfinite(load) else 'All at once'}, predictions "
        f"{predictor_label(next(iter(grid.predictions)))}."
    )


def _log_axis(title: str, values: Floats) -> dict[str, Any]:
    """A log axis; over two decades and more only powers of ten are labelled."""
    wide = len(values) > 0 and values.min() > 0 and values.max() >= 100 * values.min()
    return axis(title, type="log", **({"dtick": 1} if wide else {}))


def _timeline(outcome: Outcome) -> tuple[Floats, Floats, Floats, Floats]:
    """Waiting and running of all engines, and their mean KV use, at equally spaced times."""
    lines = [engine.timeline for engine in outcome.engines if len(engine.timeline.time)]
    times = np.linspace(0.0, max((float(line.time[-1]) for line in lines), default=0.0), _POINTS)
    waiting, running, kv_use = (
        np.sum([_last_value(times, line.time, getattr(line, name)) for line in lines], axis=0)
        for name in ("waiting", "running", "kv_use")
    )
    return times, waiting, running, kv_use / max(1, len(outcome.engines))


def _last_value(times: Floats, at: Floats, values: NDArray[Any]) -> Floats:
    """The latest value at each time; 0 before the first and after the last."""
    place = np.searchsorted(at, times, side="right") - 1
    return np.where((place >= 0) & (times <= at[-1]), values[np.maximum(place, 0)], 0.0)


def _edges(values: Floats) -> Floats:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return np.linspace(low, max(high, low + 1e-3), _BINS + 1)


def html_report(grid: Grid) -> str:
    """One page: latency over load, then the distribution over requests at the highest load, then the tables."""
    draws = (latency_against_load, mean_against_tail, cdfs, over_time, length_heatmap, waiting_by_length)
    title = f"{grid.workload.name} on {grid.fleet}"
    return html_page(title, tables(grid), figures=[draw(grid) for draw in draws])
