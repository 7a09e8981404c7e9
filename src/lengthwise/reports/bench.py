"""Tables and HTML page of `lengthwise bench`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lengthwise.bench.analysis import ArmResult, BenchResult, over, read_episodes, times
from lengthwise.bench.episodes import Arm
from lengthwise.bench.store import BenchStore
from lengthwise.reports.page import COLOURS, Figure, axes, axis, html_page, interval_bars, panel
from lengthwise.reports.tables import Table, share

_POINTS = 300


def bench_tables(result: BenchResult) -> list[Table]:
    """Return one table per kind of episode."""
    kinds = list(dict.fromkeys(each.kind for each in result.arms))
    return [_table(kind, [each for each in result.arms if each.kind == kind], result.settings) for kind in kinds]


def _table(kind: str, arms: list[ArmResult], settings: Mapping[str, Any]) -> Table:
    columns = [
        "policy, predictor", "mean E2E s", "mean", "per token", "TTFT", "p99 s", "p99", "p99.9", "max", "makespan",
        "gain captured", "tau", "preempted",
    ]  # fmt: skip
    rows = []
    for each in arms:
        ratio = each.ratios
        rows.append(
            [
                each.arm.label,
                f"{each.seconds['mean']:.3g}",
                times(ratio["mean"]),
                times(ratio["per_token"]),
                times(ratio["ttft"]),
                f"{each.seconds['p99']:.3g}",
                over(ratio["p99"]),
                over(ratio["p999"]),
                over(ratio["max"]),
                over(ratio["makespan"]),
                share(each.captured.ratio),
                "–" if np.isnan(each.tau) else f"{each.tau:.2f}",
                str(each.preemptions),
            ]
        )
    blocks = sorted({each.blocks for each in arms})
    notes = [
        (
            f"{'/'.join(map(str, blocks))} blocks of {settings['requests']} requests, capacity "
            f"{settings['capacity']:.3g} requests/s, {settings['engine']['max_num_seqs']} slots."
        ),
        (
            "mean, per token, TTFT: fcfs / policy, above 1x is better. p99, p99.9, max, makespan: policy / fcfs, "
            "below 1 is better. 95 % intervals: paired bootstrap over blocks."
        ),
        "schedule() CPU ms per step: " + ", ".join(f"{each.arm.label} {each.schedule_ms:.3f}" for each in arms) + ".",
    ]
    return Table(f"{kind} episodes", columns, rows, notes)


def bench_page(result: BenchResult, store: BenchStore, command: str) -> str:
    """Return the HTML report: the verdict, three figures, tables, and how to run it again."""
    origin = Table("How this was measured", ["", ""], [[name, str(value)] for name, value in _origin(result, command)])
    figures = [_ratios(result), _by_block(result), _latencies(store)]
    return html_page(f"lengthwise bench: {result.verdict}", [*bench_tables(result), origin], figures=figures)


def _origin(result: BenchResult, command: str) -> list[tuple[str, object]]:
    settings = result.settings
    return [
        ("command", command),
        ("machine", settings["machine"]),
        ("engine", settings["engine"]),
        ("traffic", settings["traffic"]),
        ("data", settings["data"]),
        ("left out", settings["left_out"]),
        ("hours of episodes", f"{result.hours:.2f}"),
    ]


def _ratios(result: BenchResult) -> Figure:
    arms = [each for each in result.arms if each.by_block["mean"]]
    labels = [f"{each.kind}: {each.arm.label}" for each in arms]
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": title,
            "x": [each.ratios[name].ratio for each in arms],
            "y": labels,
            "error_x": interval_bars([each.ratios[name] for each in arms]),
            "marker": {"size": 9, "color": COLOURS[place + 1]},
        }
        for place, (name, title) in enumerate((("mean", "mean E2E"), ("per_token", "per token"), ("p99", "p99 E2E")))
    ]
    layout = {"xaxis": axis("over fcfs, log scale", type="log"), "yaxis": axis(""), "margin": {"l": 220}}
    text = "Left of 1 is better than first come, first served, on the same requests. Bars: 95 % over blocks."
    return Figure("What each policy gains and pays", text, traces, layout, height=max(320, 120 + 40 * len(arms)))


def _by_block(result: BenchResult) -> Figure:
    arms = [each for each in result.arms if each.by_block["mean"]]
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f"{each.kind}: {each.arm.label}",
            "line": {"color": COLOURS[(1 + place) % len(COLOURS)]},
            "x": list(range(1, len(each.by_block["mean"]) + 1)),
            "y": list(each.by_block["mean"]),
        }
        for place, each in enumerate(arms)
    ]
    layout = {"xaxis": axis("block"), "yaxis": axis("mean E2E over fcfs")}
    return Figure("Block by block", "Each point is one pair of episodes on the same traffic.", traces, layout)


def _latencies(store: BenchStore) -> Figure:
    episodes = read_episodes(store.rows())
    kinds = list(dict.fromkeys(kind for kind, _ in episodes))
    arms = sorted({arm for _, arm in episodes}, key=lambda arm: (arm.policy != "fcfs", arm))
    shares = np.linspace(0, 1, _POINTS)
    traces = []
    for (kind, arm), blocks in episodes.items():
        values = np.concatenate([rows.e2e_s for rows in blocks.values()])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": arm.label,
                "legendgroup": arm.label,
                "showlegend": kind == kinds[0],
                "line": {"color": COLOURS[arms.index(arm) % len(COLOURS)], "width": 2 if arm == Arm("fcfs") else 1.5},
                "x": np.quantile(values, shares).tolist(),
                "y": shares.tolist(),
                **panel(kinds.index(kind)),
            }
        )
    panels = [(axis("E2E latency, s", type="log"), axis("share of requests", range=[0, 1]))] * len(kinds)
    layout = axes(panels, columns=min(2, len(kinds)), titles=kinds)
    return Figure("How long requests took", "Cumulative shares, all blocks together.", traces, layout)
